//! Comparing two contents of a tensor: what the patch between them is, and what it takes.

use crate::contents::Contents;
use crate::error::Result;
use crate::records::ContentKey;
use deltaic_format::ids::{PatchId, TensorId};
use deltaic_format::patch::{PatchHasher, diff, piece_count, piece_len};
use deltaic_format::patch_set;

/// What leads from one content of a tensor to another.
pub(crate) struct Between {
    pub(crate) patch: PatchId,
    pub(crate) changed: u64,
    pub(crate) plus_one: u64,
    pub(crate) minus_one: u64,
    /// What it takes: the patch encoded alone, or the whole content where that is smaller.
    pub(crate) bytes: u64,
}

impl Contents {
    /// Compare two contents of one class and length: by the path between them, or where there is none by reading both.
    pub(crate) fn compare(&self, from: TensorId, to: ContentKey, elements: u64) -> Result<Between> {
        let whole_bytes = self.record(to)?.whole_bytes;
        let route = self.route_between(from, to, whole_bytes)?;
        let readers = match route {
            Some(_) => None,
            None => Some((self.open(ContentKey::new(to.class, from))?, self.open(to)?)),
        };
        let mut hasher = PatchHasher::new(to.class, from, to.id, elements);
        let (mut changed, mut plus_one, mut minus_one, mut bytes) = (0, 0, 0, 0);
        for piece in 0..piece_count(elements) {
            let changes = match (&route, &readers) {
                (Some(route), _) => self.compose_piece(to, &route.steps, piece)?,
                (None, Some((old, new))) => diff(to.class, &old.piece(piece)?, &new.piece(piece)?)?,
                (None, None) => unreachable!("without a route both contents are open"),
            };
            hasher.piece(piece, &changes);
            changed += changes.len();
            for (_, shift) in changes.iter() {
                plus_one += u64::from(shift == 1);
                minus_one += u64::from(shift == -1);
            }
            let member = (piece_len(elements, piece) as u32, &changes);
            bytes += patch_set::encode(to.class, &[member])?.bytes.len() as u64;
        }
        Ok(Between {
            patch: hasher.finish(),
            changed,
            plus_one,
            minus_one,
            bytes: bytes.min(whole_bytes),
        })
    }
}
