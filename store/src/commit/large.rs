//! Storing tensors of several pieces, which are never held in memory whole.

use super::base::Whole;
use super::item::Task;
use super::tensor::{CLOSE, StoredTensor, after, check_parent, prove};
use super::{Made, Writing};
use crate::database::{Batch, Table};
use crate::error::{Result, StoreError};
use crate::packs::PackWriter;
use crate::records::{ContentKey, PieceLocation};
use deltaic_format::ids::{PatchId, TensorId};
use deltaic_format::object::TensorEntry;
use deltaic_format::patch::{
    PIECE_ELEMENTS, PatchHasher, Touched, diff, piece_count, piece_len, touched,
};
use deltaic_format::patch_set;

/// An edge whose pieces are stored while the tensor streams by.
struct StreamedEdge {
    id: TensorId,
    sums: Touched,
    changed: u64,
    bytes: u64,
    pieces: Vec<PieceLocation>,
    /// Whether the parent's chain is so long that the new content gets a base as well.
    rebase: bool,
}

impl Writing<'_> {
    pub(super) fn store_large(
        &self,
        task: &Task<'_>,
        packs: &mut PackWriter<'_>,
        made: &mut Made,
    ) -> Result<()> {
        if let Some(stored) = self.known_unchanged(task) {
            made.tensors.push(stored);
            return Ok(());
        }
        let class = task.spec.class;
        let elements = task.spec.elements();
        let Some((parent, moments)) = task.parent else {
            let whole =
                self.stream_base(class, elements, packs, |piece| self.read_piece(task, piece))?;
            self.keep_base(class, elements, &whole, packs, made)?;
            made.tensors.push(task.whole(&whole, None));
            return Ok(());
        };
        let from = ContentKey::new(class, parent);
        let streamed = match self.stream_edge(task, from) {
            Ok(streamed) => streamed,
            // Nothing can be diffed against a damaged content; the new one stands alone, and mends it if it is the same.
            Err(StoreError::Corrupt { .. }) => {
                let read = |piece| self.read_piece(task, piece);
                let whole = self.stream_base(class, elements, packs, read)?;
                self.keep_base(class, elements, &whole, packs, made)?;
                made.tensors.push(match whole.id == parent {
                    true => task.unchanged(parent, moments),
                    false => task.whole(&whole, None),
                });
                return Ok(());
            }
            Err(other) => return Err(other),
        };
        if streamed.id == parent {
            made.tensors.push(task.unchanged(parent, moments));
            return Ok(());
        }
        let patch = self.patch_id(task, from, &streamed)?;
        let mut stored = StoredTensor {
            index: task.index,
            entry: TensorEntry {
                id: streamed.id,
                moments: after(from, moments, &streamed.sums)?,
                patch: Some(patch),
            },
            changed: streamed.changed,
            patch_bytes: streamed.bytes,
            same_edge: None,
        };
        let key = ContentKey::new(class, streamed.id);
        if self.is_damaged(key)? {
            let whole = self.stream_same_base(task, streamed.id, packs)?;
            self.add_base(class, elements, &whole, packs, made)?;
        }
        if let Some(edge) = self.store.contents().sound_edge(from, streamed.id)? {
            stored.patch_bytes = edge.bytes;
            self.take_back_sets(&streamed)?;
        } else if let Some(whole) = self.smaller_base(task, from, &streamed, packs)? {
            stored.patch_bytes = whole.base_len;
            self.keep_base(class, elements, &whole, packs, made)?;
            self.take_back_sets(&streamed)?;
        } else {
            let mut batch = Batch::default();
            let rebase = streamed.rebase && !self.has_base(key)?;
            let content = self.put_edge(&mut batch, from, &stored, elements, streamed.pieces)?;
            self.write_with_contents(batch, [content])?;
            if rebase {
                let whole = self.stream_same_base(task, stored.entry.id, packs)?;
                self.add_base(class, elements, &whole, packs, made)?;
            }
        }
        made.tensors.push(stored);
        Ok(())
    }

    /// Remove the sets of an edge that turned out not to be needed.
    fn take_back_sets(&self, edge: &StreamedEdge) -> Result<()> {
        let mut batch = Batch::default();
        for location in &edge.pieces {
            batch.delete(Table::PatchSets, location.set.to_be_bytes());
        }
        self.store.database().take_back(batch, edge.bytes)
    }

    /// Diff a tensor of several pieces against the parent's content, storing and proving each piece as it goes.
    fn stream_edge(&self, task: &Task<'_>, from: ContentKey) -> Result<StreamedEdge> {
        let mut edge = StreamedEdge {
            id: from.id,
            sums: Touched::default(),
            changed: 0,
            bytes: 0,
            pieces: Vec::new(),
            rebase: false,
        };
        match self.stream_pieces(task, from, &mut edge) {
            Ok(()) => Ok(edge),
            Err(error) => {
                // What was stored so far leads nowhere; the first error is the one to tell.
                let _ = self.take_back_sets(&edge);
                Err(error)
            }
        }
    }

    fn stream_pieces(
        &self,
        task: &Task<'_>,
        from: ContentKey,
        edge: &mut StreamedEdge,
    ) -> Result<()> {
        let class = task.spec.class;
        let reader = self.open_parent(task, from)?;
        let (mut old_hasher, mut new_hasher) = (blake3::Hasher::new(), blake3::Hasher::new());
        edge.rebase = reader.is_long();
        for piece in 0..piece_count(task.spec.elements()) {
            self.check_cancelled()?;
            let new = self.read_piece(task, piece)?;
            self.progress.advance(new.len() as u64);
            let mut old = reader.piece(piece)?;
            new_hasher.update(&new);
            old_hasher.update(&old);
            let changes = diff(class, &old, &new)?;
            if changes.is_empty() {
                continue;
            }
            edge.changed += changes.len();
            edge.sums
                .add(&touched(class, piece * PIECE_ELEMENTS, &old, &changes)?);
            let elements = piece_len(task.spec.elements(), piece) as u32;
            let bytes = patch_set::encode(class, &[(elements, &changes)])?.bytes;
            let set = self.write_set(&bytes)?;
            edge.bytes += bytes.len() as u64;
            edge.pieces.push(PieceLocation {
                piece,
                set,
                member: 0,
            });
            let read_back = self.store.contents().read_set(set)?;
            prove(
                from,
                &read_back.into_iter().next().unwrap_or_default(),
                &mut old,
                &new,
            )?;
        }
        check_parent(from, TensorId(*old_hasher.finalize().as_bytes()))?;
        edge.id = TensorId(*new_hasher.finalize().as_bytes());
        Ok(())
    }

    /// The id of a streamed edge: it covers the content's id, known only at the end, so the pieces are read again.
    fn patch_id(&self, task: &Task<'_>, from: ContentKey, edge: &StreamedEdge) -> Result<PatchId> {
        let mut hasher = PatchHasher::new(from.class, from.id, edge.id, task.spec.elements());
        for location in &edge.pieces {
            let changes = self.store.contents().read_set(location.set)?;
            hasher.piece(
                location.piece,
                &changes.into_iter().next().unwrap_or_default(),
            );
        }
        Ok(hasher.finish())
    }

    /// Read a tensor of several pieces a second time, and append its base to a pack.
    fn stream_same_base(
        &self,
        task: &Task<'_>,
        id: TensorId,
        packs: &mut PackWriter<'_>,
    ) -> Result<Whole> {
        let elements = task.spec.elements();
        let read = |piece| self.read_piece(task, piece);
        let whole = self.stream_base(task.spec.class, elements, packs, read)?;
        if whole.id == id {
            return Ok(whole);
        }
        Err(StoreError::Checkpoint {
            what: format!("tensor {:?} changed while it was read", task.spec.name),
        })
    }

    /// Where the patch is large, make the base as well, and keep it in the pack if it is the smaller.
    fn smaller_base(
        &self,
        task: &Task<'_>,
        from: ContentKey,
        edge: &StreamedEdge,
        packs: &mut PackWriter<'_>,
    ) -> Result<Option<Whole>> {
        let whole = self.store.contents().record(from)?.whole_bytes;
        if edge.bytes < whole / CLOSE {
            return Ok(None);
        }
        let whole = self.stream_same_base(task, edge.id, packs)?;
        if whole.base_len <= edge.bytes {
            return Ok(Some(whole));
        }
        packs.discard_base()?;
        Ok(None)
    }
}
