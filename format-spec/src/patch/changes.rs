//! The changes of one piece: per block of 65,536 elements a roaring bitmap and the shifts beside it.

use super::{BLOCK_ELEMENTS, PIECE_ELEMENTS};
use crate::error::{FormatError, Result};
use crate::moments::Weights;
use roaring::RoaringBitmap;
use std::ops::Range;

/// Changed elements of one block of 65,536 elements and how far each moved.
#[derive(Debug, Clone, PartialEq)]
pub struct ChangedBlock {
    /// Number of the block within its piece, 0 to 63.
    pub number: u32,
    /// Indexes of the changed elements within the block, each below 65,536; never empty.
    pub index: RoaringBitmap,
    /// The shift of each, in the order of `index`; never 0.
    pub shifts: Vec<i64>,
}

/// Changed elements of one piece, ascending, with their shifts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    blocks: Vec<ChangedBlock>,
}

impl Changes {
    /// The blocks that have changes, ascending by number.
    pub fn blocks(&self) -> &[ChangedBlock] {
        &self.blocks
    }

    /// Number of changed elements.
    pub fn len(&self) -> u64 {
        self.blocks.iter().map(|b| b.shifts.len() as u64).sum()
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Each changed element's index within the piece, ascending, with its shift.
    pub fn iter(&self) -> impl Iterator<Item = (u32, i64)> {
        self.blocks.iter().flat_map(|block| {
            let first = block.number * BLOCK_ELEMENTS as u32;
            (block.index.iter().zip(&block.shifts))
                .map(move |(index, &shift)| (first + index, shift))
        })
    }

    /// Index of the last changed element.
    pub fn last(&self) -> Option<u32> {
        let block = self.blocks.last()?;
        Some(block.number * BLOCK_ELEMENTS as u32 + block.index.max()?)
    }

    /// `sum r(i) d_i`: what the patch adds to the first moment of a tensor, known without any content. `first` is
    /// the tensor's flat index of the piece's first element.
    pub fn first_moment(&self, first: u64) -> u64 {
        let mut weights = Weights::default();
        self.iter().fold(0, |sum, (element, shift)| {
            let r = weights.at(first + u64::from(element));
            sum.wrapping_add(r.wrapping_mul(shift as u64))
        })
    }

    /// Turn the patch around.
    pub fn negate(&mut self) {
        for shift in self.blocks.iter_mut().flat_map(|b| &mut b.shifts) {
            // The one 8-byte shift without a negative, -2⁶³, is its own inverse mod 2⁶⁴.
            *shift = shift.wrapping_neg();
        }
    }

    /// The changes of `blocks`, counted from the first of them.
    #[must_use]
    pub fn cut(&self, blocks: Range<u32>) -> Self {
        let within = self.blocks.iter().filter(|b| blocks.contains(&b.number));
        let blocks = within.map(|block| ChangedBlock {
            number: block.number - blocks.start,
            ..block.clone()
        });
        Self {
            blocks: blocks.collect(),
        }
    }

    /// The same changes `blocks` further on: undoes [`cut`](Self::cut).
    ///
    /// # Panics
    ///
    /// If they would leave their piece.
    #[must_use]
    pub fn moved_by(mut self, blocks: u32) -> Self {
        for block in &mut self.blocks {
            block.number += blocks;
            assert!(
                u64::from(block.number) < PIECE_ELEMENTS / BLOCK_ELEMENTS,
                "changes stay within their piece"
            );
        }
        self
    }

    /// Changes from pairs of element and shift.
    ///
    /// # Errors
    ///
    /// If elements are not strictly ascending below 2²² or a shift is 0.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (u32, i64)>) -> Result<Self> {
        let mut builder = ChangesBuilder::default();
        let mut next = 0;
        for (element, shift) in pairs {
            if element < next || u64::from(element) >= PIECE_ELEMENTS {
                return Err(FormatError::invalid(
                    "patch",
                    format!("element {element} is out of order or past the piece"),
                ));
            }
            if shift == 0 {
                return Err(FormatError::invalid("patch", "a shift of 0"));
            }
            next = element + 1;
            builder.push(element, shift);
        }
        Ok(builder.finish())
    }
}

/// Collects changes in ascending order.
#[derive(Debug, Default)]
pub struct ChangesBuilder {
    done: Vec<ChangedBlock>,
    number: u32,
    index: Vec<u32>,
    shifts: Vec<i64>,
}

impl ChangesBuilder {
    /// Add a change; elements come strictly ascending and shifts are not 0.
    #[inline]
    pub fn push(&mut self, element: u32, shift: i64) {
        let number = element / BLOCK_ELEMENTS as u32;
        if number != self.number {
            self.close_block();
            self.number = number;
        }
        debug_assert!(shift != 0);
        self.index.push(element % BLOCK_ELEMENTS as u32);
        self.shifts.push(shift);
    }

    pub(crate) fn push_block(&mut self, block: ChangedBlock) {
        self.close_block();
        self.done.push(block);
    }

    fn close_block(&mut self) {
        if self.index.is_empty() {
            return;
        }
        let index = RoaringBitmap::from_sorted_iter(self.index.drain(..))
            .expect("changes are pushed in ascending order");
        self.done.push(ChangedBlock {
            number: self.number,
            index,
            shifts: self.shifts.as_slice().into(),
        });
        self.shifts.clear();
    }

    /// What was collected.
    pub fn finish(mut self) -> Changes {
        self.close_block();
        Changes { blocks: self.done }
    }
}
