//! What a holder of weights asks for and what it is sent: the vocabulary of "give me N, I hold M".

use crate::ids::TensorId;
use crate::object::{Counterparts, Snapshot, TensorView};

/// One tensor of the wanted version, and what the asker holds in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorWish {
    /// Its place among the tensors of the wanted tree.
    pub tensor: usize,
    /// Content that the asker holds, of the same class and element count; `None` if it holds nothing.
    pub have: Option<TensorId>,
}

/// The wishes of someone who holds all of `from`, or nothing, and wants all of `to`.
pub fn wishes_between(from: Option<&Snapshot>, to: &Snapshot) -> Vec<TensorWish> {
    let held = from.map(|from| Counterparts::new(from, &to.schema));
    let wish = |view: TensorView<'_>| {
        let old = (held.as_ref()).and_then(|held| held.patchable(view.path, view.spec));
        TensorWish {
            tensor: view.index,
            have: old.map(|old| old.entry.id),
        }
    };
    to.tensors().into_iter().map(wish).collect()
}

/// A piece of a tensor of the wanted tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PieceRef {
    /// The tensor's place among the tensors of the wanted tree.
    pub tensor: usize,
    /// Number of the piece.
    pub piece: u64,
}

/// One part of an answer. A tensor is answered by patches throughout, or by contents throughout, its pieces
/// in ascending order; a wished tensor of which nothing is sent is unchanged. Nothing here is trusted:
/// receivers decode, check and prove it.
#[derive(Debug, Clone, Copy)]
pub enum Delivery<'a> {
    /// A patch set (SPEC.md §6) of composed patches from what the asker holds to what it wants.
    Patches {
        /// What its members are, in order.
        members: &'a [PieceRef],
        /// The encoded set.
        bytes: &'a [u8],
    },
    /// A piece's whole content, as a base (SPEC.md §7).
    Content {
        /// Which piece.
        piece: PieceRef,
        /// The encoded base.
        bytes: &'a [u8],
    },
}

impl Delivery<'_> {
    /// Bytes that travel.
    pub fn len(&self) -> u64 {
        match self {
            Self::Patches { bytes, .. } | Self::Content { bytes, .. } => bytes.len() as u64,
        }
    }

    /// Whether nothing travels, which no delivery is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a fetch takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FetchPlan {
    /// Wished tensors that the asker holds already.
    pub unchanged: u64,
    /// Wished tensors that come as a composed patch.
    pub patched: u64,
    /// Wished tensors that come whole.
    pub whole: u64,
    /// Edges on the longest path that is composed.
    pub longest_path: u64,
    /// Bytes that would travel at most: the edges' own bytes, which composing only makes smaller, and contents.
    pub bytes: u64,
}
