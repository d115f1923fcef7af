//! How a commit's work is cut: items of bounded size that threads take one after the other.

use deltaic_format::Moments;
use deltaic_format::ids::TensorId;
use deltaic_format::object::{Counterparts, Schema, Snapshot, TensorSpec};
use deltaic_format::patch::PIECE_ELEMENTS;

/// Bytes of tensors that are held in memory for one item.
const ITEM_BYTES: u64 = 32 << 20;
/// Tensors of one item, so that very many small ones spread over threads.
const ITEM_TENSORS: usize = 4096;

/// A tensor to be stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task<'a> {
    /// Its place in the tree.
    pub(super) index: usize,
    /// Number of its weight file.
    pub(super) file: usize,
    /// Where it begins in the file's data.
    pub(super) offset: u64,
    pub(super) spec: &'a TensorSpec,
    /// What the first parent has in its place, if that has the same class and length.
    pub(super) parent: Option<(TensorId, Moments)>,
}

/// Work for one thread.
#[derive(Debug)]
pub(super) enum Item<'a> {
    /// Tensors of one piece each, or none, held in memory together.
    Small(Vec<Task<'a>>),
    /// A tensor of several pieces, streamed.
    Large(Task<'a>),
}

/// Cut all tensors of `schema` into items, in order.
pub(super) fn plan_items<'a>(schema: &'a Schema, parent: Option<&Snapshot>) -> Vec<Item<'a>> {
    let held = parent.map(|parent| Counterparts::new(parent, schema));
    let mut items = Vec::new();
    let mut small = Vec::new();
    let mut small_bytes = 0;
    let mut index = 0;
    for (file, spec) in schema.files.iter().enumerate() {
        let mut offset = 0;
        for tensor in &spec.tensors {
            let old = (held.as_ref()).and_then(|held| held.patchable(&spec.path, tensor));
            let task = Task {
                index,
                file,
                offset,
                spec: tensor,
                parent: old.map(|old| (old.entry.id, old.entry.moments)),
            };
            index += 1;
            offset += tensor.byte_len();
            if tensor.elements() > PIECE_ELEMENTS {
                items.push(Item::Large(task));
                continue;
            }
            if small_bytes + tensor.byte_len() > ITEM_BYTES || small.len() >= ITEM_TENSORS {
                items.push(Item::Small(std::mem::take(&mut small)));
                small_bytes = 0;
            }
            small_bytes += tensor.byte_len();
            small.push(task);
        }
    }
    if !small.is_empty() {
        items.push(Item::Small(small));
    }
    items
}
