//! Bases (SPEC.md §7): whole contents read back, block ranges read alone, weights compress.

use deltaic_format::ElementClass;
use deltaic_format::base::{
    BASE_BLOCK_ELEMENTS, BASE_HEADER_LEN, BASE_TRAILER_LEN, BaseDirectory, BaseEncoder,
    decode_base, encode_base,
};
use deltaic_tests::strategies;
use deltaic_tests::weights;
use proptest::prelude::*;

fn directory(base: &[u8]) -> BaseDirectory {
    let (rest, trailer) = base
        .split_last_chunk::<BASE_TRAILER_LEN>()
        .expect("a trailer");
    let length = BaseDirectory::length_from_trailer(*trailer) as usize;
    let directory = &rest[rest.len() - length..];
    BaseDirectory::new(&base[..BASE_HEADER_LEN], directory, base.len() as u64)
        .expect("our own directory")
}

proptest! {
    #![proptest_config(strategies::cases(150))]

    #[test]
    fn any_content_reads_back(
        class in strategies::class(), elements in strategies::elements(), seed in any::<u64>(),
    ) {
        let content = weights::content(class, elements, seed);
        let base = encode_base(class, &content);
        prop_assert_eq!(decode_base(&base), Ok((class, content)));
    }
}

#[test]
fn a_range_of_blocks_needs_no_other_bytes() {
    let block = BASE_BLOCK_ELEMENTS;
    for class in [
        ElementClass::F8E4M3,
        ElementClass::BF16,
        ElementClass::F32,
        ElementClass::I64,
    ] {
        let width = class.width();
        let content = weights::content(class, 3 * block + 7, 3);
        let base = encode_base(class, &content);
        let directory = directory(&base);
        assert_eq!(
            (directory.class(), directory.elements()),
            (class, 3 * block + 7)
        );
        assert_eq!(directory.blocks(), 4);
        for range in [0..1, 1..3, 3..4, 0..4, 2..2] {
            let bytes = directory.byte_range(range.clone());
            let encoded = &base[bytes.start as usize..bytes.end as usize];
            let from = (range.start * block) as usize * width;
            let to = ((range.end * block) as usize * width).min(content.len());
            let mut decoded = vec![0; to - from];
            directory
                .decode(range.clone(), encoded, &mut decoded)
                .unwrap();
            assert_eq!(decoded, content[from..to], "{class} {range:?}");
            // The same blocks as a base of their own.
            let cut = directory.cut(range.clone(), encoded);
            assert_eq!(decode_base(&cut), Ok((class, decoded)), "{class} {range:?}");
        }
    }
}

#[test]
fn a_base_written_in_parts_is_the_same() {
    let class = ElementClass::BF16;
    let content = weights::content(class, 2 * BASE_BLOCK_ELEMENTS + 5, 4);
    let mut out = Vec::new();
    let mut encoder = BaseEncoder::new(class, 2 * BASE_BLOCK_ELEMENTS + 5, &mut out);
    for block in content.chunks(BASE_BLOCK_ELEMENTS as usize * 2) {
        encoder.blocks(block, &mut out);
    }
    encoder.finish(&mut out);
    assert_eq!(out, encode_base(class, &content));
}

/// Exponents of weights compress, signs and mantissas do not: about 11 bits of 16 are left.
#[test]
fn bf16_weights_take_two_thirds() {
    let content = weights::bf16_weights(1 << 20, 5);
    let base = encode_base(ElementClass::BF16, &content);
    let share = base.len() as f64 / content.len() as f64;
    assert!(share < 0.72, "{share}");
}
