//! Files a part at a time, for readers that come back for the next one.

use crate::database::Table;
use crate::error::{Result, StoreError};
use crate::records::ContentKey;
use crate::store::Store;
use deltaic_format::base::BASE_BLOCK_ELEMENTS;
use deltaic_format::ids::FileId;
use deltaic_format::patch::PIECE_ELEMENTS;

/// Bytes of a part, which ends where a block does.
const PART_BYTES: u64 = 1 << 20;

impl Store {
    /// The bytes of a file from `offset` on, a megabyte or less, and whether they are its last. Nothing vouches for a
    /// part: whoever takes them all checks the file's hash.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if there is no such file, [`StoreError::Invalid`] if it does not reach so far; if it is
    /// damaged.
    pub fn file_part(&self, id: FileId, offset: u64) -> Result<(Vec<u8>, bool)> {
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
