//! What a holder of weights asks for and what it is sent: the vocabulary of "give me N, I hold M".
//!
//! An answer is a row of [`Delivery`]s in one fixed order: wishes by element class and then by tensor, each tensor's
//! elements ascending, in spans of at most [`SPAN_ELEMENTS`] elements. So whoever asks can go on after any of them: a
//! [`Position`] says where, in terms of tensors and elements, never of bytes, which may be encoded anew.

mod check;
mod packing;

pub use check::AnswerCheck;
pub use packing::{Answered, Packer, piece_span, spans_of_content};

use crate::error::{FormatError, Result};
use crate::ids::{CommitId, TensorId};
use crate::name::RepoName;
use crate::object::{Counterparts, Snapshot, TensorView};
use crate::patch::PIECE_ELEMENTS;
use crate::slice::{Slice, SliceMap};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Spans begin at multiples of so many elements, and end at one or with their piece: the blocks of a base, so
/// that what is stored can be sent as it is.
pub const SPAN_ELEMENTS: u64 = crate::base::BASE_BLOCK_ELEMENTS;

/// Bytes that one delivery takes about. A patch set that is sent as it is stored may take twice as many, and more than that only
/// a single span.
pub const DELIVERY_BYTES: u64 = 1 << 20;

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

/// What the asker holds in place of a run of wanted tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeldContents {
    /// Nothing.
    Nothing,
    /// Whatever the held version has in their place, as [`wishes_between`] says.
    AsVersion,
    /// These contents, one for each tensor of the run.
    Listed(Vec<TensorId>),
}

/// Neighbouring tensors of the wanted version that are wished for, and what is held in their place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WishRun {
    /// Their places among the tensors of the wanted tree.
    pub tensors: Range<usize>,
    /// What is held in their place.
    pub held: HeldContents,
}

/// "Give me N, I hold M".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchRequest {
    /// The repository.
    pub repo: RepoName,
    /// The commit that is wanted.
    pub want: CommitId,
    /// The commit that is held; `None` if no run refers to one.
    pub held: Option<CommitId>,
    /// The wanted tensors, ascending, none of them twice.
    pub wishes: Vec<WishRun>,
    /// Tensors of which only a slice is wanted (and held): everything sent for them is in the slice's coordinates.
    pub slices: BTreeMap<usize, Slice>,
}

impl FetchRequest {
    /// Ask for `wishes`, which ascend, of `want`, in as few runs as can be.
    pub fn new(
        repo: RepoName,
        want: &Snapshot,
        held: Option<&Snapshot>,
        wishes: &[TensorWish],
    ) -> Self {
        let as_version = held.map(|held| wishes_between(Some(held), want));
        let mut runs: Vec<WishRun> = Vec::new();
        for wish in wishes {
            let is_version = (as_version.as_ref()).is_some_and(|all| {
                wish.have.is_some() && all.get(wish.tensor).is_some_and(|w| w.have == wish.have)
            });
            let last = runs.last_mut().filter(|run| run.tensors.end == wish.tensor);
            match (last, is_version, wish.have) {
                (Some(run), true, _) if run.held == HeldContents::AsVersion => run.tensors.end += 1,
                (Some(run), false, None) if run.held == HeldContents::Nothing => {
                    run.tensors.end += 1;
                }
                (
                    Some(WishRun {
                        tensors,
                        held: HeldContents::Listed(ids),
                    }),
                    false,
                    Some(id),
                ) => {
                    tensors.end += 1;
                    ids.push(id);
                }
                (_, is_version, have) => runs.push(WishRun {
                    tensors: wish.tensor..wish.tensor + 1,
                    held: match have {
                        _ if is_version => HeldContents::AsVersion,
                        None => HeldContents::Nothing,
                        Some(id) => HeldContents::Listed(vec![id]),
                    },
                }),
            }
        }
        let refers = runs.iter().any(|run| run.held == HeldContents::AsVersion);
        Self {
            repo,
            want: want.id,
            held: held.map(|held| held.id).filter(|_| refers),
            wishes: runs,
            slices: BTreeMap::new(),
        }
    }

    /// Everything of `want` for someone who holds `held`, or nothing.
    pub fn all(repo: RepoName, want: &Snapshot, held: Option<&Snapshot>) -> Self {
        Self::new(repo, want, held, &wishes_between(held, want))
    }

    /// The single wishes; `held` is the commit that the request names.
    ///
    /// # Errors
    ///
    /// If runs overlap, leave the tensors that `want` has, list another number of contents than tensors, or refer to a
    /// held version where there is none; if a slice does not fit its tensor.
    pub fn wishes(&self, want: &Snapshot, held: Option<&Snapshot>) -> Result<Vec<TensorWish>> {
        let invalid = |why: String| FormatError::invalid("fetch request", why);
        let tensors = want.tree.tensors.len();
        let as_version = wishes_between(held, want);
        let mut wishes = Vec::new();
        let mut next = 0;
        for run in &self.wishes {
            let Range { start, end } = run.tensors;
            if start < next || end <= start || end > tensors {
                return Err(invalid(format!(
                    "tensors {start}..{end} overlap others, are none, or leave the {tensors} that there are"
                )));
            }
            next = end;
            match &run.held {
                HeldContents::Nothing => {
                    wishes.extend((start..end).map(|tensor| TensorWish { tensor, have: None }));
                }
                HeldContents::AsVersion if held.is_none() => {
                    return Err(invalid("it refers to a held version but names none".into()));
                }
                HeldContents::AsVersion => wishes.extend_from_slice(&as_version[start..end]),
                HeldContents::Listed(ids) if ids.len() != end - start => {
                    return Err(invalid(format!(
                        "{} contents are listed for {} tensors",
                        ids.len(),
                        end - start
                    )));
                }
                HeldContents::Listed(ids) => {
                    let wish = |(tensor, &id): (usize, &TensorId)| TensorWish {
                        tensor,
                        have: Some(id),
                    };
                    wishes.extend((start..end).zip(ids).map(wish));
                }
            }
        }
        Ok(wishes)
    }

    /// The slices' places in their tensors.
    ///
    /// # Errors
    ///
    /// If one does not fit its tensor, or there is no such tensor.
    pub fn slice_maps(&self, want: &Snapshot) -> Result<BTreeMap<usize, SliceMap>> {
        let specs: Vec<_> = want.schema.tensors().collect();
        let map = |(&tensor, slice): (&usize, &Slice)| {
            let spec = specs.get(tensor).ok_or_else(|| {
                FormatError::invalid("fetch request", format!("a slice of no tensor, {tensor}"))
            })?;
            Ok((tensor, slice.of(spec)?))
        };
        self.slices.iter().map(map).collect()
    }

    /// What tells this request from every other: 32 bytes over its canonical form.
    pub fn digest(&self) -> RequestDigest {
        let mut hasher = blake3::Hasher::new_derive_key("deltaic 2026-11-30 fetch request v1");
        let text = |hasher: &mut blake3::Hasher, text: &[u8]| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text);
        };
        text(&mut hasher, self.repo.as_str().as_bytes());
        hasher.update(self.want.as_bytes());
        text(&mut hasher, self.held.as_ref().map_or(&[][..], |id| &id.0));
        hasher.update(&(self.wishes.len() as u64).to_le_bytes());
        for run in &self.wishes {
            hasher.update(&(run.tensors.start as u64).to_le_bytes());
            hasher.update(&(run.tensors.end as u64).to_le_bytes());
            match &run.held {
                HeldContents::Nothing => hasher.update(&[0]),
                HeldContents::AsVersion => hasher.update(&[1]),
                HeldContents::Listed(ids) => {
                    hasher.update(&[2]);
                    ids.iter().for_each(|id| {
                        hasher.update(id.as_bytes());
                    });
                    &mut hasher
                }
            };
        }
        for (&tensor, slice) in &self.slices {
            hasher.update(&(tensor as u64).to_le_bytes());
            hasher.update(&(slice.ranges().len() as u64).to_le_bytes());
            for range in slice.ranges() {
                hasher.update(&range.start.to_le_bytes());
                hasher.update(&range.end.to_le_bytes());
            }
        }
        RequestDigest(*hasher.finalize().as_bytes())
    }
}

/// What tells a request from every other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestDigest(pub [u8; 32]);

/// How a tensor is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AnswerKind {
    /// By patches.
    Patches,
    /// By its content.
    Content,
}

/// A place in the answer to a request: what comes before it was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    /// Number of the wish, in the order of the answer, that comes next.
    pub wish: u64,
    /// The element that comes next, of the tensor or of the slice that is wanted of it; 0 if nothing of it came yet.
    pub element: u64,
    /// How the tensor is being answered, if something of it came: it goes on like that.
    pub kind: Option<AnswerKind>,
}

/// Elements of a tensor of the wanted tree, or of the slice of it that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// The tensor's place among the tensors of the wanted tree.
    pub tensor: usize,
    /// Flat index of the first element, a multiple of [`SPAN_ELEMENTS`].
    pub first: u64,
    /// How many; the span does not leave its piece.
    pub elements: u64,
}

impl Span {
    /// The piece that it lies in.
    pub fn piece(&self) -> u64 {
        self.first / PIECE_ELEMENTS
    }

    /// The element after its last.
    pub fn end(&self) -> u64 {
        self.first.saturating_add(self.elements)
    }

    /// Whether it is one that an answer about a tensor, or slice, of `elements` elements can have: it begins where
    /// spans begin, and ends where they end.
    pub fn is_of(&self, elements: u64) -> bool {
        let piece_end = (self.piece() + 1)
            .saturating_mul(PIECE_ELEMENTS)
            .min(elements);
        self.elements > 0
            && self.first.is_multiple_of(SPAN_ELEMENTS)
            && self.end() <= piece_end
            && (self.end() == piece_end || self.end().is_multiple_of(SPAN_ELEMENTS))
    }
}

/// One part of an answer. A tensor is answered by patches throughout, or by contents throughout, its spans
/// ascending; a wished tensor of which nothing is sent is unchanged. Nothing here is trusted:
/// receivers decode, check and prove it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// A patch set (SPEC.md §6) of composed patches from what the asker holds to what it wants.
    Patches {
        /// What its members are, in order: the changes of each count from the span's first element.
        members: Arc<[Span]>,
        /// The encoded set.
        bytes: Bytes,
    },
    /// A span's content, as a base (SPEC.md §7).
    Content {
        /// Which span.
        span: Span,
        /// The encoded base.
        bytes: Bytes,
    },
}

impl Delivery {
    /// Bytes that travel.
    pub fn len(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// Whether nothing travels, which no delivery is.
    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    /// What is encoded.
    pub fn bytes(&self) -> &Bytes {
        match self {
            Self::Patches { bytes, .. } | Self::Content { bytes, .. } => bytes,
        }
    }
}

/// A delivery and where the answer goes on after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// What is sent.
    pub delivery: Delivery,
    /// Where to go on.
    pub next: Position,
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
