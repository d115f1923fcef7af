//! SPEC.md §2 to §5, written as the text says it and as slowly as that is: what the format crate is compared with.

use deltaic_format::ids::{PatchId, TensorId};
use deltaic_format::{ElementClass, Moments, Order};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Changed elements of a tensor: flat index to shift.
pub type Shifts = BTreeMap<u64, i64>;

/// Number of different words of a class.
pub fn words_of(class: ElementClass) -> u128 {
    1 << (8 * class.width())
}

/// The words of `content`.
pub fn words(class: ElementClass, content: &[u8]) -> impl Iterator<Item = u64> {
    content.chunks_exact(class.width()).map(|bytes| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    })
}

/// The bytes of `words`.
pub fn bytes(class: ElementClass, words: impl IntoIterator<Item = u64>) -> Vec<u8> {
    words
        .into_iter()
        .flat_map(|word| word.to_le_bytes().into_iter().take(class.width()))
        .collect()
}

fn sign_and_mask(class: ElementClass) -> (u64, u64) {
    let mask = (words_of(class) - 1) as u64;
    (mask / 2 + 1, mask)
}

/// The place of `word` in the order of its class.
pub fn ord(class: ElementClass, word: u64) -> u64 {
    let (sign, mask) = sign_and_mask(class);
    match class.order() {
        Order::Unsigned => word,
        Order::Signed => word ^ sign,
        Order::Float if word & sign == 0 => word ^ sign,
        Order::Float => !word & mask,
    }
}

/// The word at place `ord`.
pub fn word(class: ElementClass, ord: u64) -> u64 {
    let (sign, mask) = sign_and_mask(class);
    match class.order() {
        Order::Unsigned => ord,
        Order::Signed => ord ^ sign,
        Order::Float if ord & sign != 0 => ord ^ sign,
        Order::Float => !ord & mask,
    }
}

/// What changes `old` into `new`.
pub fn diff(class: ElementClass, old: &[u8], new: &[u8]) -> Shifts {
    let pairs = words(class, old).zip(words(class, new)).enumerate();
    pairs
        .filter(|(_, (old, new))| old != new)
        .map(|(i, (old, new))| {
            let shift = i128::from(ord(class, new)) - i128::from(ord(class, old));
            (i as u64, shift as i64)
        })
        .collect()
}

/// The sum of several changes; what cancels is dropped.
pub fn compose<'a>(parts: impl IntoIterator<Item = &'a Shifts>) -> Shifts {
    let mut sum = Shifts::new();
    for (&index, &shift) in parts.into_iter().flatten() {
        let total = sum.entry(index).or_default();
        *total = total.wrapping_add(shift);
    }
    sum.retain(|_, shift| *shift != 0);
    sum
}

/// The canonical bytes of a patch (§4).
pub fn canonical_bytes(
    class: ElementClass,
    from: TensorId,
    to: TensorId,
    elements: u64,
    shifts: &Shifts,
) -> Vec<u8> {
    let mut out = vec![class.number()];
    out.extend(from.0);
    out.extend(to.0);
    out.extend(elements.to_le_bytes());
    let mut rest: Vec<(u64, i64)> = shifts.iter().map(|(&i, &d)| (i, d)).collect();
    while let Some(&(first, _)) = rest.first() {
        let block = first >> 16;
        let after = rest.split_off(rest.partition_point(|(i, _)| i >> 16 == block));
        out.extend(block.to_le_bytes());
        out.extend((rest.len() as u32).to_le_bytes());
        for (index, _) in &rest {
            out.extend(((index & 0xffff) as u16).to_le_bytes());
        }
        for (_, shift) in &rest {
            let bytes = shift.to_le_bytes();
            out.extend(&bytes[..(2 * class.width()).min(8)]);
        }
        rest = after;
    }
    out
}

/// The id of a patch (§3).
pub fn patch_id(
    class: ElementClass,
    from: TensorId,
    to: TensorId,
    elements: u64,
    shifts: &Shifts,
) -> PatchId {
    let bytes = canonical_bytes(class, from, to, elements, shifts);
    PatchId(blake3::derive_key("deltaic 2026-11-30 patch v1", &bytes))
}

/// The splitmix64 finaliser (§1).
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

static PRIMES: LazyLock<Vec<u64>> = LazyLock::new(|| {
    let path = crate::places::vectors().join("moment-primes.txt");
    let text = std::fs::read_to_string(path).expect("the primes belong to the vectors");
    text.lines().flat_map(str::parse).collect()
});

/// r(i), the weight of element `i` in the moments (§5).
pub fn element_weight(i: u64) -> u64 {
    let run = mix((i / 512).wrapping_add(0x9E37_79B9_7F4A_7C15)) | 1;
    run.wrapping_mul(PRIMES[(i % 512) as usize])
}

/// The moments of a content (§5).
pub fn moments(class: ElementClass, content: &[u8]) -> Moments {
    let mut sum = Moments::default();
    for (i, word) in words(class, content).enumerate() {
        let (r, ord) = (element_weight(i as u64), ord(class, word));
        let h = match class.width() {
            1 | 2 => ord * ord,
            _ => mix(ord),
        };
        sum.l = sum.l.wrapping_add(r.wrapping_mul(ord));
        sum.q = sum.q.wrapping_add(r.wrapping_mul(h));
    }
    sum
}

/// `sum r(i) * d_i`: what a patch alone says about the first moment (§5).
pub fn first_moment_of(shifts: &Shifts) -> u64 {
    shifts.iter().fold(0, |sum: u64, (&i, &d)| {
        sum.wrapping_add(element_weight(i).wrapping_mul(d as u64))
    })
}
