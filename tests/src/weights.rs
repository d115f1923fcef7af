//! Made-up contents, updates and changes, the same for the same seed on every machine.

use crate::model::{self, mix};
use deltaic_format::patch::{Changes, ChangesBuilder};
use deltaic_format::{ElementClass, Order};

/// A stream of numbers: `mix(seed + k * 0x9E3779B97F4A7C15)` for k = 1, 2, 3, …, as in the golden vectors.
#[derive(Debug, Clone)]
pub struct Stream(u64);

impl Stream {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The first `length` bytes of the numbers, little-endian, each masked with `mask`.
    pub fn bytes(mut self, length: usize, mask: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(length + 7);
        while out.len() < length {
            out.extend((self.number() & mask).to_le_bytes());
        }
        out.truncate(length);
        out
    }

    /// Roughly normal with mean 0 and deviation 1 (the sum of twelve uniform numbers, less six).
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}

/// How many elements an update changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Density {
    /// None.
    None,
    /// One, somewhere.
    One,
    /// The first and the last.
    Ends,
    /// About this share of them.
    Share(f64),
    /// All.
    All,
}

/// What an update does to the elements that it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// What an optimizer step does: mostly the next or previous value, now and then a few further.
    Step,
    /// Any other word.
    Rewrite,
    /// From one end of the order to the other.
    Extremes,
    /// Zeros of both signs, infinities, NaNs with payloads, the ends of the order.
    Specials,
}

/// Words whose bits say something special.
pub fn special_words(class: ElementClass) -> Vec<u64> {
    let mask = (model::words_of(class) - 1) as u64;
    let sign = mask / 2 + 1;
    let mut words = vec![0, 1, sign - 1, sign, sign + 1, mask - 1, mask];
    // Infinity, the quiet NaN, a signalling NaN with a payload.
    let (infinity, quiet) = match class {
        ElementClass::F16 => (0x7c00, 0x0200),
        ElementClass::BF16 => (0x7f80, 0x0040),
        ElementClass::F32 => (0x7f80_0000, 0x0040_0000),
        ElementClass::F64 => (0x7ff0_0000_0000_0000, 0x0008_0000_0000_0000),
        ElementClass::F8E5M2 => (0x7c, 0x02),
        ElementClass::F8E4M3 => (0x78, 0x07),
        _ => return words,
    };
    for positive in [infinity, infinity | quiet, infinity | 1] {
        words.extend([positive, positive | sign]);
    }
    words
}

/// A content of `elements` elements: mostly such values as weights have, and one special word in sixteen.
pub fn content(class: ElementClass, elements: u64, seed: u64) -> Vec<u8> {
    let mut stream = Stream::new(seed);
    let specials = special_words(class);
    let bits = 8 * class.width() as u32;
    let words = (0..elements).map(|_| {
        let number = stream.number();
        if number.is_multiple_of(16) {
            return specials[(number >> 32) as usize % specials.len()];
        }
        let word = number >> (64 - bits);
        match class.order() {
            // Clear a bit below the sign: magnitudes below 2, as weights have them.
            Order::Float => word & !(1 << (bits - 2)),
            _ => word,
        }
    });
    model::bytes(class, words)
}

/// Weights such as a model has: normal, with deviation 0.02, as bf16.
pub fn bf16_weights(elements: u64, seed: u64) -> Vec<u8> {
    let mut stream = Stream::new(seed);
    let words = (0..elements).map(|_| u64::from((0.02 * stream.normal() as f32).to_bits() >> 16));
    model::bytes(ElementClass::BF16, words)
}

/// Indexes that an update of `density` touches, ascending.
fn touched(elements: u64, density: Density, stream: &mut Stream) -> Vec<u64> {
    match density {
        Density::None => Vec::new(),
        _ if elements == 0 => Vec::new(),
        Density::One => vec![stream.below(elements)],
        Density::Ends if elements == 1 => vec![0],
        Density::Ends => vec![0, elements - 1],
        Density::All => (0..elements).collect(),
        Density::Share(share) => {
            let least = (share * (1u64 << 53) as f64) as u64;
            (0..elements)
                .filter(|_| stream.number() >> 11 < least)
                .collect()
        }
    }
}

/// The same content after an update.
pub fn updated(
    class: ElementClass,
    content: &[u8],
    density: Density,
    update: Update,
    seed: u64,
) -> Vec<u8> {
    let mut stream = Stream::new(seed);
    let mut words: Vec<u64> = model::words(class, content).collect();
    let specials = special_words(class);
    let last = (model::words_of(class) - 1) as u64;
    for i in touched(words.len() as u64, density, &mut stream) {
        let old = words[i as usize];
        let ord = model::ord(class, old);
        let new = match update {
            Update::Step => {
                let shift = step_shift(&mut stream).min(last);
                let up = ord.checked_add(shift).filter(|&ord| ord <= last);
                let down = ord.checked_sub(shift);
                let [first, second] = if stream.below(2) == 0 {
                    [up, down]
                } else {
                    [down, up]
                };
                let place = first.or(second).unwrap_or(ord);
                model::word(class, place)
            }
            Update::Rewrite => stream.number() & last,
            Update::Extremes => model::word(class, if ord > last / 2 { 0 } else { last }),
            Update::Specials => specials[stream.below(specials.len() as u64) as usize],
        };
        words[i as usize] = new;
    }
    model::bytes(class, words)
}

/// How far an element moves in a step: mostly 1, rarely far.
fn step_shift(stream: &mut Stream) -> u64 {
    match stream.below(100) {
        0..86 => 1,
        86..97 => 2 + stream.below(8),
        _ => 1 + stream.below(4000),
    }
}

/// Changes of a piece of `elements` elements without contents that they lead between.
///
/// # Panics
///
/// If there are more elements than a piece has.
pub fn changes(
    class: ElementClass,
    elements: u32,
    density: Density,
    update: Update,
    seed: u64,
) -> Changes {
    let mut stream = Stream::new(seed);
    let largest = class.largest_shift();
    let mut builder = ChangesBuilder::default();
    for i in touched(u64::from(elements), density, &mut stream) {
        let size = match update {
            Update::Step => step_shift(&mut stream).min(largest),
            Update::Extremes => largest - stream.below(2),
            _ => 1 + stream.number() % largest,
        };
        let negative = stream.below(2) == 0;
        let shift = match i64::try_from(size) {
            Ok(size) if !negative => size,
            // -2^63 has no positive twin.
            _ => (size as i64).wrapping_neg(),
        };
        builder.push(i as u32, shift);
    }
    builder.finish()
}
