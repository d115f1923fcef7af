//! Storing tensors: an edge from the parent's content where that is smaller, else a base.

use super::base::Whole;
use super::item::{Item, Task};
use super::{Made, Writing};
use crate::contents::ContentReader;
use crate::database::{Batch, Table};
use crate::error::{Result, StoreError};
use crate::packs::PackWriter;
use crate::records::{ContentKey, ContentRecord, EdgeRecord, Origin, PieceLocation, edge_key};
use deltaic_format::ids::{PatchId, TensorId};
use deltaic_format::object::TensorEntry;
use deltaic_format::patch::{
    Changes, PIECE_ELEMENTS, PatchHasher, Touched, apply, diff, piece_count, piece_len, touched,
};
use deltaic_format::patch_set::{self, SetBuilder};
use deltaic_format::{ElementClass, Moments};
use std::collections::BTreeMap;

/// Patches that take less than one in so many bytes of the old content's base are smaller than any new base.
const CLOSE: u64 = 8;

/// A tensor that is stored.
pub(crate) struct StoredTensor {
    pub(crate) index: usize,
    pub(crate) entry: TensorEntry,
    pub(crate) changed: u64,
    /// What the change takes as stored.
    pub(crate) patch_bytes: u64,
    /// The edge that another tensor of the commit stores, whose bytes this one takes too.
    pub(crate) same_edge: Option<(ContentKey, TensorId)>,
}

/// A changed small tensor whose patch waits in a set, with both contents to prove it by.
struct Waiting {
    stored: StoredTensor,
    from: ContentKey,
    old: Vec<u8>,
    new: Vec<u8>,
    /// Whether the parent's chain is so long that the new content gets a base as well.
    rebase: bool,
}

type Builders = BTreeMap<ElementClass, SetBuilder<Waiting>>;

impl Writing<'_> {
    pub(super) fn store_item(
        &self,
        item: &Item<'_>,
        packs: &mut PackWriter<'_>,
        made: &mut Made,
    ) -> Result<()> {
        match item {
            Item::Large(task) => self.store_large(task, packs, made),
            Item::Small(tasks) => {
                let mut builders = Builders::new();
                for task in tasks {
                    self.check_cancelled()?;
                    self.store_small(task, &mut builders, packs, made)?;
                }
                for builder in builders.values_mut() {
                    self.store_set(builder, packs, made)?;
                }
                Ok(())
            }
        }
    }

    fn read_piece(&self, task: &Task<'_>, piece: u64) -> Result<Vec<u8>> {
        let width = task.spec.class.width() as u64;
        let len = piece_len(task.spec.elements(), piece) * width;
        let mut content = vec![0; len as usize];
        let offset = task.offset + piece * PIECE_ELEMENTS * width;
        self.checkpoint
            .read_data(task.file, offset, &mut content)
            .map_err(|what| StoreError::Checkpoint { what })?;
        Ok(content)
    }

    fn store_small(
        &self,
        task: &Task<'_>,
        builders: &mut Builders,
        packs: &mut PackWriter<'_>,
        made: &mut Made,
    ) -> Result<()> {
        let class = task.spec.class;
        let new = self.read_piece(task, 0)?;
        self.progress.advance(new.len() as u64);
        let id = TensorId::of(&new);
        let Some((parent, moments)) = task.parent else {
            let stored = self.store_whole(task, None, &new, id, packs, made)?;
            made.tensors.push(stored);
            return Ok(());
        };
        if parent == id {
            made.tensors.push(task.unchanged(parent, moments));
            return Ok(());
        }
        let from = ContentKey::new(class, parent);
        let read = self.open_parent(task, from).and_then(|reader| {
            let old = reader.piece(0)?;
            check_parent(from, TensorId::of(&old))?;
            Ok((old, reader.is_long()))
        });
        let (old, long) = match read {
            Ok(read) => read,
            // Nothing can be diffed against a damaged content; the new one stands alone.
            Err(StoreError::Corrupt { .. }) => {
                let stored = self.store_whole(task, None, &new, id, packs, made)?;
                made.tensors.push(stored);
                return Ok(());
            }
            Err(other) => return Err(other),
        };
        let changes = diff(class, &old, &new)?;
        let mut hasher = PatchHasher::new(class, parent, id, task.spec.elements());
        hasher.piece(0, &changes);
        let patch = hasher.finish();
        if self.base_is_smaller(from, &changes, &new)? {
            let mut stored = self.store_whole(task, Some(patch), &new, id, packs, made)?;
            stored.changed = changes.len();
            made.tensors.push(stored);
            return Ok(());
        }
        let sums = touched(class, 0, &old, &changes)?;
        let stored = StoredTensor {
            index: task.index,
            entry: TensorEntry {
                id,
                moments: after(from, moments, &sums)?,
                patch: Some(patch),
            },
            changed: changes.len(),
            patch_bytes: 0,
            same_edge: None,
        };
        let key = ContentKey::new(class, id);
        if self.is_damaged(key)? {
            let elements = task.spec.elements();
            let whole = self.stream_base(class, elements, packs, |_| Ok(new.clone()))?;
            self.add_base(class, elements, &whole, packs, made)?;
        }
        if let Some(edge) = self.store.contents().sound_edge(from, id)? {
            made.tensors.push(StoredTensor {
                patch_bytes: edge.bytes,
                ..stored
            });
            return Ok(());
        }
        if !self.claim_edge(from, id) {
            made.tensors.push(StoredTensor {
                same_edge: Some((from, id)),
                ..stored
            });
            return Ok(());
        }
        let builder = builders
            .entry(class)
            .or_insert_with(|| SetBuilder::new(class));
        let elements = task.spec.elements() as u32;
        if builder.is_full_for(elements) {
            self.store_set(builder, packs, made)?;
        }
        let waiting = Waiting {
            stored,
            from,
            old,
            new,
            rebase: long && !self.has_base(ContentKey::new(class, id))?,
        };
        builder.push(elements, changes, waiting);
        Ok(())
    }

    fn has_base(&self, key: ContentKey) -> Result<bool> {
        let found = self.store.contents().find(key)?;
        Ok(found.is_some_and(|record| record.origin.base().is_some()))
    }

    fn open_parent(&self, task: &Task<'_>, from: ContentKey) -> Result<ContentReader<'_>> {
        let reader = self.store.contents().open(from)?;
        if reader.elements() != task.spec.elements() {
            return Err(StoreError::corrupt(
                from,
                "it has another number of elements than its tree says",
            ));
        }
        Ok(reader)
    }

    /// Whether the base of `new` takes less than the patch to it. Making it is worth it only if the patch is not much
    /// smaller than what the old content takes as a base.
    fn base_is_smaller(&self, from: ContentKey, changes: &Changes, new: &[u8]) -> Result<bool> {
        let whole = self.store.contents().record(from)?.whole_bytes;
        // A change takes at most its shift and a few bits of position.
        let most = changes.len().saturating_mul(from.class.width() as u64 + 2);
        if most < whole / CLOSE {
            return Ok(false);
        }
        let elements = (new.len() / from.class.width()) as u32;
        let set = patch_set::encode(from.class, &[(elements, changes)])?;
        let patch = set.bytes.len() as u64 - set.overhead;
        if patch < whole / CLOSE {
            return Ok(false);
        }
        Ok(deltaic_format::base::encode_base(from.class, new).len() as u64 <= patch)
    }

    /// Store a tensor of one piece as a base, unless its content is there already.
    fn store_whole(
        &self,
        task: &Task<'_>,
        patch: Option<PatchId>,
        content: &[u8],
        id: TensorId,
        packs: &mut PackWriter<'_>,
        made: &mut Made,
    ) -> Result<StoredTensor> {
        let class = task.spec.class;
        let elements = task.spec.elements();
        let key = ContentKey::new(class, id);
        let known = match self.is_sound(key)? {
            true => self.store.contents().find(key)?,
            false => None,
        };
        let whole = match known {
            Some(record) => Whole {
                id,
                moments: record.moments,
                base_len: record.whole_bytes,
            },
            None => {
                let whole = self.stream_base(class, elements, packs, |_| Ok(content.to_vec()))?;
                self.keep_base(class, elements, &whole, packs, made)?;
                whole
            }
        };
        Ok(task.whole(&whole, patch))
    }

    /// Close a set, write it, read it back, prove each member by both contents, and only then add the edges.
    fn store_set(
        &self,
        builder: &mut SetBuilder<Waiting>,
        packs: &mut PackWriter<'_>,
        made: &mut Made,
    ) -> Result<()> {
        let Some(set) = builder.close()? else {
            return Ok(());
        };
        let number = self.write_set(&set.encoded.bytes)?;
        let read_back = self.store.contents().read_set(number)?;
        let mut batch = Batch::default();
        let mut contents = Vec::with_capacity(set.members.len());
        let mut rebased = Vec::new();
        let members = (set.members.into_iter())
            .zip(read_back)
            .zip(&set.encoded.member_bytes);
        for (member, (((_, mut waiting), changes), &bytes)) in members.enumerate() {
            prove(waiting.from, &changes, &mut waiting.old, &waiting.new)?;
            let Waiting {
                mut stored,
                from,
                new,
                ..
            } = waiting;
            stored.patch_bytes = bytes;
            let location = PieceLocation {
                piece: 0,
                set: number,
                member: member as u32,
            };
            let elements = (new.len() / from.class.width()) as u64;
            contents.push(self.put_edge(&mut batch, from, &stored, elements, vec![location])?);
            if waiting.rebase {
                rebased.push((ContentKey::new(from.class, stored.entry.id), new));
            }
            made.tensors.push(stored);
        }
        self.write_with_contents(batch, contents)?;
        for (key, new) in rebased {
            let elements = (new.len() / key.class.width()) as u64;
            let whole = self.stream_base(key.class, elements, packs, |_| Ok(new.clone()))?;
            self.add_base(key.class, elements, &whole, packs, made)?;
        }
        Ok(())
    }

    fn write_set(&self, bytes: &[u8]) -> Result<u64> {
        let number = self.store.allocate_set();
        let mut batch = Batch::default();
        batch.put(Table::PatchSets, number.to_be_bytes(), bytes);
        self.store.database().write(batch)?;
        Ok(number)
    }

    /// Add an edge to `batch`; returns what is to be known of the content that it leads to.
    fn put_edge(
        &self,
        batch: &mut Batch,
        from: ContentKey,
        stored: &StoredTensor,
        elements: u64,
        pieces: Vec<PieceLocation>,
    ) -> Result<(ContentKey, ContentRecord)> {
        let TensorEntry { id, moments, patch } = stored.entry;
        let edge = EdgeRecord {
            patch: patch.ok_or_else(|| StoreError::corrupt(from, "an edge without a patch id"))?,
            changed: stored.changed,
            bytes: stored.patch_bytes,
            pieces,
        };
        let to = ContentKey::new(from.class, id);
        batch.put(Table::Edges, edge_key(from, id), edge.to_bytes());
        batch.put(Table::EdgesBack, edge_key(to, from.id), b"");
        let record = ContentRecord {
            elements,
            moments,
            whole_bytes: self.store.contents().record(from)?.whole_bytes,
            origin: Origin::Edge(from.id),
        };
        Ok((to, record))
    }

    fn store_large(
        &self,
        task: &Task<'_>,
        packs: &mut PackWriter<'_>,
        made: &mut Made,
    ) -> Result<()> {
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

impl Task<'_> {
    fn unchanged(&self, id: TensorId, moments: Moments) -> StoredTensor {
        StoredTensor {
            index: self.index,
            entry: TensorEntry {
                id,
                moments,
                patch: None,
            },
            changed: 0,
            patch_bytes: 0,
            same_edge: None,
        }
    }

    fn whole(&self, whole: &Whole, patch: Option<PatchId>) -> StoredTensor {
        StoredTensor {
            index: self.index,
            entry: TensorEntry {
                id: whole.id,
                moments: whole.moments,
                patch,
            },
            changed: self.spec.elements(),
            patch_bytes: whole.base_len,
            same_edge: None,
        }
    }
}

/// What was read back of a patch turns the old content into the new one.
fn prove(from: ContentKey, changes: &Changes, old: &mut [u8], new: &[u8]) -> Result<()> {
    let applied = apply(from.class, old, changes);
    if applied.is_err() || old != new {
        return Err(StoreError::corrupt(
            format!("the new patch of {from}"),
            "what was stored does not read back as the change that was made",
        ));
    }
    Ok(())
}

fn check_parent(from: ContentKey, found: TensorId) -> Result<()> {
    if found == from.id {
        return Ok(());
    }
    Err(StoreError::corrupt(
        from,
        "what is stored does not hash to its id",
    ))
}

fn after(from: ContentKey, moments: Moments, sums: &Touched) -> Result<Moments> {
    match sums.forward {
        Some(delta) => Ok(moments + delta),
        None => Err(StoreError::corrupt(
            from,
            "a change leaves the range of its type",
        )),
    }
}
