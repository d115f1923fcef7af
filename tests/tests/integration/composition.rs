//! The laws of patches (SPEC.md §4): they add up along any path, negate, and know their ids.

use deltaic_format::ids::TensorId;
use deltaic_format::patch::{self, Changes, PIECE_ELEMENTS, Patch, PatchHasher};
use deltaic_format::{ElementClass, FormatError};
use deltaic_tests::model::{self, Shifts};
use deltaic_tests::strategies::{self, PIECE_BOUNDARIES};
use deltaic_tests::weights::{self, Density, Stream, Update};
use proptest::prelude::*;

/// The flat indexes and shifts of a patch.
fn shifts(patch: &Patch) -> Shifts {
    let pieces = patch.pieces.iter().enumerate();
    pieces
        .flat_map(|(piece, changes)| {
            let first = piece as u64 * PIECE_ELEMENTS;
            changes.iter().map(move |(i, d)| (first + u64::from(i), d))
        })
        .collect()
}

/// The sum of `patches`, piece by piece, all at once.
fn composed(from: TensorId, to: TensorId, patches: &[&Patch]) -> Patch {
    let first = patches[0];
    let pieces = (0..first.pieces.len()).map(|piece| {
        let parts: Vec<&Changes> = patches.iter().map(|p| &p.pieces[piece]).collect();
        patch::compose(first.class, &parts).expect("contents differ by shifts in range")
    });
    Patch {
        from,
        to,
        pieces: pieces.collect(),
        ..*first
    }
}

fn shuffled<T>(items: &mut [T], stream: &mut Stream) {
    for last in (1..items.len()).rev() {
        items.swap(last, stream.below(last as u64 + 1) as usize);
    }
}

proptest! {
    #![proptest_config(strategies::cases(400))]

    #[test]
    fn diff_and_id_are_what_the_definition_says(history in strategies::history(1)) {
        let contents = history.contents();
        let [old, new] = [&contents[0], &contents[1]];
        let patch = Patch::diff(history.class, old, new).unwrap();
        let expected = model::diff(history.class, old, new);
        prop_assert_eq!(patch.changed(), expected.len() as u64);
        prop_assert_eq!(&shifts(&patch), &expected);
        let id = model::patch_id(history.class, patch.from, patch.to, history.elements, &expected);
        prop_assert_eq!(patch.id(), id);
    }

    #[test]
    fn applying_a_diff_gives_the_new_bits_and_undoing_it_the_old(history in strategies::history(1)) {
        let contents = history.contents();
        let [old, new] = [&contents[0], &contents[1]];
        let patch = Patch::diff(history.class, old, new).unwrap();
        let mut content = old.clone();
        patch.apply(&mut content).unwrap();
        prop_assert_eq!(&content, new);
        let back = patch.negate();
        prop_assert_eq!(back.id(), Patch::diff(history.class, new, old).unwrap().id());
        back.apply(&mut content).unwrap();
        prop_assert_eq!(&content, old);
    }

    #[test]
    fn two_steps_compose_to_the_direct_patch(history in strategies::history(2)) {
        let contents = history.contents();
        let (a, b, c) = (&contents[0], &contents[1], &contents[contents.len() - 1]);
        let direct = Patch::diff(history.class, a, c).unwrap();
        let first = Patch::diff(history.class, a, b).unwrap();
        let second = Patch::diff(history.class, b, c).unwrap();
        let composed = first.then(&second).unwrap();
        prop_assert_eq!(&shifts(&composed), &model::compose([&shifts(&first), &shifts(&second)]));
        prop_assert_eq!(composed.id(), direct.id());
        prop_assert_eq!(composed, direct);
    }

    #[test]
    fn every_path_gives_the_same_patch_id(
        history in strategies::history(7),
        stops in proptest::collection::vec(any::<usize>(), 0..10),
        order in any::<u64>(),
    ) {
        let contents = history.contents();
        let class = history.class;
        let last = contents.len() - 1;
        let direct = Patch::diff(class, &contents[0], &contents[last]).unwrap();
        // From the first to the last content by way of any others: forwards, backwards, in circles.
        let mut path = vec![0];
        path.extend(stops.iter().map(|stop| stop % contents.len()));
        path.push(last);
        let steps: Vec<Patch> = path
            .windows(2)
            .map(|pair| Patch::diff(class, &contents[pair[0]], &contents[pair[1]]).unwrap())
            .collect();

        let left = steps[1..].iter().try_fold(steps[0].clone(), |sum, next| sum.then(next));
        prop_assert_eq!(left.unwrap().id(), direct.id());
        let right = steps.iter().rev().skip(1).try_fold(steps[steps.len() - 1].clone(), |sum, before| before.then(&sum));
        prop_assert_eq!(right.unwrap().id(), direct.id());
        let mut at_once: Vec<&Patch> = steps.iter().collect();
        shuffled(&mut at_once, &mut Stream::new(order));
        prop_assert_eq!(composed(direct.from, direct.to, &at_once).id(), direct.id());

        // Going there and back again is no change at all.
        let there_and_back = direct.then(&direct.clone().negate()).unwrap();
        prop_assert_eq!(there_and_back.changed(), 0);
        prop_assert_eq!(there_and_back.id(), Patch::diff(class, &contents[0], &contents[0]).unwrap().id());
    }
}

/// A tensor longer than a piece: the boundary runs through a patch.
#[test]
fn tensors_around_the_length_of_a_piece_follow_the_same_laws() {
    let cases = [
        (ElementClass::BF16, Density::Share(0.0001), Update::Step),
        (ElementClass::F8E4M3, Density::All, Update::Rewrite),
        (ElementClass::F64, Density::Ends, Update::Extremes),
        (ElementClass::I32, Density::Share(0.01), Update::Specials),
    ];
    for ((class, density, update), elements) in cases
        .into_iter()
        .flat_map(|case| PIECE_BOUNDARIES.map(|elements| (case, elements)))
    {
        let a = weights::content(class, elements, elements);
        let b = weights::updated(class, &a, density, update, 1);
        let c = weights::updated(class, &b, Density::Ends, Update::Extremes, 2);
        let [ab, bc, ac] =
            [(&a, &b), (&b, &c), (&a, &c)].map(|(old, new)| Patch::diff(class, old, new).unwrap());
        assert_eq!(ac.pieces.len() as u64, patch::piece_count(elements));
        assert_eq!(
            ab.then(&bc).unwrap().id(),
            ac.id(),
            "{class} {elements} {density:?}"
        );
        let expected =
            model::patch_id(class, ac.from, ac.to, elements, &model::diff(class, &a, &c));
        assert_eq!(ac.id(), expected, "{class} {elements} {density:?}");
        let mut content = a.clone();
        ac.apply(&mut content).unwrap();
        assert_eq!(content, c);
        ac.negate().apply(&mut content).unwrap();
        assert_eq!(content, a);
    }
}

#[test]
fn the_largest_shifts_of_every_class_are_exact() {
    for &class in ElementClass::ALL {
        let last = (model::words_of(class) - 1) as u64;
        let low = model::bytes(class, [model::word(class, 0)]);
        let high = model::bytes(class, [model::word(class, last)]);
        let up = Patch::diff(class, &low, &high).unwrap();
        let shift = match class.width() {
            8 => -1, // 2^64 - 1, mod 2^64
            _ => last as i64,
        };
        assert_eq!(shifts(&up), Shifts::from([(0, shift)]), "{class}");
        let mut content = low.clone();
        up.apply(&mut content).unwrap();
        assert_eq!(content, high, "{class}");
        up.negate().apply(&mut content).unwrap();
        assert_eq!(content, low, "{class}");
    }
}

/// DCR, figure A.2: +0.0 and -0.0 are equal as floats, and NaNs are not equal to themselves.
#[test]
fn bits_are_compared_and_not_floats() {
    let zeros = [0.0f32, -0.0].map(f32::to_le_bytes);
    let patch = Patch::diff(ElementClass::F32, &zeros[0], &zeros[1]).unwrap();
    assert_eq!(shifts(&patch), Shifts::from([(0, -1)]));
    let nan = f32::NAN.to_le_bytes();
    assert_eq!(
        Patch::diff(ElementClass::F32, &nan, &nan)
            .unwrap()
            .changed(),
        0
    );
    let payload = 0x7fc0_0001u32.to_le_bytes();
    let patch = Patch::diff(ElementClass::F32, &nan, &payload).unwrap();
    assert_eq!(shifts(&patch), Shifts::from([(0, 1)]));
}

#[test]
fn sums_that_no_two_contents_differ_by_are_refused() {
    for &class in ElementClass::ALL.iter().filter(|c| c.width() < 8) {
        let far = Changes::from_pairs([(7, class.largest_shift() as i64)]).unwrap();
        let result = patch::compose(class, &[&far, &far]);
        assert_eq!(
            result,
            Err(FormatError::ShiftOutOfRange { element: 7 }),
            "{class}"
        );
    }
}

#[test]
fn a_patch_that_leaves_the_range_writes_nothing() {
    for &class in ElementClass::ALL.iter().filter(|c| c.width() < 8) {
        let last = (model::words_of(class) - 1) as u64;
        let old = model::bytes(class, [0, last - 1].map(|ord| model::word(class, ord)));
        let changes = Changes::from_pairs([(0, 1), (1, 2)]).unwrap();
        let mut content = old.clone();
        assert_eq!(
            patch::apply(class, &mut content, &changes),
            Err(FormatError::ShiftOutOfRange { element: 1 })
        );
        assert_eq!(content, old, "{class}");
    }
}

/// vllm-ascend#13682: an index past the end must be found before any write.
#[test]
fn a_change_past_the_end_writes_nothing() {
    let changes = Changes::from_pairs([(0, 1), (4, 1)]).unwrap();
    let mut content = vec![0; 8];
    let past = FormatError::OutOfBounds {
        element: 4,
        elements: 4,
    };
    assert_eq!(
        patch::apply(ElementClass::BF16, &mut content, &changes),
        Err(past.clone())
    );
    assert_eq!(content, [0; 8]);
    assert_eq!(
        patch::touched(ElementClass::BF16, 0, &content, &changes),
        Err(past)
    );
}

#[test]
fn patches_that_do_not_meet_do_not_compose() {
    let class = ElementClass::U8;
    let [a, b, c] = [&[1u8, 2][..], &[1, 3], &[2, 3]];
    let ab = Patch::diff(class, a, b).unwrap();
    let ac = Patch::diff(class, a, c).unwrap();
    assert!(ab.then(&ac).is_err());
    assert!(Patch::diff(class, a, &[1]).is_err());
    assert!(Patch::diff(ElementClass::BF16, &[1], &[2]).is_err());
}

#[test]
fn pieces_without_changes_do_not_count_in_the_id() {
    let (from, to) = (TensorId::of(b"a"), TensorId::of(b"b"));
    let elements = 3 * PIECE_ELEMENTS;
    let changes = Changes::from_pairs([(5, 1)]).unwrap();
    let mut all = PatchHasher::new(ElementClass::BF16, from, to, elements);
    for changes in [&Changes::default(), &changes, &Changes::default()]
        .iter()
        .enumerate()
    {
        all.piece(changes.0 as u64, changes.1);
    }
    let mut some = PatchHasher::new(ElementClass::BF16, from, to, elements);
    some.piece(1, &changes);
    assert_eq!(all.finish(), some.finish());
}
