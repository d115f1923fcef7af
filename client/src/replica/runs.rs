//! Words of a piece that lie close together, so that they are read and written at once.

use crate::arrival::tensor_name;
use crate::error::{ClientError, Result};
use deltaic_format::object::TensorView;
use deltaic_format::patch::piece_len;
use std::ops::Range;

/// Changed elements that lie no further apart, in bytes, are written with what lies between, at once.
const GAP: usize = 16 << 10;

/// Words of a piece in runs that are read and written at once.
pub(super) struct Runs<'a> {
    indexes: &'a [[u8; 4]],
    words: &'a [u8],
    width: usize,
}

/// Neighbouring words of a piece.
pub(super) struct Run<'a> {
    /// Where they lie in the piece, with what lies between them.
    pub bytes: Range<usize>,
    indexes: &'a [[u8; 4]],
    words: &'a [u8],
    width: usize,
}

impl<'a> Runs<'a> {
    pub(super) fn new(
        view: &TensorView<'_>,
        piece: u64,
        indexes: &'a [u8],
        words: &'a [u8],
    ) -> Result<Self> {
        let width = view.spec.class.width();
        let indexes = indexes.as_chunks().0;
        let end = piece_len(view.spec.elements(), piece);
        let ascending =
            indexes.is_sorted_by(|a, b| u32::from_le_bytes(*a) < u32::from_le_bytes(*b));
        let inside =
            (indexes.last()).is_some_and(|last| u64::from(u32::from_le_bytes(*last)) < end);
        if !ascending || !inside || words.len() != indexes.len() * width {
            let what = format!("words of {} are not in their piece", tensor_name(view));
            return Err(ClientError::corrupt("the journal", what));
        }
        Ok(Self {
            indexes,
            words,
            width,
        })
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = Run<'a>;

    fn next(&mut self) -> Option<Run<'a>> {
        let at = |index: &[u8; 4]| u32::from_le_bytes(*index) as usize * self.width;
        let begin = at(self.indexes.first()?);
        let near = |pair: &&[[u8; 4]]| at(&pair[1]) - at(&pair[0]) <= GAP;
        let count = 1 + self.indexes.windows(2).take_while(near).count();
        let (indexes, rest) = self.indexes.split_at(count);
        let end = at(&indexes[count - 1]) + self.width;
        let (words, rest_words) = self.words.split_at(count * self.width);
        (self.indexes, self.words) = (rest, rest_words);
        Some(Run {
            bytes: begin..end,
            indexes,
            words,
            width: self.width,
        })
    }
}

impl Run<'_> {
    /// Give every word, with where it lies in the run's bytes.
    pub(super) fn for_each_word(&self, mut each: impl FnMut(usize, &[u8])) {
        for (index, word) in self.indexes.iter().zip(self.words.chunks_exact(self.width)) {
            let at = u32::from_le_bytes(*index) as usize * self.width - self.bytes.start;
            each(at, word);
        }
    }
}
