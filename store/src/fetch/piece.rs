//! One piece of an answer: composed, read, and cut to what a slice has of it.

use super::answer::Job;
use crate::contents::{ContentReader, Contents};
use crate::error::Result;
use deltaic_format::ElementClass;
use deltaic_format::base::{BASE_BLOCK_ELEMENTS, encode_base};
use deltaic_format::fetch::DELIVERY_BYTES;
use deltaic_format::patch::{Changes, ChangesBuilder, PIECE_ELEMENTS};
use deltaic_format::slice::SliceMap;
use rayon::prelude::*;
use std::ops::Range;

/// The piece of the tensor that element `first` of its slice, or of itself, lies in.
pub(super) fn first_piece(slice: Option<&SliceMap>, first: u64) -> u64 {
    slice.map_or(first, |slice| slice.to_tensor(first)) / PIECE_ELEMENTS
}

/// The next piece after `piece` of a tensor of `elements` elements that its slice, or itself, has elements in.
pub(super) fn piece_after(slice: Option<&SliceMap>, elements: u64, piece: u64) -> Option<u64> {
    let after = (piece + 1) * PIECE_ELEMENTS;
    let Some(slice) = slice else {
        return (after < elements).then_some(piece + 1);
    };
    // The slice's first element at or past the piece's end: both indexes ascend together.
    let (mut low, mut high) = (0, slice.elements());
    while low < high {
        let middle = low + (high - low) / 2;
        match slice.to_tensor(middle) < after {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    (low < slice.elements()).then(|| slice.to_tensor(low) / PIECE_ELEMENTS)
}

/// The end of the piece that `first` lies in, of a tensor or slice of `elements` elements.
pub(super) fn piece_end(first: u64, elements: u64) -> u64 {
    ((first / PIECE_ELEMENTS + 1) * PIECE_ELEMENTS).min(elements)
}

/// Puts the changes of a tensor's pieces, which come in order, together to those of its slice's pieces.
pub(super) struct SliceFeed<'f> {
    slice: &'f SliceMap,
    /// Where the piece being put together, or the rest of it that is wanted, begins.
    first: u64,
    changes: ChangesBuilder,
}

impl<'f> SliceFeed<'f> {
    /// From element `first` of the slice on.
    pub(super) fn new(slice: &'f SliceMap, first: u64) -> Self {
        Self {
            slice,
            first,
            changes: ChangesBuilder::default(),
        }
    }

    /// Take the changes of the tensor's piece `piece`; hand on each piece of the slice that is complete, counted from
    /// its first element.
    pub(super) fn take(
        &mut self,
        piece: u64,
        changes: &Changes,
        complete: &mut dyn FnMut(Range<u64>, Changes) -> Result<()>,
    ) -> Result<()> {
        while self.first < self.slice.elements() {
            let span = self.first..piece_end(self.first, self.slice.elements());
            let first = piece * PIECE_ELEMENTS;
            self.slice
                .cut(changes, first, span.clone(), &mut self.changes);
            if self.slice.to_tensor(span.end - 1) >= first + PIECE_ELEMENTS {
                break;
            }
            self.first = span.end;
            complete(span, std::mem::take(&mut self.changes).finish())?;
        }
        Ok(())
    }
}

/// Content that travels: the elements, and their base.
pub(super) type EncodedSpan = (Range<u64>, Vec<u8>);

impl Contents {
    /// Encode what `job` wants of the piece that `first` lies in, from there on. Where that is only cut from what is
    /// stored, it ends after about `limit` bytes.
    pub(super) fn encode_content(
        &self,
        job: &Job<'_>,
        first: u64,
        limit: u64,
    ) -> Result<Vec<EncodedSpan>> {
        let reader = self.open(job.wish.key)?;
        let wanted = first..piece_end(first, job.elements());
        let content = match job.slice {
            Some(slice) => gather(&reader, job.wish.key.class, slice, wanted)?,
            None => {
                if let Some(spans) = cut_stored(&reader, wanted.clone(), limit)? {
                    return Ok(spans);
                }
                reader.part(first / PIECE_ELEMENTS, blocks_within_piece(&wanted))?
            }
        };
        Ok(encode(job.wish.key.class, first, &content))
    }
}

/// The blocks that `elements`, which do not leave their piece, lie in, counted from the piece's first.
fn blocks_within_piece(elements: &Range<u64>) -> Range<u64> {
    let first = elements.start / PIECE_ELEMENTS * PIECE_ELEMENTS;
    (elements.start - first) / BASE_BLOCK_ELEMENTS
        ..(elements.end - first).div_ceil(BASE_BLOCK_ELEMENTS)
}

/// `wanted`, cut from the content's own base without coding anything anew; `None` if it has none.
fn cut_stored(
    reader: &ContentReader<'_>,
    wanted: Range<u64>,
    limit: u64,
) -> Result<Option<Vec<EncodedSpan>>> {
    let Some(base) = reader.own_base() else {
        return Ok(None);
    };
    let mut spans = Vec::new();
    let (mut block, end) = (
        wanted.start / BASE_BLOCK_ELEMENTS,
        wanted.end.div_ceil(BASE_BLOCK_ELEMENTS),
    );
    let mut bytes = 0;
    while block < end && bytes < limit {
        let mut upto = block + 1;
        while upto < end && base.stored_len(block..upto + 1) <= DELIVERY_BYTES {
            upto += 1;
        }
        let cut = base.cut(block..upto)?;
        bytes += cut.len() as u64;
        let elements = block * BASE_BLOCK_ELEMENTS..(upto * BASE_BLOCK_ELEMENTS).min(wanted.end);
        spans.push((elements, cut));
        block = upto;
    }
    Ok(Some(spans))
}

/// Elements `wanted` of a slice, which do not leave their piece of it.
fn gather(
    reader: &ContentReader<'_>,
    class: ElementClass,
    slice: &SliceMap,
    wanted: Range<u64>,
) -> Result<Vec<u8>> {
    let mut out = vec![0; (wanted.end - wanted.start) as usize * class.width()];
    let within = slice.span(wanted.clone());
    let mut next = Some(first_piece(Some(slice), wanted.start));
    while let Some(piece) = next {
        let first = piece * PIECE_ELEMENTS;
        if first >= within.end {
            break;
        }
        let needed = within.start.max(first)..within.end.min(first + PIECE_ELEMENTS);
        let blocks = blocks_within_piece(&needed);
        let first = first + blocks.start * BASE_BLOCK_ELEMENTS;
        let content = reader.part(piece, blocks)?;
        slice.gather(class, (first, &content), wanted.clone(), &mut out);
        next = piece_after(Some(slice), reader.elements(), piece);
    }
    Ok(out)
}

/// Encode `content`, which begins at element `first`, in spans of about as many bytes as a delivery takes.
fn encode(class: ElementClass, first: u64, content: &[u8]) -> Vec<EncodedSpan> {
    let width = class.width() as u64;
    let each = (DELIVERY_BYTES / (BASE_BLOCK_ELEMENTS * width)).max(1) * BASE_BLOCK_ELEMENTS;
    (content.par_chunks((each * width) as usize).enumerate())
        .map(|(number, content)| {
            let start = first + number as u64 * each;
            let end = start + content.len() as u64 / width;
            (start..end, encode_base(class, content))
        })
        .collect()
}
