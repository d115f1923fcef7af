//! Finding what changed.

use super::{Changes, ChangesBuilder, PIECE_ELEMENTS};
use crate::dtype::ElementClass;
use crate::error::{FormatError, Result};
use crate::ord::{Element, with_element};

/// Bytes compared at once: a cache line, so that unchanged stretches cost a memory scan.
const STRIDE: usize = 64;

/// The changes that turn piece `old` into piece `new`; bits are compared, never values.
///
/// # Errors
///
/// If the lengths differ, are no whole number of elements, or exceed a piece.
pub fn diff(class: ElementClass, old: &[u8], new: &[u8]) -> Result<Changes> {
    let width = class.width();
    if old.len() != new.len()
        || !old.len().is_multiple_of(width)
        || (old.len() / width) as u64 > PIECE_ELEMENTS
    {
        return Err(FormatError::invalid(
            "patch",
            format!(
                "pieces of {} and {} bytes cannot be compared",
                old.len(),
                new.len()
            ),
        ));
    }
    Ok(with_element!(class, E => diff_words::<E>(old, new)))
}

fn diff_words<E: Element>(old: &[u8], new: &[u8]) -> Changes {
    let mut builder = ChangesBuilder::default();
    // Arrays compare with a few vector instructions, slices with a call.
    let (old_strides, old_rest) = old.as_chunks::<STRIDE>();
    let (new_strides, new_rest) = new.as_chunks::<STRIDE>();
    for (stride, (old, new)) in old_strides.iter().zip(new_strides).enumerate() {
        if old != new {
            push_changes::<E>(&mut builder, stride * STRIDE, old, new);
        }
    }
    push_changes::<E>(&mut builder, old_strides.len() * STRIDE, old_rest, new_rest);
    builder.finish()
}

/// Add the changes between words that begin `start` bytes into the piece.
#[inline(always)]
fn push_changes<E: Element>(builder: &mut ChangesBuilder, start: usize, old: &[u8], new: &[u8]) {
    let first = start / E::WIDTH;
    let words = old.chunks_exact(E::WIDTH).zip(new.chunks_exact(E::WIDTH));
    for (i, (old, new)) in words.enumerate() {
        let (old, new) = (E::load(old), E::load(new));
        if old != new {
            builder.push((first + i) as u32, E::shift(old, new));
        }
    }
}
