//! Composition: shifts along a path of the delta graph add up.

use super::{BLOCK_ELEMENTS, ChangedBlock, Changes, ChangesBuilder};
use crate::dtype::ElementClass;
use crate::error::{FormatError, Result};
use roaring::{MultiOps, RoaringBitmap};

/// The sum of the changes of one piece along a path, in any order; what cancels is dropped.
///
/// Per block, the union of the indexes says where the sums lie and a dense scratch collects them, so the cost
/// is linear in the changes whatever the number of patches.
///
/// # Errors
///
/// If a sum leaves ±(2^(8w) - 1), which no two contents can differ by.
pub fn compose(class: ElementClass, patches: &[&Changes]) -> Result<Changes> {
    if let [only] = patches {
        return Ok((*only).clone());
    }
    let mut cursors: Vec<&[ChangedBlock]> = patches.iter().map(|p| p.blocks()).collect();
    let mut scratch = vec![0i64; BLOCK_ELEMENTS as usize];
    let mut composed = ChangesBuilder::default();
    let mut same_block = Vec::with_capacity(patches.len());
    while let Some(number) = cursors.iter().filter_map(|c| Some(c.first()?.number)).min() {
        same_block.clear();
        for cursor in &mut cursors {
            if let Some((block, rest)) = cursor.split_first()
                && block.number == number
            {
                same_block.push(block);
                *cursor = rest;
            }
        }
        if let [only] = same_block[..] {
            composed.push_block(only.clone());
        } else if let Some(block) = add_blocks(class, number, &same_block, &mut scratch)? {
            composed.push_block(block);
        }
    }
    Ok(composed.finish())
}

/// Sum blocks of one number; `scratch` holds zeros before and after.
fn add_blocks(
    class: ElementClass,
    number: u32,
    blocks: &[&ChangedBlock],
    scratch: &mut [i64],
) -> Result<Option<ChangedBlock>> {
    for block in blocks {
        for (index, &shift) in block.index.iter().zip(&block.shifts) {
            let sum = &mut scratch[index as usize];
            *sum = sum.wrapping_add(shift);
        }
    }
    let union = blocks.iter().map(|b| &b.index).union();
    let mut index = Vec::with_capacity(union.len() as usize);
    let mut shifts = Vec::with_capacity(union.len() as usize);
    let mut out_of_range = None;
    for i in &union {
        let sum = std::mem::take(&mut scratch[i as usize]);
        if sum == 0 {
            continue;
        }
        if sum.unsigned_abs() > class.largest_shift() {
            out_of_range = Some(i);
        }
        index.push(i);
        shifts.push(sum);
    }
    if let Some(i) = out_of_range {
        return Err(FormatError::ShiftOutOfRange {
            element: u64::from(number) * BLOCK_ELEMENTS + u64::from(i),
        });
    }
    if index.is_empty() {
        return Ok(None);
    }
    let index = if index.len() as u64 == union.len() {
        union
    } else {
        RoaringBitmap::from_sorted_iter(index).expect("a bitmap iterates in ascending order")
    };
    Ok(Some(ChangedBlock {
        number,
        index,
        shifts,
    }))
}
