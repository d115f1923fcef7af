//! Storing what is no tensor: safetensors headers and all other files.

use super::{Made, Writing};
use crate::database::{Batch, Table};
use crate::error::{Result, StoreError};
use crate::packs::PackWriter;
use crate::store::SMALL_FILE;
use deltaic_format::ElementClass;
use deltaic_format::ids::FileId;
use deltaic_format::object::{FileEntry, WeightFileEntry};
use deltaic_format::patch::{PIECE_ELEMENTS, piece_len};

/// Small files are written to the database once they add up to this.
const BATCH_BYTES: usize = 4 << 20;

/// Where a file's bytes come from: fills the buffer from an offset.
type ReadAt<'a> = &'a dyn Fn(u64, &mut [u8]) -> Result<()>;

/// Small files that wait to be written, by id.
#[derive(Default)]
struct Waiting {
    files: Vec<(FileId, Vec<u8>)>,
    bytes: usize,
}

impl Writing<'_> {
    /// Store headers and other files. Returns their entries and the bytes of new packs.
    pub(super) fn store_files(&self) -> Result<(Vec<WeightFileEntry>, Vec<FileEntry>, u64)> {
        let mut packs = PackWriter::new(self.store.folder(), usize::MAX);
        let mut made = Made::default();
        let mut waiting = Waiting::default();
        let mut weight_files = Vec::new();
        for file in 0..self.checkpoint.schema().files.len() {
            let header = self.checkpoint.header(file);
            let read = |offset: u64, out: &mut [u8]| {
                out.copy_from_slice(&header[offset as usize..][..out.len()]);
                Ok(())
            };
            let header_len = header.len() as u64;
            weight_files.push(WeightFileEntry {
                header: self.store_file(header_len, &read, &mut waiting, &mut packs, &mut made)?,
                header_len,
            });
        }
        let mut files = Vec::new();
        for (number, file) in self.checkpoint.files().iter().enumerate() {
            let read = |offset: u64, out: &mut [u8]| {
                (self.checkpoint.read_file(number, offset, out))
                    .map_err(|what| StoreError::Checkpoint { what })
            };
            files.push(FileEntry {
                path: file.path.clone(),
                mode: file.mode,
                size: file.size,
                id: self.store_file(file.size, &read, &mut waiting, &mut packs, &mut made)?,
            });
            self.progress.advance(file.size);
        }
        self.write_waiting(&mut waiting)?;
        packs.close()?;
        let bytes = self.settle_bases(&mut packs, &mut made)?;
        Ok((weight_files, files, bytes))
    }

    fn store_file(
        &self,
        size: u64,
        read: ReadAt<'_>,
        waiting: &mut Waiting,
        packs: &mut PackWriter<'_>,
        made: &mut Made,
    ) -> Result<FileId> {
        if size > SMALL_FILE {
            let whole = self.stream_base(ElementClass::U8, size, packs, |piece| {
                let mut content = vec![0; piece_len(size, piece) as usize];
                read(piece * PIECE_ELEMENTS, &mut content)?;
                Ok(content)
            })?;
            self.keep_base(ElementClass::U8, size, &whole, packs, made)?;
            return Ok(FileId(whole.id.0));
        }
        let mut content = vec![0; size as usize];
        read(0, &mut content)?;
        let id = FileId::of(&content);
        let stored = self.store.database().get(Table::Files, id.as_bytes())?;
        if stored.is_none_or(|bytes| FileId::of(&bytes) != id) {
            waiting.bytes += content.len();
            waiting.files.push((id, content));
        }
        if waiting.bytes >= BATCH_BYTES {
            self.write_waiting(waiting)?;
        }
        Ok(id)
    }

    fn write_waiting(&self, waiting: &mut Waiting) -> Result<()> {
        let Waiting { files, .. } = std::mem::take(waiting);
        let database = self.store.database();
        let mut batch = Batch::default();
        let mut ids = Vec::with_capacity(files.len());
        for (id, content) in files {
            ids.push(id);
            batch.put(Table::Files, id.0, content);
        }
        database.write(batch)?;
        for id in ids {
            let stored = database.get(Table::Files, id.as_bytes())?;
            if stored.is_none_or(|bytes| FileId::of(&bytes) != id) {
                let mut batch = Batch::default();
                batch.delete(Table::Files, id.0);
                database.write(batch)?;
                return Err(StoreError::corrupt(
                    format!("file {id}"),
                    "it does not read back as written",
                ));
            }
        }
        Ok(())
    }
}
