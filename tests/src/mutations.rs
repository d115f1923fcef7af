//! Damage done to valid bytes, as faults and attackers do it.

use crate::weights::Stream;

/// A damaged copy of `bytes`.
pub fn mutated(bytes: &[u8], stream: &mut Stream) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..1 + stream.below(3) {
        mutate(&mut out, stream);
    }
    out
}

fn mutate(bytes: &mut Vec<u8>, stream: &mut Stream) {
    // Most of what a decoder decides by stands near the beginning, some near the end.
    let length = bytes.len() as u64;
    let near = length.min(48);
    let at = match stream.below(4) {
        0 | 1 => stream.below(near + 1),
        2 => length - stream.below(near + 1),
        _ => stream.below(length + 1),
    } as usize;
    match stream.below(8) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, stream.number() as u8),
        2 if at < bytes.len() => {
            bytes.remove(at);
        }
        3 if at < bytes.len() => bytes[at] = stream.number() as u8,
        // A length that claims much: the longest varints, the largest fixed integers.
        4 => overwrite(bytes, at, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
        5 => overwrite(bytes, at, &[0xff, 0xff, 0x7f]),
        // A stretch from elsewhere.
        6 => {
            let from = stream.below(length + 1) as usize;
            let to = (from + stream.below(64) as usize).min(bytes.len());
            let stretch = bytes[from..to].to_vec();
            bytes.splice(at..at, stretch);
        }
        _ if at < bytes.len() => bytes[at] ^= 1 << stream.below(8),
        _ => bytes.push(stream.number() as u8),
    }
}

fn overwrite(bytes: &mut [u8], at: usize, with: &[u8]) {
    for (byte, new) in bytes[at..].iter_mut().zip(with) {
        *byte = *new;
    }
}
