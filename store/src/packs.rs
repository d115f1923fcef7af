//! Pack files: immutable, named by their hash, holding bases one after the other.
//!
//! ```text
//! 8   magic  89 44 50 4B 0D 0A 1A 0A   (\x89 "DPK" \r \n \x1a \n)
//! 1   format version, 1
//!     bases, one after the other (SPEC.md §7)
//!     index, per base: u8 class | bytes[32] id | u64 offset | u64 length
//! 4   u32 number of bases
//! 8   magic again
//! ```
//!
//! The file name is the BLAKE3 of all bytes, in hex, with the ending `.pack`. A pack is written under a
//! temporary name, fsynced, renamed, and its folder fsynced before any row of the database names it: a partial one
//! is never seen, and is removed when the store is next opened.

use crate::error::{Result, StoreError};
use crate::folder::{Folder, TemporaryFile};
use crate::records::{BaseLocation, ContentKey};
use deltaic_format::base::{BASE_HEADER_LEN, BASE_TRAILER_LEN, BaseDirectory};
use memmap2::{Mmap, MmapOptions};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

const MAGIC: [u8; 8] = *b"\x89DPK\r\n\x1a\n";
const VERSION: u8 = 1;

/// A pack is closed once it is this long: what an interrupted commit loses at most, per thread.
const FULL: u64 = 256 << 20;

/// File name of a pack.
pub(crate) fn pack_file_name(pack: [u8; 32]) -> String {
    format!("{}.pack", blake3::Hash::from_bytes(pack).to_hex())
}

/// Writes bases into packs, one at a time; what was not closed leaves no trace.
pub(crate) struct PackWriter<'a> {
    folder: &'a Folder,
    /// Keeps names of several writers apart.
    number: usize,
    /// Packs begun.
    begun: usize,
    open: Option<OpenPack>,
    /// Bases in packs that are closed, hence durable.
    closed: Vec<(ContentKey, BaseLocation)>,
}

struct OpenPack {
    file: TemporaryFile,
    hasher: blake3::Hasher,
    len: u64,
    index: Vec<(ContentKey, u64, u64)>,
    /// Where the base being written began, and the hash up to there.
    mark: (u64, blake3::Hasher),
}

impl<'a> PackWriter<'a> {
    pub(crate) fn new(folder: &'a Folder, number: usize) -> Self {
        Self {
            folder,
            number,
            begun: 0,
            open: None,
            closed: Vec::new(),
        }
    }

    /// Begin a base; its bytes are appended next.
    pub(crate) fn begin(&mut self) -> Result<()> {
        if self.open.is_none() {
            let name = format!("{}-{}.pack", self.number, self.begun);
            self.begun += 1;
            let mut pack = OpenPack {
                file: self.folder.create_temporary(&name)?,
                hasher: blake3::Hasher::new(),
                len: 0,
                index: Vec::new(),
                mark: (0, blake3::Hasher::new()),
            };
            pack.append(&MAGIC)?;
            pack.append(&[VERSION])?;
            self.open = Some(pack);
        }
        if let Some(pack) = &mut self.open {
            pack.mark = (pack.len, pack.hasher.clone());
        }
        Ok(())
    }

    /// Append to the base begun last.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.open {
            Some(pack) => pack.append(bytes),
            None => unreachable!("bytes are appended to a base that was begun"),
        }
    }

    /// Bytes of the base begun last.
    pub(crate) fn base_len(&self) -> u64 {
        self.open.as_ref().map_or(0, |pack| pack.len - pack.mark.0)
    }

    /// The base begun last is whole and is that of `key`.
    pub(crate) fn finish_base(&mut self, key: ContentKey) -> Result<()> {
        let Some(pack) = &mut self.open else {
            return Ok(());
        };
        pack.index.push((key, pack.mark.0, pack.len - pack.mark.0));
        if pack.len >= FULL {
            self.close()?;
        }
        Ok(())
    }

    /// Forget the base begun last.
    pub(crate) fn discard_base(&mut self) -> Result<()> {
        let Some(pack) = &mut self.open else {
            return Ok(());
        };
        pack.file.truncate(pack.mark.0)?;
        pack.len = pack.mark.0;
        pack.hasher = pack.mark.1.clone();
        Ok(())
    }

    /// The bases of packs that were closed since this was last asked: they are durable.
    pub(crate) fn take_closed(&mut self) -> Vec<(ContentKey, BaseLocation)> {
        std::mem::take(&mut self.closed)
    }

    /// Make all bases durable.
    pub(crate) fn close(&mut self) -> Result<()> {
        let Some(mut pack) = self.open.take().filter(|pack| !pack.index.is_empty()) else {
            return Ok(());
        };
        let mut tail = Vec::with_capacity(49 * pack.index.len() + 12);
        for (key, offset, len) in &pack.index {
            tail.extend(key.to_bytes());
            tail.extend(offset.to_le_bytes());
            tail.extend(len.to_le_bytes());
        }
        tail.extend((pack.index.len() as u32).to_le_bytes());
        tail.extend(MAGIC);
        pack.append(&tail)?;
        let name = *pack.hasher.finalize().as_bytes();
        pack.file
            .publish(&self.folder.packs().join(pack_file_name(name)))?;
        self.closed
            .extend(pack.index.into_iter().map(|(key, offset, len)| {
                let location = BaseLocation {
                    pack: name,
                    offset,
                    len,
                };
                (key, location)
            }));
        Ok(())
    }
}

impl OpenPack {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }
}

/// Check that a pack begins and ends as packs do.
fn check_frame(file: &File, len: u64) -> Result<(), &'static str> {
    let mut head = [0; MAGIC.len() + 1];
    let mut tail = [0; MAGIC.len()];
    let end = len.checked_sub(tail.len() as u64);
    let read = end.is_some_and(|end| {
        file.read_exact_at(&mut head, 0).is_ok() && file.read_exact_at(&mut tail, end).is_ok()
    });
    if !read || head[..MAGIC.len()] != MAGIC || tail != MAGIC {
        return Err("it is truncated or no pack");
    }
    match head[MAGIC.len()] {
        VERSION => Ok(()),
        _ => Err("its format version is unknown; this build reads version 1"),
    }
}

/// The name that the bytes of a pack file have.
pub(crate) fn hash_pack(path: &std::path::Path) -> Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    hasher
        .update_reader(File::open(path).map_err(|e| StoreError::io(path, e))?)
        .map_err(|e| StoreError::io(path, e))?;
    Ok(*hasher.finalize().as_bytes())
}

/// Reads bases out of packs: small ranges with a read, large ones through short-lived mappings, so that resident
/// memory stays bounded.
#[derive(Debug)]
pub(crate) struct PackReader {
    folder: PathBuf,
    files: Mutex<HashMap<[u8; 32], Arc<PackFile>>>,
}

#[derive(Debug)]
struct PackFile {
    path: PathBuf,
    file: File,
    /// When it was opened; a pack is never written again.
    len: u64,
}

/// Packs kept open at a time.
const MAX_OPEN: usize = 256;

/// Ranges shorter than this are read, longer ones are mapped.
const MAP_FROM: u64 = 256 << 10;

/// Bytes of a pack.
enum Bytes {
    Read(Vec<u8>),
    Mapped(Mmap),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Read(bytes) => bytes,
            Self::Mapped(bytes) => bytes,
        }
    }
}

impl PackFile {
    fn truncated(&self) -> StoreError {
        let object = format!("pack {}", self.path.display());
        StoreError::corrupt(object, "it is truncated")
    }
}

impl PackReader {
    pub(crate) fn new(folder: &Folder) -> Self {
        Self {
            folder: folder.packs(),
            files: Mutex::default(),
        }
    }

    /// Open a pack anew when it is next read: a damaged one was replaced by a whole one of the same name.
    pub(crate) fn forget(&self, pack: [u8; 32]) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.remove(&pack);
    }

    fn file(&self, pack: [u8; 32]) -> Result<Arc<PackFile>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.get(&pack) {
            return Ok(Arc::clone(file));
        }
        let path = self.folder.join(pack_file_name(pack));
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(StoreError::corrupt(
                    format!("pack {}", path.display()),
                    "it is missing",
                ));
            }
            Err(e) => return Err(StoreError::io(&path, e)),
        };
        let len = file.metadata().map_err(|e| StoreError::io(&path, e))?.len();
        check_frame(&file, len)
            .map_err(|what| StoreError::corrupt(format!("pack {}", path.display()), what))?;
        if files.len() >= MAX_OPEN {
            files.clear();
        }
        let file = Arc::new(PackFile { path, file, len });
        files.insert(pack, Arc::clone(&file));
        Ok(file)
    }

    /// The pack of a base, and where in it bytes `offset .. offset + len` of the base begin.
    fn locate(&self, base: BaseLocation, offset: u64, len: u64) -> Result<(Arc<PackFile>, u64)> {
        let pack = self.file(base.pack)?;
        let fits = (base.offset.checked_add(base.len)).is_some_and(|end| end <= pack.len)
            && offset.checked_add(len).is_some_and(|end| end <= base.len);
        match fits {
            true => Ok((pack, base.offset + offset)),
            false => Err(pack.truncated()),
        }
    }

    /// Append bytes `offset .. offset + len` of a base to `out`, which mostly has room for a little more: they are read
    /// right to where they go, once.
    fn append(&self, base: BaseLocation, offset: u64, len: u64, out: &mut Vec<u8>) -> Result<()> {
        let (pack, at) = self.locate(base, offset, len)?;
        out.reserve(len as usize);
        let (start, end) = (out.len(), out.len() + len as usize);
        while out.len() < end {
            let at = at + (out.len() - start) as u64;
            match rustix::io::pread(&pack.file, spare_capacity(out), at) {
                Ok(0) => return Err(pack.truncated()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(StoreError::io(&pack.path, e.into())),
            }
        }
        out.truncate(end);
        Ok(())
    }

    /// Bytes `offset .. offset + len` of a base.
    fn read(&self, base: BaseLocation, offset: u64, len: u64) -> Result<Bytes> {
        let (pack, at) = self.locate(base, offset, len)?;
        if len < MAP_FROM {
            let mut bytes = vec![0; len as usize];
            let read = pack.file.read_exact_at(&mut bytes, at);
            return read
                .map(|()| Bytes::Read(bytes))
                .map_err(|e| StoreError::io(&pack.path, e));
        }
        let mut options = MmapOptions::new();
        options.offset(at).len(len as usize);
        // SAFETY: packs belong to the store, are never written once they have their name, and the store's lock keeps
        // other processes of ours away; the range lies within the file.
        unsafe { options.map(&pack.file) }
            .map(Bytes::Mapped)
            .map_err(|e| StoreError::io(&pack.path, e))
    }

    /// Read header and directory of a base; all of it, if it is short.
    pub(crate) fn open(&self, key: ContentKey, base: BaseLocation) -> Result<BaseFile<'_>> {
        let damaged = |what: &str| StoreError::corrupt(format!("base of {key}"), what);
        let (header, trailer) = (BASE_HEADER_LEN as u64, BASE_TRAILER_LEN as u64);
        if base.len < header + trailer {
            return Err(damaged("it is too short"));
        }
        let whole = match base.len {
            len if len < MAP_FROM => Some(self.read(base, 0, len)?),
            _ => None,
        };
        let read = |range: Range<u64>| match &whole {
            Some(whole) => Ok(Bytes::Read(
                whole[range.start as usize..range.end as usize].to_vec(),
            )),
            None => self.read(base, range.start, range.end - range.start),
        };
        let directory_end = base.len - trailer;
        let trailer_bytes = read(directory_end..base.len)?
            .first_chunk()
            .copied()
            .unwrap_or_default();
        let directory_len = BaseDirectory::length_from_trailer(trailer_bytes);
        let Some(at) = directory_end
            .checked_sub(directory_len)
            .filter(|&at| at >= header)
        else {
            return Err(damaged("its directory is too long"));
        };
        let directory = BaseDirectory::new(&read(0..header)?, &read(at..directory_end)?, base.len)
            .map_err(|e| damaged(&e.to_string()))?;
        if directory.class() != key.class {
            return Err(damaged("it is of another element class"));
        }
        Ok(BaseFile {
            packs: self,
            key,
            base,
            directory,
            whole,
        })
    }
}

/// A base in a pack, its directory read.
pub(crate) struct BaseFile<'a> {
    packs: &'a PackReader,
    key: ContentKey,
    base: BaseLocation,
    directory: BaseDirectory,
    /// All its bytes, if it is short.
    whole: Option<Bytes>,
}

impl BaseFile<'_> {
    pub(crate) fn elements(&self) -> u64 {
        self.directory.elements()
    }

    /// Bytes that blocks `blocks` take as they are stored.
    pub(crate) fn stored_len(&self, blocks: Range<u64>) -> u64 {
        let range = self.directory.byte_range(blocks);
        range.end - range.start
    }

    /// Decode blocks `blocks` into `content`, which has their length.
    pub(crate) fn decode(&self, blocks: Range<u64>, content: &mut [u8]) -> Result<()> {
        self.with_encoded(blocks.clone(), |encoded| {
            self.directory
                .decode(blocks, encoded, content)
                .map_err(|e| StoreError::corrupt(format!("base of {}", self.key), e))
        })
    }

    /// Blocks `blocks` as a base of their own, coded as they are stored.
    pub(crate) fn cut(&self, blocks: Range<u64>) -> Result<Vec<u8>> {
        let range = self.directory.byte_range(blocks.clone());
        match &self.whole {
            Some(whole) => {
                let encoded = &whole[range.start as usize..range.end as usize];
                Ok(self.directory.cut(blocks, encoded))
            }
            None => self.directory.cut_with(blocks, |out| {
                let len = range.end - range.start;
                self.packs.append(self.base, range.start, len, out)
            }),
        }
    }

    fn with_encoded<T>(
        &self,
        blocks: Range<u64>,
        use_it: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let range = self.directory.byte_range(blocks);
        match &self.whole {
            Some(whole) => use_it(&whole[range.start as usize..range.end as usize]),
            None => use_it(
                &self
                    .packs
                    .read(self.base, range.start, range.end - range.start)?,
            ),
        }
    }
}
