//! Patch sets: the changes of many tensors' pieces in one encoded value (SPEC.md §6).
//!
//! [`encode`] writes one, [`SetBuilder`] gathers what goes into one, [`PatchSetReader`] reads one; `block` is the plain coding of a block.

mod block;
mod builder;
mod decode;
mod encode;

pub use builder::{ClosedSet, SetBuilder};
pub use decode::PatchSetReader;
pub use encode::{EncodedPatchSet, encode};

/// Name of the format in errors.
const WHAT: &str = "patch set";

/// First bytes of a patch set.
const MAGIC: [u8; 8] = *b"\x89DPS\r\n\x1a\n";
const VERSION: u8 = 1;

/// The plain coding.
const CODING_PLAIN: u8 = 1;

/// The layout of the flat tensor.
const LAYOUT_FLAT: u8 = 0;

const MAX_MEMBERS: u64 = 1 << 20;
const MAX_VIRTUAL_LEN: u64 = 1 << 26;
/// A few bytes can say that a whole block has changed, so the changes have a cap of their own.
const MAX_CHANGES: u64 = 1 << 23;

/// Where each member begins in the virtual index space.
#[derive(Debug, Clone, PartialEq)]
struct VirtualLayout {
    /// (first virtual index, elements) per member.
    members: Vec<(u32, u32)>,
    /// Length of the space.
    len: u32,
    /// Log2 of the block length.
    block_log2: u32,
}

impl VirtualLayout {
    /// Lay out members one after the other; those of a block or more begin at a block boundary.
    /// `None` if the space would exceed its cap.
    fn new(elements: impl IntoIterator<Item = u32>, block_log2: u32) -> Option<Self> {
        let block = 1u64 << block_log2;
        let mut cursor = 0u64;
        let mut members = Vec::new();
        for elements in elements {
            if u64::from(elements) >= block {
                cursor = cursor.next_multiple_of(block);
            }
            members.push((cursor as u32, elements));
            cursor += u64::from(elements);
            if cursor > MAX_VIRTUAL_LEN {
                return None;
            }
        }
        Some(Self {
            members,
            len: cursor as u32,
            block_log2,
        })
    }

    fn blocks(&self) -> u32 {
        self.len.div_ceil(1 << self.block_log2)
    }

    fn block_len(&self, block: u32) -> u32 {
        (self.len - (block << self.block_log2)).min(1 << self.block_log2)
    }

    /// Whether every index of `block` belongs to a member.
    fn is_gapless(&self, block: u32) -> bool {
        let first = block << self.block_log2;
        let end = first + self.block_len(block);
        let mut covered = first;
        for &(start, elements) in &self.members[self.member_at(first)..] {
            if start > covered {
                return false;
            }
            covered = start + elements;
            if covered >= end {
                return true;
            }
        }
        false
    }

    /// The last member that begins at or before `index`; 0 if there is none.
    fn member_at(&self, index: u32) -> usize {
        (self.members.partition_point(|&(start, _)| start <= index)).saturating_sub(1)
    }
}
