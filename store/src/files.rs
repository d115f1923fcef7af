//! Files a part at a time, for readers that come back for the next one.

use crate::database::Table;
use crate::error::{Result, StoreError};
use crate::records::ContentKey;
use crate::store::Store;
use deltaic_format::base::BASE_BLOCK_ELEMENTS;
use deltaic_format::ids::FileId;
use deltaic_format::name::RepoName;
use deltaic_format::object::Snapshot;
use deltaic_format::patch::PIECE_ELEMENTS;

/// Bytes of a part, which ends where a block does.
const PART_BYTES: u64 = 1 << 20;

/// A file that was found in a version, so that it may be read.
#[derive(Debug, Clone, Copy)]
pub struct FoundFile(FileId);

impl Store {
    /// Find a file, a safetensors header or one that is no weight file, in a version of a repository.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if the repository does not have the version, or that not the file.
    pub fn find_file(&self, repo: &RepoName, version: &Snapshot, id: FileId) -> Result<FoundFile> {
        self.must_reach(repo, version.id)?;
        let headers = version.tree.weight_files.iter().map(|file| file.header);
        let mut files = headers.chain(version.files().iter().map(|file| file.id));
        match files.any(|file| file == id) {
            true => Ok(FoundFile(id)),
            false => Err(StoreError::not_found("file", id)),
        }
    }

    /// The bytes of a file from `offset` on, a megabyte or less, and whether they are its last. Nothing vouches for a
    /// part: whoever takes them all checks the file's hash.
    ///
    /// # Errors
    ///
    /// [`StoreError::Invalid`] if it does not reach so far; if it is damaged or gone.
    pub fn file_part(&self, file: FoundFile, offset: u64) -> Result<(Vec<u8>, bool)> {
        let FoundFile(id) = file;
        let beyond = |len: u64| StoreError::Invalid {
            what: format!("file {id} has {len} bytes, fewer than {offset}"),
        };
        if let Some(bytes) = self.small_file(id)? {
            let part = (usize::try_from(offset).ok()).and_then(|offset| bytes.get(offset..));
            let part = part.ok_or_else(|| beyond(bytes.len() as u64))?;
            return Ok((part.to_vec(), true));
        }
        let key = ContentKey::file(id);
        if !(self.database()).contains(Table::Contents, &key.to_bytes())? {
            return Err(StoreError::not_found("file", id));
        }
        let reader = self.contents().open(key)?;
        let len = reader.elements();
        if offset >= len {
            let at_end = offset == len;
            return at_end
                .then(|| (Vec::new(), true))
                .ok_or_else(|| beyond(len));
        }
        let (piece, within) = (offset / PIECE_ELEMENTS, offset % PIECE_ELEMENTS);
        let first = within / BASE_BLOCK_ELEMENTS;
        let piece_end = PIECE_ELEMENTS.min(len - piece * PIECE_ELEMENTS);
        let blocks = first
            ..(first + PART_BYTES / BASE_BLOCK_ELEMENTS)
                .min(piece_end.div_ceil(BASE_BLOCK_ELEMENTS));
        let mut part = reader.part(piece, blocks)?;
        part.drain(..(within % BASE_BLOCK_ELEMENTS) as usize);
        let complete = offset + part.len() as u64 == len;
        Ok((part, complete))
    }
}
