//! Exact sparse patches (SPEC.md §2 to §5): made by [`diff`], added by [`compose`], undone by
//! [`Changes::negate`], written by [`apply`], named by [`PatchHasher`].
//!
//! Everything works on one *piece* (2²² elements) at a time, so that memory is bounded whatever a tensor's
//! size; [`Patch`] holds all pieces of one tensor for callers that can afford it.

mod apply;
mod changes;
mod compose;
mod diff;

pub use apply::{Touched, apply, touched, words_after, write_words};
pub use changes::{ChangedBlock, Changes, ChangesBuilder};
pub use compose::compose;
pub use diff::diff;

use crate::dtype::ElementClass;
use crate::error::{FormatError, Result};
use crate::ids::{PatchId, TensorId};
use crate::moments::Moments;

/// Elements of a piece.
pub const PIECE_ELEMENTS: u64 = 1 << 22;

/// Elements of the blocks in which changes are held in memory and hashed.
pub const BLOCK_ELEMENTS: u64 = 1 << 16;

/// Number of pieces of a tensor.
pub const fn piece_count(elements: u64) -> u64 {
    elements.div_ceil(PIECE_ELEMENTS)
}

/// Number of elements of piece `piece` of a tensor; 0 past its end.
pub const fn piece_len(elements: u64, piece: u64) -> u64 {
    let left = elements.saturating_sub(piece * PIECE_ELEMENTS);
    if left < PIECE_ELEMENTS {
        left
    } else {
        PIECE_ELEMENTS
    }
}

/// Hashes a patch, piece by piece, into its [`PatchId`] (SPEC.md §4).
#[derive(Debug, Clone)]
pub struct PatchHasher {
    class: ElementClass,
    hasher: blake3::Hasher,
    scratch: Vec<u8>,
}

impl PatchHasher {
    /// Begin the id of the patch from `from` to `to`, both of `elements` elements of `class`.
    pub fn new(class: ElementClass, from: TensorId, to: TensorId, elements: u64) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("deltaic 2026-11-30 patch v1");
        hasher.update(&[class.number()]);
        hasher.update(from.as_bytes());
        hasher.update(to.as_bytes());
        hasher.update(&elements.to_le_bytes());
        Self {
            class,
            hasher,
            scratch: Vec::new(),
        }
    }

    /// Add piece number `piece`; pieces come in ascending order, those without changes may be left out.
    pub fn piece(&mut self, piece: u64, changes: &Changes) {
        for block in changes.blocks() {
            let number = piece * (PIECE_ELEMENTS / BLOCK_ELEMENTS) + u64::from(block.number);
            let out = &mut self.scratch;
            out.clear();
            out.extend_from_slice(&number.to_le_bytes());
            out.extend_from_slice(&(block.shifts.len() as u32).to_le_bytes());
            for index in &block.index {
                out.extend_from_slice(&(index as u16).to_le_bytes());
            }
            match self.class.width() {
                1 => block
                    .shifts
                    .iter()
                    .for_each(|&d| out.extend_from_slice(&(d as i16).to_le_bytes())),
                2 => block
                    .shifts
                    .iter()
                    .for_each(|&d| out.extend_from_slice(&(d as i32).to_le_bytes())),
                _ => block
                    .shifts
                    .iter()
                    .for_each(|&d| out.extend_from_slice(&d.to_le_bytes())),
            }
            self.hasher.update(out);
        }
    }

    /// The id.
    pub fn finish(&self) -> PatchId {
        PatchId(*self.hasher.finalize().as_bytes())
    }
}

/// The whole patch of one tensor, in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Patch {
    /// What the elements are.
    pub class: ElementClass,
    /// Content that the patch starts from.
    pub from: TensorId,
    /// Content that it leads to.
    pub to: TensorId,
    /// Elements of both.
    pub elements: u64,
    /// The changes, piece by piece.
    pub pieces: Vec<Changes>,
}

impl Patch {
    /// The patch between two contents of the same length.
    ///
    /// # Errors
    ///
    /// If the lengths differ or are no whole number of elements.
    pub fn diff(class: ElementClass, old: &[u8], new: &[u8]) -> Result<Self> {
        let piece_bytes = PIECE_ELEMENTS as usize * class.width();
        if old.len() != new.len() {
            return Err(FormatError::invalid(
                "patch",
                format!(
                    "{} bytes against {}: a change of size has no patch",
                    old.len(),
                    new.len()
                ),
            ));
        }
        let pieces = old
            .chunks(piece_bytes)
            .zip(new.chunks(piece_bytes))
            .map(|(old, new)| diff(class, old, new))
            .collect::<Result<_>>()?;
        Ok(Self {
            class,
            from: TensorId::of(old),
            to: TensorId::of(new),
            elements: (old.len() / class.width()) as u64,
            pieces,
        })
    }

    /// Number of changed elements.
    pub fn changed(&self) -> u64 {
        self.pieces.iter().map(Changes::len).sum()
    }

    /// The patch's id.
    pub fn id(&self) -> PatchId {
        let mut hasher = PatchHasher::new(self.class, self.from, self.to, self.elements);
        for (piece, changes) in self.pieces.iter().enumerate() {
            hasher.piece(piece as u64, changes);
        }
        hasher.finish()
    }

    /// The patch from `self.from` to `next.to`.
    ///
    /// # Errors
    ///
    /// If `next` does not begin where `self` ends, or a sum of shifts leaves the range of the class.
    pub fn then(&self, next: &Self) -> Result<Self> {
        if (self.class, self.to, self.elements) != (next.class, next.from, next.elements) {
            return Err(FormatError::invalid(
                "patch",
                "composed with a patch that does not begin where it ends",
            ));
        }
        let pieces = (self.pieces.iter().zip(&next.pieces))
            .map(|(first, second)| compose(self.class, &[first, second]))
            .collect::<Result<_>>()?;
        Ok(Self {
            to: next.to,
            pieces,
            ..*self
        })
    }

    /// The patch that leads back.
    #[must_use]
    pub fn negate(mut self) -> Self {
        std::mem::swap(&mut self.from, &mut self.to);
        self.pieces.iter_mut().for_each(Changes::negate);
        self
    }

    /// Apply to `content` in place; nothing is written on error.
    ///
    /// # Errors
    ///
    /// If the content has another length or a shift leaves the range of the class.
    pub fn apply(&self, content: &mut [u8]) -> Result<()> {
        let width = self.class.width();
        if content.len() as u64 != self.elements * width as u64 {
            return Err(FormatError::OutOfBounds {
                element: self.elements,
                elements: (content.len() / width) as u64,
            });
        }
        let piece_bytes = PIECE_ELEMENTS as usize * width;
        let after = (content.chunks(piece_bytes).zip(&self.pieces))
            .map(|(bytes, changes)| words_after(self.class, bytes, changes))
            .collect::<Result<Vec<_>>>()?;
        for ((bytes, changes), words) in
            (content.chunks_mut(piece_bytes).zip(&self.pieces)).zip(&after)
        {
            write_words(self.class, bytes, changes, words);
        }
        Ok(())
    }

    /// What the patch adds to the first moment and, on `content`, to the second (SPEC.md §5).
    ///
    /// # Errors
    ///
    /// If a change lies past the end of `content`.
    pub fn touched(&self, content: &[u8]) -> Result<Touched> {
        let piece_bytes = PIECE_ELEMENTS as usize * self.class.width();
        let mut sum = Touched::default();
        for (piece, (bytes, changes)) in content.chunks(piece_bytes).zip(&self.pieces).enumerate() {
            sum.add(&touched(
                self.class,
                piece as u64 * PIECE_ELEMENTS,
                bytes,
                changes,
            )?);
        }
        Ok(sum)
    }

    /// The moments of `to`, from those of `from` and the content of `from`.
    ///
    /// # Errors
    ///
    /// If the patch does not fit `content`.
    pub fn moments_after(&self, before: Moments, content: &[u8]) -> Result<Moments> {
        self.touched(content)?
            .forward
            .map(|delta| before + delta)
            .ok_or(FormatError::ShiftOutOfRange { element: 0 })
    }
}
