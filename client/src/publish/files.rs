//! What of a checkpoint is sent as files: safetensors headers, and files that are no weight files.

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::parts::check_cancelled;
use deltaic_format::ids::FileId;
use deltaic_format::object::{FileEntry, Snapshot, WeightFileEntry};
use deltaic_format::progress::Progress;
use deltaic_format::refusal::Refusal;
use deltaic_format::wire::PART_BYTES;
use std::collections::{HashMap, HashSet};

/// Where a file of a checkpoint is.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// The header of this weight file.
    Header(usize),
    /// This other file, and its length.
    File(usize, u64),
}

/// The files of a checkpoint by their ids.
#[derive(Debug)]
pub(super) struct CheckpointFiles {
    /// What the tree says of them.
    pub(super) weight_files: Vec<WeightFileEntry>,
    pub(super) files: Vec<FileEntry>,
    places: HashMap<FileId, Place>,
    /// Those that have to be sent, each once.
    new: Vec<FileId>,
}

impl CheckpointFiles {
    /// Hash the files of `checkpoint`; those that `parent` has need not be sent.
    pub(super) fn new(
        checkpoint: &Checkpoint,
        parent: Option<&Snapshot>,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let mut files = Self {
            weight_files: Vec::new(),
            files: Vec::new(),
            places: HashMap::new(),
            new: Vec::new(),
        };
        for number in 0..checkpoint.schema().files.len() {
            let bytes = checkpoint.header(number);
            let header = FileId::of(bytes);
            files.places.insert(header, Place::Header(number));
            files.weight_files.push(WeightFileEntry {
                header,
                header_len: bytes.len() as u64,
            });
        }
        for (number, file) in checkpoint.files().iter().enumerate() {
            let mut hasher = blake3::Hasher::new();
            read_parts(
                checkpoint,
                Place::File(number, file.size),
                0,
                &mut |_, part| {
                    check_cancelled(progress)?;
                    hasher.update(part);
                    Ok(())
                },
            )?;
            let id = FileId(*hasher.finalize().as_bytes());
            files.places.insert(id, Place::File(number, file.size));
            files.files.push(FileEntry {
                path: file.path.clone(),
                mode: file.mode,
                size: file.size,
                id,
            });
        }
        files.new = new_files(parent, &files.weight_files, &files.files);
        Ok(files)
    }

    /// The files that have to be sent, in order.
    pub(super) fn to_send(&self) -> &[FileId] {
        &self.new
    }

    /// Give the bytes of a file from `offset` on, in parts, with where each begins, to `receive`.
    pub(super) fn read(
        &self,
        checkpoint: &Checkpoint,
        id: FileId,
        offset: u64,
        receive: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let place = self.places.get(&id).ok_or_else(|| Refusal::NotFound {
            kind: "file".to_owned(),
            name: id.to_string(),
        })?;
        read_parts(checkpoint, *place, offset, receive)
    }
}

/// Headers and files that `parent` does not have, each once.
pub(crate) fn new_files(
    parent: Option<&Snapshot>,
    weight_files: &[WeightFileEntry],
    files: &[FileEntry],
) -> Vec<FileId> {
    fn ids<'a>(
        weight_files: &'a [WeightFileEntry],
        files: &'a [FileEntry],
    ) -> impl Iterator<Item = FileId> + 'a {
        let headers = weight_files.iter().map(|file| file.header);
        headers.chain(files.iter().map(|file| file.id))
    }
    let mut seen: HashSet<FileId> = (parent.iter())
        .flat_map(|parent| ids(&parent.tree.weight_files, &parent.tree.files))
        .collect();
    ids(weight_files, files)
        .filter(|id| seen.insert(*id))
        .collect()
}

fn read_parts(
    checkpoint: &Checkpoint,
    place: Place,
    offset: u64,
    receive: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    match place {
        Place::Header(number) => {
            let rest = checkpoint.header(number).get(offset as usize..);
            let mut at = offset;
            for part in rest.unwrap_or_default().chunks(PART_BYTES) {
                receive(at, part)?;
                at += part.len() as u64;
            }
        }
        Place::File(number, size) => {
            let mut at = offset;
            let mut buffer = Vec::new();
            while at < size {
                buffer.resize((size - at).min(PART_BYTES as u64) as usize, 0);
                checkpoint.read_file(number, at, &mut buffer)?;
                receive(at, &buffer)?;
                at += buffer.len() as u64;
            }
        }
    }
    Ok(())
}
