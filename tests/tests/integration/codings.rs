//! Patch sets (SPEC.md §6): what is encoded is what is decoded, whole or member by member, and the encoder
//! is deterministic.

use deltaic_format::ElementClass;
use deltaic_format::patch::{Changes, PIECE_ELEMENTS};
use deltaic_format::patch_set::{EncodedPatchSet, PatchSetReader, encode};
use deltaic_tests::strategies::{self, BOUNDARIES, MemberRecipe, PIECE_BOUNDARIES};
use deltaic_tests::weights::{self, Density, Update};
use proptest::prelude::*;

type Members = Vec<(u32, Changes)>;

fn members(class: ElementClass, recipes: &[MemberRecipe]) -> Members {
    let changes =
        |r: &MemberRecipe| weights::changes(class, r.elements, r.density, r.update, r.seed);
    recipes.iter().map(|r| (r.elements, changes(r))).collect()
}

fn encoded(class: ElementClass, members: &Members) -> EncodedPatchSet {
    let members: Vec<_> = members.iter().map(|(n, c)| (*n, c)).collect();
    encode(class, &members).expect("the members fit a set")
}

/// Decode, compare with what was encoded, and encode again to the same bytes.
fn check_round_trip(class: ElementClass, members: &Members) -> EncodedPatchSet {
    let set = encoded(class, members);
    let reader = PatchSetReader::new(&set.bytes).expect("our own header");
    assert_eq!(reader.class(), class);
    assert!(reader.members().eq(members.iter().map(|m| m.0)));
    let changed: u64 = members.iter().map(|m| m.1.len()).sum();
    assert_eq!(reader.changed(), changed);

    let all = reader.all().expect("our own blocks");
    assert!(all.iter().eq(members.iter().map(|m| &m.1)));
    for (i, (_, changes)) in members.iter().enumerate() {
        assert_eq!(reader.member(i).as_ref(), Ok(changes), "member {i}");
    }
    assert!(reader.member(members.len()).is_err());

    let again: Members = reader.members().zip(all).collect();
    assert_eq!(encoded(class, &again), set, "the encoder is deterministic");
    assert_eq!(set.member_bytes.len(), members.len());
    if changed > 0 {
        assert_eq!(set.member_bytes.iter().sum::<u64>(), set.bytes.len() as u64);
    }
    assert!(set.overhead <= set.bytes.len() as u64);
    set
}

proptest! {
    #![proptest_config(strategies::cases(150))]

    #[test]
    fn sets_of_many_members_read_back(
        class in strategies::class(), recipes in strategies::members(12),
    ) {
        check_round_trip(class, &members(class, &recipes));
    }

    /// Many tensors with a handful of changes each, in one block.
    #[test]
    fn sets_of_very_many_small_members_read_back(
        class in strategies::class(),
        lengths in proptest::collection::vec(1..600u32, 1..400),
        update in strategies::update(),
        seed in any::<u64>(),
    ) {
        let members: Members = (lengths.into_iter().zip(seed / 2..))
            .map(|(n, seed)| (n, weights::changes(class, n, Density::Share(0.005), update, seed)))
            .collect();
        check_round_trip(class, &members);
    }
}

#[test]
fn every_class_density_and_boundary_length_reads_back() {
    let densities = [
        Density::None,
        Density::One,
        Density::Ends,
        Density::Share(0.0003),
        Density::Share(0.01),
        Density::Share(0.5),
        Density::All,
    ];
    for (k, &class) in ElementClass::ALL.iter().enumerate() {
        for (j, density) in densities.into_iter().enumerate() {
            // Every length once per class, spread over densities and updates.
            for (i, &elements) in BOUNDARIES.iter().enumerate().skip(1) {
                let update = [Update::Step, Update::Rewrite, Update::Extremes][(i + j + k) % 3];
                if elements > 1000 && (i + j + k) % 5 != 0 {
                    continue;
                }
                let changes = weights::changes(
                    class,
                    elements as u32,
                    density,
                    update,
                    (i + 100 * j) as u64,
                );
                check_round_trip(class, &vec![(elements as u32, changes)]);
            }
        }
    }
}

#[test]
fn pieces_of_full_length_read_back() {
    let cases = [
        (ElementClass::BF16, Density::Share(0.002), Update::Step),
        (ElementClass::F8E4M3, Density::All, Update::Step),
        (ElementClass::F32, Density::Share(0.5), Update::Rewrite),
        (ElementClass::U64, Density::Ends, Update::Extremes),
    ];
    for (class, density, update) in cases {
        let lengths = [PIECE_BOUNDARIES[0] as u32, PIECE_ELEMENTS as u32, 5];
        let members: Members = (lengths.into_iter().zip(1..))
            .map(|(n, seed)| (n, weights::changes(class, n, density, update, seed)))
            .collect();
        // Two full pieces that have changed throughout come close to the most changes of a set.
        let (pieces, rest) = members.split_at(2);
        check_round_trip(class, &[&pieces[..1], rest].concat());
        check_round_trip(class, &pieces[1..].to_vec());
    }
}

#[test]
fn what_no_set_can_hold_is_refused() {
    let none = Changes::default();
    let past = Changes::from_pairs([(10, 1)]).unwrap();
    let class = ElementClass::BF16;
    assert!(encode(class, &[(0, &none)]).is_err());
    assert!(encode(class, &[(PIECE_ELEMENTS as u32 + 1, &none)]).is_err());
    assert!(encode(class, &[(10, &past)]).is_err());
    assert!(encode(class, &[(11, &past)]).is_ok());
    // 2^26 elements fit, one more does not.
    let mut most = vec![(PIECE_ELEMENTS as u32, &none); 16];
    assert!(encode(class, &most).is_ok());
    most.push((1, &none));
    assert!(encode(class, &most).is_err());
    // So do 2^23 changes.
    let all = weights::changes(class, PIECE_ELEMENTS as u32, Density::All, Update::Step, 1);
    let mut most = vec![(PIECE_ELEMENTS as u32, &all); 2];
    assert!(encode(class, &most).is_ok());
    most.push((11, &past));
    assert!(encode(class, &most).is_err());
}

/// The cost of a coding is bounded: whatever changed, a set is little larger than the new words.
#[test]
fn the_worst_set_is_little_larger_than_the_words() {
    for &class in ElementClass::ALL {
        for density in [Density::Share(0.5), Density::All] {
            let elements = 1 << 17;
            let changes = weights::changes(class, elements, density, Update::Rewrite, 3);
            let set = check_round_trip(class, &vec![(elements, changes)]);
            // A shift has one bit more than a word, and a bitmap takes one bit for each element.
            let words = u64::from(elements) * class.width() as u64;
            assert!(
                set.bytes.len() as u64 <= words + u64::from(elements) * 3 / 8 + 200,
                "{class} {density:?}: {} bytes for {words}",
                set.bytes.len()
            );
        }
    }
}
