//! Writing a patch set.

use super::block::{BlockChanges, BlockCosts, default_parameters, encode_block};
use super::{
    CODING_PLAIN, LAYOUT_FLAT, MAGIC, MAX_CHANGES, MAX_MEMBERS, VERSION, VirtualLayout, WHAT,
};
use crate::bytes::put_varint;
use crate::dtype::ElementClass;
use crate::error::{FormatError, Result};
use crate::patch::{Changes, PIECE_ELEMENTS};

/// Below this share of changed elements the longest blocks are smaller and still decode in parallel.
const SPARSE: f64 = 0.003;

/// An encoded patch set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedPatchSet {
    /// The bytes of SPEC.md §6.
    pub bytes: Vec<u8>,
    /// What each member takes of them; shared blocks and the header are shared out by changes. Adds up to
    /// the length of `bytes` unless nothing changed.
    pub member_bytes: Vec<u64>,
    /// Bytes of header and directory, which are not changes.
    pub overhead: u64,
}

/// Encode members (elements of the piece, its changes) of one class with the plain coding.
///
/// # Errors
///
/// If a member is empty or longer than a piece, or there are too many or too long ones for one set.
pub fn encode(class: ElementClass, members: &[(u32, &Changes)]) -> Result<EncodedPatchSet> {
    check_members(members)?;
    let elements: u64 = members.iter().map(|m| u64::from(m.0)).sum();
    let changed: u64 = members.iter().map(|m| m.1.len()).sum();
    let block_log2 = if (changed as f64) < SPARSE * elements as f64 {
        18
    } else {
        16
    };
    let layout = VirtualLayout::new(members.iter().map(|m| m.0), block_log2)
        .ok_or_else(|| FormatError::invalid(WHAT, "too many elements for one set"))?;

    let blocks = split_into_blocks(&layout, members);
    let costs: Vec<_> = blocks.iter().map(|b| BlockCosts::of(&b.changes)).collect();
    let block_lens: Vec<_> = blocks.iter().map(|b| layout.block_len(b.number)).collect();
    let defaults = default_parameters(&costs, &block_lens);
    let payloads: Vec<Vec<u8>> = (blocks.iter().zip(&costs).zip(&block_lens))
        .map(|((block, costs), &len)| {
            let gapless = layout.is_gapless(block.number);
            encode_block(class, &block.changes, costs, len, gapless, defaults)
        })
        .collect();

    let mut bytes = MAGIC.to_vec();
    bytes.extend([
        VERSION,
        CODING_PLAIN,
        class.number(),
        block_log2 as u8,
        LAYOUT_FLAT,
    ]);
    bytes.extend(&defaults.to_bits().to_le_bytes()[..3]);
    put_member_runs(&mut bytes, members);
    put_directory(&mut bytes, &layout, &blocks, &payloads);
    let overhead = bytes.len() as u64;
    payloads.iter().for_each(|p| bytes.extend_from_slice(p));
    let member_bytes = share_out(overhead, members, &blocks, &payloads);
    Ok(EncodedPatchSet {
        bytes,
        member_bytes,
        overhead,
    })
}

fn check_members(members: &[(u32, &Changes)]) -> Result<()> {
    let changes: u64 = members.iter().map(|m| m.1.len()).sum();
    if members.len() as u64 > MAX_MEMBERS || changes > MAX_CHANGES {
        let why = "too many members or changes for one set";
        return Err(FormatError::invalid(WHAT, why));
    }
    for (elements, changes) in members {
        if !(1..=PIECE_ELEMENTS).contains(&u64::from(*elements)) {
            return Err(FormatError::invalid(
                WHAT,
                "a member is empty or longer than a piece",
            ));
        }
        if let Some(last) = changes.last()
            && last >= *elements
        {
            return Err(FormatError::OutOfBounds {
                element: u64::from(last),
                elements: u64::from(*elements),
            });
        }
    }
    Ok(())
}

/// The changes that lie in one block of the virtual index space.
struct Block {
    number: u32,
    changes: BlockChanges,
    /// Changes per member with any in this block: (member, count).
    per_member: Vec<(usize, u64)>,
}

fn split_into_blocks(layout: &VirtualLayout, members: &[(u32, &Changes)]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for (member, (_, changes)) in members.iter().enumerate() {
        let start = layout.members[member].0;
        for (element, shift) in changes.iter() {
            let index = start + element;
            let number = index >> layout.block_log2;
            if blocks.last().is_none_or(|b| b.number != number) {
                blocks.push(Block {
                    number,
                    changes: BlockChanges::default(),
                    per_member: Vec::new(),
                });
            }
            let Some(block) = blocks.last_mut() else {
                continue;
            };
            block
                .changes
                .positions
                .push(index & ((1 << layout.block_log2) - 1));
            block.changes.shifts.push(shift);
            match block.per_member.last_mut() {
                Some((last, count)) if *last == member => *count += 1,
                _ => block.per_member.push((member, 1)),
            }
        }
    }
    blocks
}

fn put_member_runs(bytes: &mut Vec<u8>, members: &[(u32, &Changes)]) {
    let runs: Vec<_> = members.chunk_by(|a, b| a.0 == b.0).collect();
    put_varint(bytes, runs.len() as u64);
    for run in runs {
        put_varint(bytes, u64::from(run[0].0));
        put_varint(bytes, run.len() as u64);
    }
}

fn put_directory(
    bytes: &mut Vec<u8>,
    layout: &VirtualLayout,
    blocks: &[Block],
    payloads: &[Vec<u8>],
) {
    put_varint(bytes, blocks.len() as u64);
    let all = layout.blocks();
    if !blocks.is_empty() && (blocks.len() as u32) < all {
        let mut present = vec![0u8; all.div_ceil(8) as usize];
        for block in blocks {
            present[block.number as usize / 8] |= 1 << (block.number % 8);
        }
        bytes.extend(present);
    }
    for (block, payload) in blocks.iter().zip(payloads) {
        put_varint(bytes, block.changes.positions.len() as u64);
        put_varint(bytes, payload.len() as u64);
    }
}

/// Share `overhead` and each payload out among the members by their changes, to the byte.
fn share_out(
    overhead: u64,
    members: &[(u32, &Changes)],
    blocks: &[Block],
    payloads: &[Vec<u8>],
) -> Vec<u64> {
    let mut shares = vec![0; members.len()];
    let mut share = |bytes: u64, counts: &mut dyn Iterator<Item = (usize, u64)>, total: u64| {
        let (mut seen, mut given) = (0u128, 0u64);
        for (member, count) in counts {
            seen += u128::from(count);
            let upto = (u128::from(bytes) * seen / u128::from(total)) as u64;
            shares[member] += upto - given;
            given = upto;
        }
    };
    let changed: u64 = members.iter().map(|m| m.1.len()).sum();
    if changed > 0 {
        let counts = &mut members.iter().map(|m| m.1.len()).enumerate();
        share(overhead, counts, changed);
    }
    for (block, payload) in blocks.iter().zip(payloads) {
        let total = block.changes.positions.len() as u64;
        share(
            payload.len() as u64,
            &mut block.per_member.iter().copied(),
            total,
        );
    }
    shares
}
