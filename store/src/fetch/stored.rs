//! Patch sets that are sent as they are stored.
//!
//! Whoever goes from a version to the next one mostly wants exactly what the commit stored: then nothing need be decoded,
//! composed and encoded anew. A set is sent as it is where its members are the next pieces of the answer, all of them and
//! in its order, and it is of a size that is worth a chunk of its own.

use super::answer::{Answer, Job};
use super::walk::Walk;
use crate::contents::Contents;
use crate::error::{Result, StoreError};
use crate::records::PieceLocation;
use bytes::Bytes;
use deltaic_format::fetch::DELIVERY_BYTES;
use deltaic_format::patch::{PIECE_ELEMENTS, piece_len};
use deltaic_format::patch_set::PatchSetReader;

/// Shorter sets are put together,
const LEAST_BYTES: usize = 16 << 10;
/// and longer ones cut.
const MOST_BYTES: usize = 2 * DELIVERY_BYTES as usize;

/// A set that answers the next pieces.
pub(super) struct StoredSet {
    pub(super) bytes: Bytes,
    pub(super) members: usize,
    /// Of the members.
    pub(super) elements: u64,
}

impl Job<'_> {
    /// Where piece `piece` of the patch that is sent is stored, if it is a stored one, all of which is wanted.
    fn stored_piece(&self, piece: u64) -> Option<PieceLocation> {
        let Answer::Patches(route) = &self.answer else {
            return None;
        };
        let is_whole = self.start <= piece * PIECE_ELEMENTS;
        match &route.steps[..] {
            [step] if !step.backwards && self.slice.is_none() && is_whole => step.edge.piece(piece),
            _ => None,
        }
    }
}

impl Walk<'_, '_> {
    /// The stored set that answers what comes next, if one does.
    pub(super) fn stored_set(&mut self) -> Result<Option<StoredSet>> {
        let Some((job, piece)) = self.next_piece() else {
            return Ok(None);
        };
        let Some(PieceLocation { set, member: 0, .. }) = job.stored_piece(piece) else {
            return Ok(None);
        };
        let class = job.wish.key.class;
        let bytes = self.contents().set(set)?;
        if !(LEAST_BYTES..=MOST_BYTES).contains(&bytes.len()) {
            return Ok(None);
        }
        let reader = PatchSetReader::new(&bytes).map_err(|e| Contents::damaged_set(set, e))?;
        if reader.class() != class {
            let what = "its patch is of another class";
            return Err(StoreError::corrupt(job.wish.key, what));
        }
        let members = reader.members();
        let (count, mut elements) = (members.len(), 0);
        let (mut ahead, mut piece) = (0, piece);
        for (member, len) in members.enumerate() {
            let Some(job) = self.job(ahead)? else {
                return Ok(None);
            };
            let all = job.wish.elements;
            let is_next = job.wish.key.class == class
                && piece_len(all, piece) == u64::from(len)
                && job.stored_piece(piece).is_some_and(|location| {
                    (location.set, location.member as usize) == (set, member)
                });
            if !is_next {
                return Ok(None);
            }
            elements += u64::from(len);
            (ahead, piece) = match job.piece_after(piece) {
                Some(next) => (ahead, next),
                None => (ahead + 1, 0),
            };
        }
        Ok(Some(StoredSet {
            bytes,
            members: count,
            elements,
        }))
    }
}
