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
    Changes, PIECE_ELEMENTS, PatchHasher, Touched, apply, diff, piece_len, touched,
};
use deltaic_format::patch_set::{self, SetBuilder};
use deltaic_format::{ElementClass, Moments};
use std::collections::BTreeMap;

/// Patches that take less than one in so many bytes of the old content's base are smaller than any new base.
pub(super) const CLOSE: u64 = 8;

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

/// The content that a tensor of one piece is diffed against.
struct Parent {
    content: Vec<u8>,
    /// Whether its chain is so long that what is made from it gets a base.
    long: bool,
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

    /// What there is to say of a tensor that the checkpoint knows to be its parent's: it is not read.
    pub(super) fn known_unchanged(&self, task: &Task<'_>) -> Option<StoredTensor> {
        let (parent, moments) = task.parent?;
        if !self.checkpoint.unchanged(task.index) {
            return None;
        }
        self.progress.advance(task.spec.byte_len());
        Some(task.unchanged(parent, moments))
    }

    pub(super) fn read_piece(&self, task: &Task<'_>, piece: u64) -> Result<Vec<u8>> {
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
        if let Some(stored) = self.known_unchanged(task) {
            made.tensors.push(stored);
            return Ok(());
        }
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
        match self.read_parent(task, from)? {
            Some(old) => {
                self.store_change(task, (from, moments), old, (id, new), builders, packs, made)
            }
            None => {
                // Nothing can be diffed against a damaged content; the new one stands alone.
                let stored = self.store_whole(task, None, &new, id, packs, made)?;
                made.tensors.push(stored);
                Ok(())
            }
        }
    }

    /// The parent's content of a tensor of one piece; `None` if it is damaged.
    fn read_parent(&self, task: &Task<'_>, from: ContentKey) -> Result<Option<Parent>> {
        let read = self.open_parent(task, from).and_then(|reader| {
            let content = reader.piece(0)?;
            check_parent(from, TensorId::of(&content))?;
            let long = reader.is_long();
            Ok(Parent { content, long })
        });
        match read {
            Ok(parent) => Ok(Some(parent)),
            Err(StoreError::Corrupt { .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// Store what turned the parent's content into `new`: as an edge, which waits for its set, or as a base.
    #[allow(
        clippy::too_many_arguments,
        reason = "two contents, and the three places that things go to"
    )]
    fn store_change(
        &self,
        task: &Task<'_>,
        (from, moments): (ContentKey, Moments),
        old: Parent,
        (id, new): (TensorId, Vec<u8>),
        builders: &mut Builders,
        packs: &mut PackWriter<'_>,
        made: &mut Made,
    ) -> Result<()> {
        let (class, elements) = (task.spec.class, task.spec.elements());
        let key = ContentKey::new(class, id);
        let changes = diff(class, &old.content, &new)?;
        let mut hasher = PatchHasher::new(class, from.id, id, elements);
        hasher.piece(0, &changes);
        let patch = Some(hasher.finish());
        if self.base_is_smaller(from, &changes, &new)? {
            let mut stored = self.store_whole(task, patch, &new, id, packs, made)?;
            stored.changed = changes.len();
            made.tensors.push(stored);
            return Ok(());
        }
        if self.is_damaged(key)? {
            let whole = self.stream_base(class, elements, packs, |_| Ok(new.clone()))?;
            self.add_base(class, elements, &whole, packs, made)?;
        }
        let sums = touched(class, 0, &old.content, &changes)?;
        let mut stored = StoredTensor {
            index: task.index,
            entry: TensorEntry {
                id,
                moments: after(from, moments, &sums)?,
                patch,
            },
            changed: changes.len(),
            patch_bytes: 0,
            same_edge: None,
        };
        if let Some(edge) = self.store.contents().sound_edge(from, id)? {
            stored.patch_bytes = edge.bytes;
            made.tensors.push(stored);
            return Ok(());
        }
        if !self.claim_edge(from, id) {
            stored.same_edge = Some((from, id));
            made.tensors.push(stored);
            return Ok(());
        }
        let builder = builders
            .entry(class)
            .or_insert_with(|| SetBuilder::new(class));
        if builder.is_full_for(elements as u32) {
            self.store_set(builder, packs, made)?;
        }
        let waiting = Waiting {
            stored,
            from,
            old: old.content,
            new,
            rebase: old.long && !self.has_base(key)?,
        };
        builder.push(elements as u32, changes, waiting);
        Ok(())
    }

    pub(super) fn has_base(&self, key: ContentKey) -> Result<bool> {
        let found = self.store.contents().find(key)?;
        Ok(found.is_some_and(|record| record.origin.base().is_some()))
    }

    pub(super) fn open_parent(
        &self,
        task: &Task<'_>,
        from: ContentKey,
    ) -> Result<ContentReader<'_>> {
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

    pub(super) fn write_set(&self, bytes: &[u8]) -> Result<u64> {
        let number = self.store.allocate_set();
        let mut batch = Batch::default();
        batch.put(Table::PatchSets, number.to_be_bytes(), bytes);
        self.store.database().write(batch)?;
        Ok(number)
    }

    /// Add an edge to `batch`; returns what is to be known of the content that it leads to.
    pub(super) fn put_edge(
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
}

impl Task<'_> {
    pub(super) fn unchanged(&self, id: TensorId, moments: Moments) -> StoredTensor {
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

    pub(super) fn whole(&self, whole: &Whole, patch: Option<PatchId>) -> StoredTensor {
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
pub(super) fn prove(from: ContentKey, changes: &Changes, old: &mut [u8], new: &[u8]) -> Result<()> {
    let applied = apply(from.class, old, changes);
    if applied.is_err() || old != new {
        return Err(StoreError::corrupt(
            format!("the new patch of {from}"),
            "what was stored does not read back as the change that was made",
        ));
    }
    Ok(())
}

pub(super) fn check_parent(from: ContentKey, found: TensorId) -> Result<()> {
    if found == from.id {
        return Ok(());
    }
    Err(StoreError::corrupt(
        from,
        "what is stored does not hash to its id",
    ))
}

pub(super) fn after(from: ContentKey, moments: Moments, sums: &Touched) -> Result<Moments> {
    match sums.forward {
        Some(delta) => Ok(moments + delta),
        None => Err(StoreError::corrupt(
            from,
            "a change leaves the range of its type",
        )),
    }
}
