//! The plain coding of one block: Rice-coded gaps or a bitmap for the positions; signs, exceptions,
//! Exp-Golomb magnitudes or byte planes for the shifts. The encoder picks what is smallest.

use super::WHAT;
use crate::bits::{BitReader, BitWriter, exp_golomb_bits, rice_bits};
use crate::dtype::ElementClass;
use crate::error::{FormatError, Result};
use crate::zstd_frame;

/// Changes of one block: indexes within it, strictly ascending, and their shifts.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct BlockChanges {
    pub(super) positions: Vec<u32>,
    pub(super) shifts: Vec<i64>,
}

/// Largest Rice parameter: a gap is shorter than the longest block.
const MAX_RICE: u32 = 18;
const MAX_ORDER: u32 = 62;
/// Bits of explicit parameters.
const PARAMETER_BITS: u64 = 20;
/// Exp-Golomb order of the number of exceptions.
const EXCEPTION_COUNT_ORDER: u32 = 3;
/// Shifts that average fewer bits than this never gain from byte planes and zstd.
const PLANES_FROM_BITS: u64 = 5;
const ZSTD_LEVEL: i32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum PositionCoding {
    Gaps = 0,
    Bitmap = 1,
    Full = 2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ValueCoding {
    Exceptions = 0,
    Magnitudes = 1,
    Planes = 2,
}

/// How a block is coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parameters {
    positions: PositionCoding,
    gap_rice: u32,
    values: ValueCoding,
    exception_rice: u32,
    magnitude_order: u32,
}

impl Parameters {
    pub(super) fn to_bits(self) -> u64 {
        self.positions as u64
            | u64::from(self.gap_rice) << 2
            | (self.values as u64) << 7
            | u64::from(self.exception_rice) << 9
            | u64::from(self.magnitude_order) << 14
    }

    pub(super) fn from_bits(bits: u64) -> Result<Self> {
        let field = |at: u32, count: u32| (bits >> at & ((1 << count) - 1)) as u32;
        let unknown = |field, found| FormatError::Unsupported {
            what: WHAT,
            field,
            found: u64::from(found),
            supported: "0, 1 and 2",
        };
        let parameters = Self {
            positions: match field(0, 2) {
                0 => PositionCoding::Gaps,
                1 => PositionCoding::Bitmap,
                2 => PositionCoding::Full,
                other => return Err(unknown("position coding", other)),
            },
            gap_rice: field(2, 5),
            values: match field(7, 2) {
                0 => ValueCoding::Exceptions,
                1 => ValueCoding::Magnitudes,
                2 => ValueCoding::Planes,
                other => return Err(unknown("value coding", other)),
            },
            exception_rice: field(9, 5),
            magnitude_order: field(14, 6),
        };
        if bits >> PARAMETER_BITS != 0
            || parameters.gap_rice > MAX_RICE
            || parameters.exception_rice > MAX_RICE
            || parameters.magnitude_order > MAX_ORDER
        {
            return Err(FormatError::invalid(WHAT, "a parameter is out of range"));
        }
        Ok(parameters)
    }

    /// The same with the fields that its codings do not use set to 0.
    fn canonical(mut self) -> Self {
        if self.positions != PositionCoding::Gaps {
            self.gap_rice = 0;
        }
        if self.values != ValueCoding::Exceptions {
            self.exception_rice = 0;
        }
        if self.values == ValueCoding::Planes {
            self.magnitude_order = 0;
        }
        self
    }
}

/// What a block's changes come to under the codings, gathered once.
pub(super) struct BlockCosts {
    gaps: Vec<u32>,
    exception_gaps: Vec<u32>,
    /// |shift| - 2 of the exceptions.
    exception_magnitudes: Vec<u64>,
    /// |shift| - 1 of all.
    magnitudes: Vec<u64>,
}

impl BlockCosts {
    pub(super) fn of(changes: &BlockChanges) -> Self {
        let mut next = 0;
        let gaps = (changes.positions.iter())
            .map(|&p| p - std::mem::replace(&mut next, p + 1))
            .collect();
        let magnitudes: Vec<u64> = changes
            .shifts
            .iter()
            .map(|d| d.unsigned_abs() - 1)
            .collect();
        let (mut exception_gaps, mut exception_magnitudes) = (Vec::new(), Vec::new());
        let mut next = 0;
        for (rank, &magnitude) in magnitudes.iter().enumerate() {
            if magnitude > 0 {
                exception_gaps.push(rank as u32 - std::mem::replace(&mut next, rank as u32 + 1));
                exception_magnitudes.push(magnitude - 1);
            }
        }
        Self {
            gaps,
            exception_gaps,
            exception_magnitudes,
            magnitudes,
        }
    }

    fn gaps_bits(&self, rice: u32) -> u64 {
        self.gaps.iter().map(|&g| rice_bits(g, rice)).sum()
    }

    fn exceptions_bits(&self, rice: u32, order: u32) -> u64 {
        self.magnitudes.len() as u64
            + exp_golomb_bits(self.exception_gaps.len() as u64, EXCEPTION_COUNT_ORDER)
            + (self.exception_gaps.iter())
                .map(|&g| rice_bits(g, rice))
                .sum::<u64>()
            + (self.exception_magnitudes.iter())
                .map(|&x| exp_golomb_bits(x, order))
                .sum::<u64>()
    }

    fn magnitudes_bits(&self, order: u32) -> u64 {
        self.magnitudes.len() as u64
            + (self.magnitudes.iter())
                .map(|&x| exp_golomb_bits(x, order))
                .sum::<u64>()
    }

    fn position_bits(&self, parameters: Parameters, block_len: u32) -> u64 {
        match parameters.positions {
            PositionCoding::Gaps => self.gaps_bits(parameters.gap_rice),
            PositionCoding::Bitmap => u64::from(block_len),
            PositionCoding::Full => 0,
        }
    }

    /// Bits of positions and values under `parameters`; planes are not costed here.
    fn bits(&self, parameters: Parameters, block_len: u32) -> u64 {
        let values = match parameters.values {
            ValueCoding::Exceptions => {
                self.exceptions_bits(parameters.exception_rice, parameters.magnitude_order)
            }
            ValueCoding::Magnitudes => self.magnitudes_bits(parameters.magnitude_order),
            ValueCoding::Planes => u64::MAX / 2,
        };
        self.position_bits(parameters, block_len) + values
    }

    /// The cheapest parameters for this block alone, planes apart.
    fn best(&self, block_len: u32, gapless: bool) -> Parameters {
        let full = gapless && self.gaps.len() as u32 == block_len;
        let (gap_rice, gaps_bits) =
            cheapest(rice_guess(&self.gaps), MAX_RICE, |k| self.gaps_bits(k));
        let positions = if full {
            PositionCoding::Full
        } else if gaps_bits > u64::from(block_len) {
            PositionCoding::Bitmap
        } else {
            PositionCoding::Gaps
        };
        let (exception_rice, _) = cheapest(rice_guess(&self.exception_gaps), MAX_RICE, |k| {
            self.exceptions_bits(k, 0)
        });
        let (exception_order, exceptions_bits) =
            cheapest(order_guess(&self.exception_magnitudes), MAX_ORDER, |m| {
                self.exceptions_bits(exception_rice, m)
            });
        let (magnitude_order, magnitudes_bits) =
            cheapest(order_guess(&self.magnitudes), MAX_ORDER, |m| {
                self.magnitudes_bits(m)
            });
        let exceptions = exceptions_bits <= magnitudes_bits;
        Parameters {
            positions,
            gap_rice,
            values: if exceptions {
                ValueCoding::Exceptions
            } else {
                ValueCoding::Magnitudes
            },
            exception_rice,
            magnitude_order: if exceptions {
                exception_order
            } else {
                magnitude_order
            },
        }
        .canonical()
    }
}

/// log2 of the mean, near which the best Rice parameter lies.
fn rice_guess(values: &[u32]) -> u32 {
    let sum: u64 = values.iter().map(|&x| u64::from(x)).sum();
    (sum / values.len().max(1) as u64)
        .checked_ilog2()
        .unwrap_or(0)
}

/// The mean bit length, near which the best Exp-Golomb order lies.
fn order_guess(values: &[u64]) -> u32 {
    let bits: u64 = values
        .iter()
        .map(|&x| u64::from(64 - x.leading_zeros()))
        .sum();
    (bits / values.len().max(1) as u64).saturating_sub(1) as u32
}

/// Walk downhill from `guess` to the parameter of least cost.
fn cheapest(guess: u32, max: u32, cost: impl Fn(u32) -> u64) -> (u32, u64) {
    let mut best = (guess.min(max), cost(guess.min(max)));
    for direction in [1, -1] {
        while let Some(next) = best.0.checked_add_signed(direction).filter(|&k| k <= max) {
            let bits = cost(next);
            if bits >= best.1 {
                break;
            }
            best = (next, bits);
        }
    }
    best
}

/// Parameters that serve the blocks of a set well together: those that a mean block would choose.
pub(super) fn default_parameters(costs: &[BlockCosts], block_lens: &[u32]) -> Parameters {
    let mut pooled = BlockCosts {
        gaps: Vec::new(),
        exception_gaps: Vec::new(),
        exception_magnitudes: Vec::new(),
        magnitudes: Vec::new(),
    };
    // A sample is enough to choose by: every block still takes its own where that is smaller.
    const ENOUGH: usize = 1 << 14;
    let stride = costs.len().div_ceil(64).max(1);
    let mut pooled_len = 0u64;
    for (block, len) in costs.iter().zip(block_lens).step_by(stride) {
        pooled.gaps.extend_from_slice(&block.gaps);
        pooled
            .exception_gaps
            .extend_from_slice(&block.exception_gaps);
        (pooled.exception_magnitudes).extend_from_slice(&block.exception_magnitudes);
        pooled.magnitudes.extend_from_slice(&block.magnitudes);
        pooled_len += u64::from(*len);
        if pooled.gaps.len() > ENOUGH {
            break;
        }
    }
    pooled.best(pooled_len.min(u64::from(u32::MAX)) as u32, false)
}

/// Encode one block's changes.
pub(super) fn encode_block(
    class: ElementClass,
    changes: &BlockChanges,
    costs: &BlockCosts,
    block_len: u32,
    gapless: bool,
    defaults: Parameters,
) -> Vec<u8> {
    let own = costs.best(block_len, gapless);
    let own_bits = costs.bits(own, block_len);
    let use_defaults = costs.bits(defaults, block_len) <= own_bits + PARAMETER_BITS;
    let mut writer = BitWriter::default();
    let parameters = if use_defaults { defaults } else { own };
    put_parameters(&mut writer, parameters, use_defaults);
    put_positions(&mut writer, parameters, changes, costs, block_len);
    put_values(&mut writer, parameters, changes, costs);
    let encoded = writer.finish();

    let values_bits = own_bits - costs.position_bits(own, block_len);
    if values_bits < PLANES_FROM_BITS * changes.shifts.len() as u64 {
        return encoded;
    }
    let Some(planes) = encode_planes(class, changes) else {
        return encoded;
    };
    let parameters = Parameters {
        values: ValueCoding::Planes,
        ..own
    }
    .canonical();
    let mut writer = BitWriter::default();
    put_parameters(&mut writer, parameters, false);
    put_positions(&mut writer, parameters, changes, costs, block_len);
    writer.align_and_append(&planes);
    let with_planes = writer.finish();
    if with_planes.len() < encoded.len() {
        with_planes
    } else {
        encoded
    }
}

fn put_parameters(writer: &mut BitWriter, parameters: Parameters, default: bool) {
    writer.put(u64::from(!default), 1);
    if !default {
        writer.put(parameters.to_bits(), PARAMETER_BITS as u32);
    }
}

fn put_positions(
    writer: &mut BitWriter,
    parameters: Parameters,
    changes: &BlockChanges,
    costs: &BlockCosts,
    block_len: u32,
) {
    match parameters.positions {
        PositionCoding::Gaps => {
            for &gap in &costs.gaps {
                writer.rice(gap, parameters.gap_rice);
            }
        }
        PositionCoding::Bitmap => {
            let mut words = vec![0u32; block_len.div_ceil(32) as usize];
            for &p in &changes.positions {
                words[p as usize / 32] |= 1 << (p % 32);
            }
            for (i, &word) in words.iter().enumerate() {
                writer.put(u64::from(word), (block_len - 32 * i as u32).min(32));
            }
        }
        PositionCoding::Full => {}
    }
}

fn put_values(
    writer: &mut BitWriter,
    parameters: Parameters,
    changes: &BlockChanges,
    costs: &BlockCosts,
) {
    for shifts in changes.shifts.chunks(32) {
        let signs = (shifts.iter().rev()).fold(0, |bits, &d| bits << 1 | u64::from(d < 0));
        writer.put(signs, shifts.len() as u32);
    }
    match parameters.values {
        ValueCoding::Exceptions => {
            writer.exp_golomb(costs.exception_gaps.len() as u64, EXCEPTION_COUNT_ORDER);
            for &gap in &costs.exception_gaps {
                writer.rice(gap, parameters.exception_rice);
            }
            for &magnitude in &costs.exception_magnitudes {
                writer.exp_golomb(magnitude, parameters.magnitude_order);
            }
        }
        ValueCoding::Magnitudes => {
            for &magnitude in &costs.magnitudes {
                writer.exp_golomb(magnitude, parameters.magnitude_order);
            }
        }
        ValueCoding::Planes => unreachable!("planes are appended by encode_block"),
    }
}

/// Bytes of a zig-zag shift in planes.
const fn plane_count(class: ElementClass) -> usize {
    match class.width() {
        1 => 2,
        2 => 3,
        4 => 5,
        _ => 8,
    }
}

/// The shifts as byte planes in one zstd frame, if that is worth anything.
fn encode_planes(class: ElementClass, changes: &BlockChanges) -> Option<Vec<u8>> {
    let count = changes.shifts.len();
    let mut planes = vec![0; count * plane_count(class)];
    for (i, &shift) in changes.shifts.iter().enumerate() {
        let zigzag = (shift << 1 ^ shift >> 63) as u64;
        for (plane, byte) in (0..plane_count(class)).zip(zigzag.to_le_bytes()) {
            planes[plane * count + i] = byte;
        }
    }
    zstd_frame::compress(&planes, ZSTD_LEVEL)
}

/// Decode the payload of one block of `block_len` indexes with `count` changes.
pub(super) fn decode_block(
    class: ElementClass,
    payload: &[u8],
    count: u32,
    block_len: u32,
    gapless: bool,
    defaults: Parameters,
) -> Result<BlockChanges> {
    let mut reader = BitReader::new(payload);
    let parameters = if reader.get(1)? == 1 {
        let own = Parameters::from_bits(reader.get(PARAMETER_BITS as u32)?)?;
        if own != own.canonical() {
            return Err(FormatError::invalid(
                WHAT,
                "an unused parameter is not zero",
            ));
        }
        own
    } else {
        defaults
    };
    let positions = get_positions(&mut reader, parameters, count, block_len, gapless)?;
    let shifts = get_values(reader, parameters, class, count)?;
    Ok(BlockChanges { positions, shifts })
}

fn get_positions(
    reader: &mut BitReader<'_>,
    parameters: Parameters,
    count: u32,
    block_len: u32,
    gapless: bool,
) -> Result<Vec<u32>> {
    let mut positions = Vec::with_capacity(count as usize);
    match parameters.positions {
        PositionCoding::Gaps => {
            let mut next = 0;
            for _ in 0..count {
                let Some(limit) = (block_len - next).checked_sub(1) else {
                    return Err(FormatError::invalid(WHAT, "a position is past its block"));
                };
                let position = next + reader.rice(parameters.gap_rice, limit)?;
                positions.push(position);
                next = position + 1;
            }
        }
        PositionCoding::Bitmap => {
            for first in (0..block_len).step_by(32) {
                let mut word = reader.get((block_len - first).min(32))?;
                while word != 0 {
                    positions.push(first + word.trailing_zeros());
                    word &= word - 1;
                }
            }
            if positions.len() != count as usize {
                return Err(FormatError::invalid(
                    WHAT,
                    "a bitmap does not hold its count",
                ));
            }
        }
        PositionCoding::Full => {
            if count != block_len || !gapless {
                return Err(FormatError::invalid(WHAT, "a full block is not full"));
            }
            positions.extend(0..block_len);
        }
    }
    Ok(positions)
}

fn get_values(
    mut reader: BitReader<'_>,
    parameters: Parameters,
    class: ElementClass,
    count: u32,
) -> Result<Vec<i64>> {
    if parameters.values == ValueCoding::Planes {
        return get_planes(reader.align_and_take()?, class, count);
    }
    let mut signs = Vec::with_capacity(count.div_ceil(32) as usize);
    for first in (0..count).step_by(32) {
        signs.push(reader.get((count - first).min(32))?);
    }
    let largest = class.largest_shift();
    let mut magnitudes = vec![1u64; count as usize];
    if parameters.values == ValueCoding::Magnitudes {
        for magnitude in &mut magnitudes {
            *magnitude += reader.exp_golomb(parameters.magnitude_order, largest - 1)?;
        }
    } else {
        let exceptions = reader.exp_golomb(EXCEPTION_COUNT_ORDER, u64::from(count))?;
        let mut ranks = Vec::with_capacity(exceptions as usize);
        let mut next = 0;
        for _ in 0..exceptions {
            let Some(limit) = (count - next).checked_sub(1) else {
                return Err(FormatError::invalid(WHAT, "an exception is past its block"));
            };
            let rank = next + reader.rice(parameters.exception_rice, limit)?;
            ranks.push(rank);
            next = rank + 1;
        }
        for rank in ranks {
            let above = reader.exp_golomb(parameters.magnitude_order, largest - 2)?;
            magnitudes[rank as usize] = above + 2;
        }
    }
    reader.finish()?;
    let shifts = magnitudes.iter().enumerate().map(|(i, &magnitude)| {
        let negative = signs[i / 32] >> (i % 32) & 1 == 1;
        match (negative, i64::try_from(magnitude)) {
            (true, _) => Ok((magnitude as i64).wrapping_neg()),
            (false, Ok(shift)) => Ok(shift),
            (false, Err(_)) => Err(FormatError::invalid(WHAT, "a shift is out of range")),
        }
    });
    shifts.collect()
}

fn get_planes(frame: &[u8], class: ElementClass, count: u32) -> Result<Vec<i64>> {
    let count = count as usize;
    let expected = count * plane_count(class);
    let mut planes = vec![0; expected];
    if !zstd_frame::decompress(frame, &mut planes) {
        let why = "byte planes are damaged or of the wrong size";
        return Err(FormatError::invalid(WHAT, why));
    }
    let mut shifts = Vec::with_capacity(count);
    for i in 0..count {
        let mut bytes = [0; 8];
        for (plane, byte) in (0..plane_count(class)).zip(&mut bytes) {
            *byte = planes[plane * count + i];
        }
        let zigzag = u64::from_le_bytes(bytes);
        let shift = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        if shift == 0 || shift.unsigned_abs() > class.largest_shift() {
            return Err(FormatError::invalid(WHAT, "a shift is 0 or out of range"));
        }
        shifts.push(shift);
    }
    Ok(shifts)
}
