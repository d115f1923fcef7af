//! Reading a patch set from untrusted bytes.

use super::block::{BlockChanges, Parameters, decode_block};
use super::{
    CODING_PLAIN, LAYOUT_FLAT, MAGIC, MAX_CHANGES, MAX_MEMBERS, MAX_VIRTUAL_LEN, VERSION,
    VirtualLayout, WHAT,
};
use crate::bytes::ByteReader;
use crate::dtype::ElementClass;
use crate::error::{FormatError, Result};
use crate::patch::{Changes, ChangesBuilder, PIECE_ELEMENTS};
use std::ops::Range;

/// A patch set whose header and directory were checked; blocks are decoded on demand.
#[derive(Debug)]
pub struct PatchSetReader<'a> {
    class: ElementClass,
    defaults: Parameters,
    layout: VirtualLayout,
    /// Present blocks, ascending.
    directory: Vec<Entry>,
    payloads: &'a [u8],
}

#[derive(Debug)]
struct Entry {
    block: u32,
    count: u32,
    payload: Range<usize>,
}

impl<'a> PatchSetReader<'a> {
    /// Check header and directory of `bytes`.
    ///
    /// # Errors
    ///
    /// If anything in them breaks a rule of SPEC.md §6.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        let mut reader = ByteReader::new(WHAT, bytes);
        if reader.array()? != MAGIC {
            return Err(FormatError::Magic { what: WHAT });
        }
        reader.version(VERSION)?;
        let known = |field, found, known, supported| {
            if found == known {
                return Ok(());
            }
            Err(FormatError::Unsupported {
                what: WHAT,
                field,
                found: u64::from(found),
                supported,
            })
        };
        known("coding", reader.u8()?, CODING_PLAIN, "coding 1 (plain)")?;
        let class = ElementClass::from_number(WHAT, reader.u8()?)?;
        let block_log2 = u32::from(reader.u8()?);
        if !(16..=18).contains(&block_log2) {
            return Err(FormatError::invalid(
                WHAT,
                "a block length other than 2^16 to 2^18",
            ));
        }
        known("layout", reader.u8()?, LAYOUT_FLAT, "layout 0 (flat)")?;
        let [a, b, c] = reader.array()?;
        let defaults = Parameters::from_bits(u64::from(u32::from_le_bytes([a, b, c, 0])))?;
        let layout = read_members(&mut reader, block_log2)?;
        let directory = read_directory(&mut reader, &layout)?;
        let length = directory.last().map_or(0, |entry| entry.payload.end);
        let payloads = reader.bytes(length)?;
        reader.finish()?;
        Ok(Self {
            class,
            defaults,
            layout,
            directory,
            payloads,
        })
    }

    /// The class of all members.
    pub fn class(&self) -> ElementClass {
        self.class
    }

    /// Number of elements of each member.
    pub fn members(&self) -> impl ExactSizeIterator<Item = u32> {
        self.layout.members.iter().map(|m| m.1)
    }

    /// Number of changes of all members.
    pub fn changed(&self) -> u64 {
        self.directory.iter().map(|e| u64::from(e.count)).sum()
    }

    /// The changes of member `member`, decoding only the blocks that it lies in.
    ///
    /// # Errors
    ///
    /// If there is no such member or a block is damaged.
    pub fn member(&self, member: usize) -> Result<Changes> {
        if member >= self.layout.members.len() {
            return Err(FormatError::invalid(
                WHAT,
                format!("there is no member {member}"),
            ));
        }
        let mut only = Vec::with_capacity(1);
        self.decode_range(member..member + 1, |_, changes| only.push(changes))?;
        Ok(only.pop().unwrap_or_default())
    }

    /// Decode every member, in order.
    ///
    /// # Errors
    ///
    /// If a block is damaged.
    pub fn all(&self) -> Result<Vec<Changes>> {
        let mut all = Vec::with_capacity(self.layout.members.len());
        self.decode_range(0..self.layout.members.len(), |_, changes| all.push(changes))?;
        Ok(all)
    }

    /// Decode each block that members `range` lie in once, and give each member's changes to `done`.
    fn decode_range(
        &self,
        range: Range<usize>,
        mut done: impl FnMut(usize, Changes),
    ) -> Result<()> {
        let Some(&(first_index, _)) = self.layout.members.get(range.start) else {
            return Ok(());
        };
        let (last_start, last_len) = self.layout.members[range.end - 1];
        let blocks = first_index >> self.layout.block_log2
            ..=(last_start + last_len - 1) >> self.layout.block_log2;
        let from = self
            .directory
            .partition_point(|e| e.block < *blocks.start());
        let mut member = range.start;
        let mut builder = ChangesBuilder::default();
        for entry in self.directory[from..]
            .iter()
            .take_while(|e| blocks.contains(&e.block))
        {
            let decoded = self.decode(entry)?;
            let first = entry.block << self.layout.block_log2;
            for (position, shift) in decoded.positions.into_iter().zip(decoded.shifts) {
                let index = first + position;
                if index < first_index || index >= last_start + last_len {
                    continue;
                }
                let (mut start, mut len) = self.layout.members[member];
                while index >= start + len {
                    done(member, std::mem::take(&mut builder).finish());
                    member += 1;
                    (start, len) = self.layout.members[member];
                }
                builder.push(index - start, shift);
            }
        }
        while member < range.end {
            done(member, std::mem::take(&mut builder).finish());
            member += 1;
        }
        Ok(())
    }

    /// Decode one block and check that no change lies between members.
    fn decode(&self, entry: &Entry) -> Result<BlockChanges> {
        let gapless = self.layout.is_gapless(entry.block);
        let decoded = decode_block(
            self.class,
            &self.payloads[entry.payload.clone()],
            entry.count,
            self.layout.block_len(entry.block),
            gapless,
            self.defaults,
        )?;
        if !gapless {
            let first = entry.block << self.layout.block_log2;
            for &position in &decoded.positions {
                let index = first + position;
                let (start, len) = self.layout.members[self.layout.member_at(index)];
                if index >= start + len {
                    return Err(FormatError::invalid(WHAT, "a change lies between members"));
                }
            }
        }
        Ok(decoded)
    }
}

fn read_members(reader: &mut ByteReader<'_>, block_log2: u32) -> Result<VirtualLayout> {
    let runs = reader.count("number of member runs", MAX_MEMBERS, 2)?;
    let mut members = Vec::new();
    let mut previous = 0;
    for _ in 0..runs {
        let elements = reader.varint_up_to("elements of a member", PIECE_ELEMENTS)?;
        let left = MAX_MEMBERS - members.len() as u64;
        let repeat = reader.varint_up_to("number of members", left)?;
        if elements == 0 || repeat == 0 || elements == previous {
            return Err(FormatError::invalid(
                WHAT,
                "an empty or split run of members",
            ));
        }
        if elements.saturating_mul(repeat) > MAX_VIRTUAL_LEN {
            return Err(FormatError::Limit {
                what: WHAT,
                field: "elements",
                found: elements.saturating_mul(repeat),
                limit: MAX_VIRTUAL_LEN,
            });
        }
        previous = elements;
        members.extend(std::iter::repeat_n(elements as u32, repeat as usize));
    }
    VirtualLayout::new(members, block_log2)
        .ok_or_else(|| FormatError::invalid(WHAT, "more elements than a set may hold"))
}

fn read_directory(reader: &mut ByteReader<'_>, layout: &VirtualLayout) -> Result<Vec<Entry>> {
    let all = layout.blocks();
    let present = reader.count("number of blocks", u64::from(all), 2)? as u32;
    let mut numbers = Vec::with_capacity(present as usize);
    if present > 0 && present < all {
        let bitmap = reader.bytes(all.div_ceil(8) as usize)?;
        numbers.extend(
            (0..bitmap.len() as u32 * 8).filter(|k| bitmap[*k as usize / 8] >> (k % 8) & 1 == 1),
        );
        if numbers.len() as u32 != present || numbers.last().is_some_and(|&k| k >= all) {
            return Err(FormatError::invalid(
                WHAT,
                "the bitmap of blocks does not hold their number",
            ));
        }
    } else {
        numbers.extend(0..present);
    }
    let mut offset = 0usize;
    let mut changes = 0;
    let mut directory = Vec::with_capacity(numbers.len());
    for block in numbers {
        let count =
            reader.varint_up_to("changes of a block", u64::from(layout.block_len(block)))?;
        if count == 0 {
            return Err(FormatError::invalid(WHAT, "a block without changes"));
        }
        changes += count;
        if changes > MAX_CHANGES {
            return Err(FormatError::Limit {
                what: WHAT,
                field: "changes",
                found: changes,
                limit: MAX_CHANGES,
            });
        }
        // What is left of the directory and all payloads; checked exactly when the payloads are taken.
        let length = reader.varint_up_to("length of a block", reader.left() as u64)? as usize;
        directory.push(Entry {
            block,
            count: count as u32,
            payload: offset..offset + length,
        });
        offset += length;
    }
    Ok(directory)
}
