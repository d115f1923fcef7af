//! Slices: the block of a tensor that one rank holds, a range of each axis, and where its elements lie in the tensor.

use crate::dtype::ElementClass;
use crate::error::{FormatError, Result};
use crate::object::TensorSpec;
use crate::patch::{Changes, ChangesBuilder};
use std::ops::Range;

/// Name of the kind in errors.
const WHAT: &str = "slice";

/// No tensor has more axes.
const MAX_AXES: usize = 64;

/// A block of a tensor: one range of indexes per axis of its shape, none of them empty. Rows, columns and experts are
/// blocks of which all axes but one are whole.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Slice {
    ranges: Vec<Range<u64>>,
}

impl Slice {
    /// The block of these ranges.
    ///
    /// # Errors
    ///
    /// If a range is empty or there are too many.
    pub fn new(ranges: Vec<Range<u64>>) -> Result<Self> {
        if ranges.len() > MAX_AXES {
            let why = format!("it has more than {MAX_AXES} axes");
            return Err(FormatError::invalid(WHAT, why));
        }
        if let Some(axis) = ranges.iter().position(Range::is_empty) {
            return Err(FormatError::invalid(
                WHAT,
                format!("its range of axis {axis} is empty"),
            ));
        }
        Ok(Self { ranges })
    }

    /// The part of an axis, and all of the other axes of `shape`.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), or if there is no such axis.
    pub fn of_axis(shape: &[u64], axis: usize, range: Range<u64>) -> Result<Self> {
        let mut ranges: Vec<Range<u64>> = shape.iter().map(|&dim| 0..dim).collect();
        match ranges.get_mut(axis) {
            Some(whole) => *whole = range,
            None => {
                return Err(FormatError::invalid(
                    WHAT,
                    format!("there is no axis {axis}"),
                ));
            }
        }
        Self::new(ranges)
    }

    /// The range of each axis.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Where the slice's elements lie in a tensor of `spec`.
    ///
    /// # Errors
    ///
    /// If it has another number of axes or leaves one, or cuts an element of several values, such as a byte of two
    /// nibbles, in two.
    pub fn of(&self, spec: &TensorSpec) -> Result<SliceMap> {
        SliceMap::new(&self.ranges, &spec.shape, spec.elements())
    }
}

/// An axis of which only a part is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Axis {
    /// Elements between neighbours of the axis in the tensor.
    stride: u64,
    /// Length of the whole axis.
    whole: u64,
    /// First index taken, and how many.
    first: u64,
    len: u64,
}

/// Where the elements of a slice lie in the tensor: its flat index, and the tensor's. Both ascend together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceMap {
    /// Axes above the runs, outermost first.
    axes: Vec<Axis>,
    /// What is contiguous in both: elements of a run, where it begins within its period, and the period.
    run: u64,
    run_first: u64,
    period: u64,
    elements: u64,
}

impl SliceMap {
    fn new(ranges: &[Range<u64>], shape: &[u64], elements: u64) -> Result<Self> {
        let (ranges, dims) = in_elements(ranges, shape, elements)?;
        for (axis, (range, &dim)) in ranges.iter().zip(&dims).enumerate() {
            if range.is_empty() || range.end > dim {
                let why = format!(
                    "{}..{} of axis {axis}, which has {dim}",
                    range.start, range.end
                );
                return Err(FormatError::invalid(WHAT, why));
            }
        }
        // The axis that the runs lie along: all after it are whole.
        let along = (ranges.iter().zip(&dims))
            .rposition(|(range, &dim)| *range != (0..dim))
            .unwrap_or(0);
        let inner: u64 = dims.iter().skip(along + 1).product();
        let (range, dim) = match (ranges.get(along), dims.get(along)) {
            (Some(range), Some(&dim)) => (range.clone(), dim),
            // A scalar.
            _ => (0..1, 1),
        };
        let (run, run_first, period) = (
            (range.end - range.start) * inner,
            range.start * inner,
            dim * inner,
        );
        let mut axes = Vec::with_capacity(along);
        let mut stride = period;
        for (range, &dim) in ranges.iter().zip(&dims).take(along).rev() {
            axes.push(Axis {
                stride,
                whole: dim,
                first: range.start,
                len: range.end - range.start,
            });
            stride *= dim;
        }
        axes.reverse();
        let elements = axes.iter().map(|axis| axis.len).product::<u64>() * run;
        Ok(Self {
            axes,
            run,
            run_first,
            period,
            elements,
        })
    }

    /// Number of elements of the slice.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// The tensor's flat index of element `index` of the slice.
    pub fn to_tensor(&self, index: u64) -> u64 {
        let (mut rest, within) = (index / self.run, index % self.run);
        let mut flat = self.run_first + within;
        for axis in self.axes.iter().rev() {
            flat += (axis.first + rest % axis.len) * axis.stride;
            rest /= axis.len;
        }
        flat
    }

    /// The slice's flat index of element `flat` of the tensor, if it is in the slice.
    pub fn from_tensor(&self, flat: u64) -> Option<u64> {
        let mut index = 0;
        for axis in &self.axes {
            let at = (flat / axis.stride % axis.whole).checked_sub(axis.first)?;
            if at >= axis.len {
                return None;
            }
            index = index * axis.len + at;
        }
        let within = (flat % self.period).checked_sub(self.run_first)?;
        (within < self.run).then_some(index * self.run + within)
    }

    /// The contiguous runs that make up `elements` of the slice: where each begins in the tensor, and its length.
    pub fn runs(&self, elements: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = elements.start;
        std::iter::from_fn(move || {
            let len = (self.run - at % self.run).min(elements.end.saturating_sub(at));
            let first = self.to_tensor(at);
            at += len;
            (len > 0).then(|| first..first + len)
        })
    }

    /// The elements of the tensor from the first to the last that `elements` of the slice take.
    pub fn span(&self, elements: Range<u64>) -> Range<u64> {
        match elements.is_empty() {
            true => 0..0,
            false => self.to_tensor(elements.start)..self.to_tensor(elements.end - 1) + 1,
        }
    }

    /// Add to `into` those of `changes`, the changes of the tensor from element `first` on, that are among `elements` of
    /// the slice, counted from the first of these.
    pub fn cut(
        &self,
        changes: &Changes,
        first: u64,
        elements: Range<u64>,
        into: &mut ChangesBuilder,
    ) {
        for (element, shift) in changes.iter() {
            let index = self.from_tensor(first + u64::from(element));
            if let Some(index) = index.filter(|index| elements.contains(index)) {
                into.push((index - elements.start) as u32, shift);
            }
        }
    }

    /// Write `elements` of the slice, taken from `content`, the tensor from element `first` on, over `out`. What of them
    /// lies outside `content` is left as it is.
    pub fn gather(
        &self,
        class: ElementClass,
        (first, content): (u64, &[u8]),
        elements: Range<u64>,
        out: &mut [u8],
    ) {
        let width = class.width();
        let held = first..first + (content.len() / width) as u64;
        let mut at = 0;
        for run in self.runs(elements) {
            let len = run.end - run.start;
            let (begin, end) = (run.start.max(held.start), run.end.min(held.end));
            if begin < end {
                let to = (at + (begin - run.start)) as usize * width;
                let from = (begin - held.start) as usize * width;
                let bytes = (end - begin) as usize * width;
                out[to..to + bytes].copy_from_slice(&content[from..from + bytes]);
            }
            at += len;
        }
    }
}

/// Ranges and dimensions in elements of the class, of which a value of the shape may be several, or a part of one.
fn in_elements(
    ranges: &[Range<u64>],
    shape: &[u64],
    elements: u64,
) -> Result<(Vec<Range<u64>>, Vec<u64>)> {
    if ranges.len() != shape.len() {
        let why = format!("it has {} axes, the tensor {}", ranges.len(), shape.len());
        return Err(FormatError::invalid(WHAT, why));
    }
    let (mut ranges, mut dims) = (ranges.to_vec(), shape.to_vec());
    let values: u64 = shape.iter().product();
    if values == 0 {
        return Err(FormatError::invalid(WHAT, "the tensor has no elements"));
    }
    if elements >= values {
        let each = elements / values;
        if each > 1 {
            ranges.push(0..each);
            dims.push(each);
        }
        return Ok((ranges, dims));
    }
    let packed = values / elements;
    let (Some(range), Some(dim)) = (ranges.last_mut(), dims.last_mut()) else {
        return Err(FormatError::invalid(WHAT, "a part of a byte"));
    };
    if *dim % packed != 0 || range.start % packed != 0 || range.end % packed != 0 {
        let why = format!("{packed} values share a byte, which it cuts in two");
        return Err(FormatError::invalid(WHAT, why));
    }
    *range = range.start / packed..range.end / packed;
    *dim /= packed;
    Ok((ranges, dims))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand, as numpy does it: `arange(2*3*4).reshape(2,3,4)[r0, r1, r2].ravel()`.
    fn by_hand(shape: [u64; 3], ranges: &[Range<u64>]) -> Vec<u64> {
        let mut flat = Vec::new();
        for a in ranges[0].clone() {
            for b in ranges[1].clone() {
                for c in ranges[2].clone() {
                    flat.push((a * shape[1] + b) * shape[2] + c);
                }
            }
        }
        flat
    }

    #[test]
    fn every_block_of_a_small_tensor_maps_both_ways() {
        let shape = [3, 4, 5];
        let parts = |dim: u64| (0..dim).flat_map(move |a| (a + 1..=dim).map(move |b| a..b));
        for a in parts(3) {
            for b in parts(4) {
                for c in parts(5) {
                    let ranges = vec![a.clone(), b.clone(), c.clone()];
                    let map = SliceMap::new(&ranges, &shape, 60).expect("fits");
                    let expected = by_hand(shape, &ranges);
                    let found: Vec<u64> = (0..map.elements())
                        .map(|index| map.to_tensor(index))
                        .collect();
                    assert_eq!(found, expected, "{ranges:?}");
                    for flat in 0..60 {
                        let index = expected.iter().position(|&e| e == flat);
                        assert_eq!(map.from_tensor(flat), index.map(|i| i as u64));
                    }
                    let runs: Vec<u64> = map.runs(0..map.elements()).flatten().collect();
                    assert_eq!(runs, expected);
                }
            }
        }
    }

    #[test]
    fn values_of_several_elements_and_parts_of_one() {
        // Two elements to a value, as C64.
        let map = SliceMap::new(&[0..2, 1..2], &[2, 2], 8).expect("fits");
        let flat: Vec<u64> = (0..map.elements()).map(|i| map.to_tensor(i)).collect();
        assert_eq!(flat, [2, 3, 6, 7]);
        // Two values to an element, as F4.
        let map = SliceMap::new(&[0..2, 2..4], &[2, 4], 4).expect("fits");
        let flat: Vec<u64> = (0..map.elements()).map(|i| map.to_tensor(i)).collect();
        assert_eq!(flat, [1, 3]);
        assert!(SliceMap::new(&[0..2, 1..3], &[2, 4], 4).is_err());
        assert!(SliceMap::new(&[0..3, 0..4], &[2, 4], 8).is_err());
        assert!(SliceMap::new(std::slice::from_ref(&(0..2)), &[2, 4], 8).is_err());
        assert!(SliceMap::new(std::slice::from_ref(&(0..1)), &[0], 0).is_err());
    }

    #[test]
    fn scalars_are_their_only_slice() {
        let map = SliceMap::new(&[], &[], 1).expect("fits");
        assert_eq!((map.elements(), map.to_tensor(0)), (1, 0));
        assert_eq!(map.from_tensor(0), Some(0));
    }
}
