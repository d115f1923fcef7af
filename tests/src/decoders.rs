//! What hostile bytes meet: every decoder of the formats, one entry function each.
//!
//! An entry function takes any bytes. It returns whether they were accepted; it panics if a decoder does, or if
//! what was accepted breaks a rule. The mutation tests and the fuzz targets in `tests/fuzz` share them.

use deltaic_format::ElementClass;
use deltaic_format::base::{BASE_HEADER_LEN, decode_base_of, encode_base};
use deltaic_format::object::{CanonicalObject, Commit, Schema, SignedRef, Tree};
use deltaic_format::patch::{PIECE_ELEMENTS, words_after};
use deltaic_format::patch_set::{self, PatchSetReader};
use deltaic_format::safetensors as headers;

/// Takes any bytes; says whether they were accepted.
pub type Decoder = fn(&[u8]) -> bool;

/// Every decoder by name.
pub const ALL: [(&str, Decoder); 7] = [
    ("patch_set", patch_set),
    ("base", base),
    ("schema", schema),
    ("tree", tree),
    ("commit", commit),
    ("signed_ref", signed_ref),
    ("safetensors_file", safetensors_file),
];

/// Sets with more members than this are decoded but not encoded again, so that fuzzing stays quick.
const ENCODED_AGAIN: usize = 1 << 12;

/// Longest base that is decoded, in elements.
const LONGEST_BASE: u64 = 1 << 20;

/// A patch set (SPEC.md §6).
pub fn patch_set(bytes: &[u8]) -> bool {
    let Ok(reader) = PatchSetReader::new(bytes) else {
        return false;
    };
    let lengths: Vec<u32> = reader.members().collect();
    let Ok(all) = reader.all() else {
        return false;
    };
    assert_eq!(all.len(), lengths.len());
    for (member, (changes, &elements)) in all.iter().zip(&lengths).enumerate() {
        assert!(u64::from(elements) <= PIECE_ELEMENTS);
        assert!(changes.last().is_none_or(|last| last < elements));
        let largest = reader.class().largest_shift();
        assert!(
            (changes.iter()).all(|(_, shift)| shift != 0 && shift.unsigned_abs() <= largest),
            "member {member}"
        );
        // Whatever the changes, applying them to bytes that are too short is an error.
        if changes.last().is_some() {
            assert!(words_after(reader.class(), &[], changes).is_err());
        }
    }
    for member in [0, all.len() / 2, all.len().saturating_sub(1)] {
        if member < all.len() {
            assert_eq!(reader.member(member).as_ref(), Ok(&all[member]));
        }
    }
    if all.len() <= ENCODED_AGAIN {
        let members: Vec<_> = lengths.into_iter().zip(&all).collect();
        // Other block lengths pad otherwise, so a set near the cap may not fit again.
        if let Ok(again) = patch_set::encode(reader.class(), &members) {
            let decoded = PatchSetReader::new(&again.bytes).and_then(|reader| reader.all());
            assert_eq!(decoded.as_ref(), Ok(&all));
        }
    }
    true
}

/// A base (SPEC.md §7), read as whoever knows what it should hold reads it.
pub fn base(bytes: &[u8]) -> bool {
    let mut content = Vec::new();
    let claimed = bytes.get(9).zip(bytes.get(11..BASE_HEADER_LEN));
    let (class, elements) = claimed.map_or((1, 0), |(class, elements)| {
        let elements = elements
            .iter()
            .rev()
            .fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        (*class, elements)
    });
    let class = ElementClass::from_number("base", class).unwrap_or(ElementClass::U8);
    // A base that holds something else is refused, whatever its bytes say.
    assert!(decode_base_of(class, elements.wrapping_add(1) % 512, bytes, &mut content).is_err());
    if elements > LONGEST_BASE || decode_base_of(class, elements, bytes, &mut content).is_err() {
        return false;
    }
    let again = encode_base(class, &content);
    let mut decoded = Vec::new();
    assert_eq!(
        decode_base_of(class, elements, &again, &mut decoded),
        Ok(())
    );
    assert!(decoded == content);
    true
}

/// A schema (SPEC.md §8).
pub fn schema(bytes: &[u8]) -> bool {
    let Some(schema) = canonical::<Schema>(bytes) else {
        return false;
    };
    for tensor in schema.tensors() {
        // Neither overflows, whatever the shape says.
        assert_eq!(
            tensor.elements() * tensor.class.width() as u64,
            tensor.byte_len()
        );
    }
    true
}

/// A tree (SPEC.md §8).
pub fn tree(bytes: &[u8]) -> bool {
    canonical::<Tree>(bytes).is_some()
}

/// A commit (SPEC.md §8).
pub fn commit(bytes: &[u8]) -> bool {
    canonical::<Commit>(bytes).is_some()
}

/// A stored ref (SPEC.md §8).
pub fn signed_ref(bytes: &[u8]) -> bool {
    let Ok(signed) = SignedRef::from_bytes(bytes) else {
        return false;
    };
    assert_eq!(signed.to_bytes(), bytes);
    true
}

/// A safetensors file.
pub fn safetensors_file(bytes: &[u8]) -> bool {
    let Some((prefix, rest)) = bytes.split_first_chunk() else {
        return false;
    };
    let Ok(length) = headers::header_len(*prefix, bytes.len() as u64) else {
        return false;
    };
    let (header, data) = rest.split_at(length as usize);
    let Ok(layout) = headers::parse_header(header, data.len() as u64) else {
        return false;
    };
    let sum: u64 = layout.tensors.iter().map(|t| t.byte_len()).sum();
    assert_eq!((sum, layout.data_len), (data.len() as u64, sum));
    true
}

/// Read an object, which has one encoding only.
fn canonical<T: CanonicalObject>(bytes: &[u8]) -> Option<T> {
    let object = T::from_bytes(bytes).ok()?;
    assert_eq!(object.to_bytes(), bytes, "an object has one encoding");
    Some(object)
}
