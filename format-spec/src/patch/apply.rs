//! Writing a patch, and checking first that it fits.

use super::{BLOCK_ELEMENTS, ChangedBlock, Changes};
use crate::dtype::ElementClass;
use crate::error::{FormatError, Result};
use crate::moments::{Moments, Weights, second};
use crate::ord::{Element, with_element};

/// What the elements that a patch touches say about it (SPEC.md §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touched {
    /// `sum r(i) d_i` and `sum r(i) (h(ord_i + d_i) - h(ord_i))`: what applying would add to the moments. `None` if some
    /// element would leave its range, so that the patch cannot fit.
    pub forward: Option<Moments>,
    /// `sum r(i) d_i` and `sum r(i) (h(ord_i) - h(ord_i - d_i))`: what applying has added, if it was applied
    /// already. `None` if some element cannot have come from where the patch says.
    pub backward: Option<Moments>,
}

impl Default for Touched {
    fn default() -> Self {
        Self {
            forward: Some(Moments::default()),
            backward: Some(Moments::default()),
        }
    }
}

impl Touched {
    /// Add what another piece of the same tensor says.
    pub fn add(&mut self, other: &Self) {
        let sum = |a: Option<Moments>, b: Option<Moments>| Some(a? + b?);
        self.forward = sum(self.forward, other.forward);
        self.backward = sum(self.backward, other.backward);
    }

    /// Whether the patch fits content that leads from moments `from` to moments `to`.
    pub fn fits(&self, from: Moments, to: Moments) -> bool {
        self.forward == Some(to - from)
    }

    /// Whether the content already is what the patch leads to.
    pub fn already_applied(&self, from: Moments, to: Moments) -> bool {
        self.backward == Some(to - from)
    }
}

/// Read the elements of `bytes` that `changes` touches and sum what the proofs need.
///
/// `first` is the tensor's flat index of the first element of `bytes`.
///
/// # Errors
///
/// If a change lies past the end of `bytes`.
pub fn touched(
    class: ElementClass,
    first: u64,
    bytes: &[u8],
    changes: &Changes,
) -> Result<Touched> {
    check_bounds(class, bytes, changes)?;
    Ok(with_element!(class, E => touched_words::<E>(first, bytes, changes)))
}

fn touched_words<E: Element>(first: u64, bytes: &[u8], changes: &Changes) -> Touched {
    let (mut fits, mut came) = (true, true);
    let mut weights = Weights::default();
    let (mut l, mut forward, mut backward) = (0u64, 0u64, 0u64);
    for (element, shift) in changes.iter() {
        let r = weights.at(first + u64::from(element));
        let ord = E::ord(E::load(&bytes[element as usize * E::WIDTH..]));
        l = l.wrapping_add(r.wrapping_mul(shift as u64));
        let here = second::<E>(ord);
        match E::moved(ord, shift) {
            Some(after) => {
                let step = second::<E>(after).wrapping_sub(here);
                forward = forward.wrapping_add(r.wrapping_mul(step));
            }
            None => fits = false,
        }
        match E::moved(ord, shift.wrapping_neg()) {
            Some(before) => {
                let step = here.wrapping_sub(second::<E>(before));
                backward = backward.wrapping_add(r.wrapping_mul(step));
            }
            None => came = false,
        }
    }
    Touched {
        forward: fits.then_some(Moments { l, q: forward }),
        backward: came.then_some(Moments { l, q: backward }),
    }
}

/// The words that the changed elements of `bytes` will have, packed, in the order of the changes.
///
/// # Errors
///
/// If a change lies past the end of `bytes` or a shift leaves the range of the class.
pub fn words_after(class: ElementClass, bytes: &[u8], changes: &Changes) -> Result<Vec<u8>> {
    check_bounds(class, bytes, changes)?;
    with_element!(class, E => {
        let mut words = vec![0; changes.len() as usize * E::WIDTH];
        for ((element, shift), out) in changes.iter().zip(words.chunks_exact_mut(E::WIDTH)) {
            let ord = E::ord(E::load(&bytes[element as usize * E::WIDTH..]));
            let Some(after) = E::moved(ord, shift) else {
                return Err(FormatError::ShiftOutOfRange { element: u64::from(element) });
            };
            E::store(out, E::word(after));
        }
        Ok(words)
    })
}

/// Write packed `words` at the elements of `bytes` that `changes` names.
///
/// # Panics
///
/// If `words` did not come from [`words_after`] for the same changes and length of `bytes`.
pub fn write_words(class: ElementClass, bytes: &mut [u8], changes: &Changes, words: &[u8]) {
    let width = class.width();
    let mut words = words.chunks_exact(width);
    for ChangedBlock { number, index, .. } in changes.blocks() {
        let first = *number as usize * BLOCK_ELEMENTS as usize;
        for (i, word) in index.iter().zip(&mut words) {
            let at = (first + i as usize) * width;
            bytes[at..at + width].copy_from_slice(word);
        }
    }
}

/// Apply `changes` to `bytes` in place; nothing is written on error.
///
/// # Errors
///
/// As [`words_after`].
pub fn apply(class: ElementClass, bytes: &mut [u8], changes: &Changes) -> Result<()> {
    let words = words_after(class, bytes, changes)?;
    write_words(class, bytes, changes, &words);
    Ok(())
}

fn check_bounds(class: ElementClass, bytes: &[u8], changes: &Changes) -> Result<()> {
    let elements = (bytes.len() / class.width()) as u64;
    match changes.last() {
        Some(last) if u64::from(last) >= elements => Err(FormatError::OutOfBounds {
            element: u64::from(last),
            elements,
        }),
        _ => Ok(()),
    }
}
