//! What moments prove, and what they do not (SPEC.md §5, invariant I3).
//!
//! "touched" reads only the elements that a patch changes: it must refuse a wrong base, a half applied patch and a
//! flipped bit there, and recognise a patch that was applied already. It says nothing of other elements: those
//! are the full scan's.

use deltaic_format::patch::{Patch, Touched};
use deltaic_format::{ElementClass, Moments};
use deltaic_tests::model;
use deltaic_tests::strategies::{self, History, PIECE_BOUNDARIES};
use deltaic_tests::weights::{self, Density, Stream, Update};
use proptest::prelude::*;

/// A patch with both contents and their moments.
struct Case {
    class: ElementClass,
    old: Vec<u8>,
    new: Vec<u8>,
    patch: Patch,
    before: Moments,
    after: Moments,
}

impl Case {
    /// The first two contents of a history.
    fn of(history: &History) -> Self {
        let [old, new] = <[Vec<u8>; 2]>::try_from(history.contents()).expect("one update");
        Self::new(history.class, old, new)
    }

    fn new(class: ElementClass, old: Vec<u8>, new: Vec<u8>) -> Self {
        Self {
            patch: Patch::diff(class, &old, &new).expect("the contents have one length"),
            before: Moments::of(class, 0, &old),
            after: Moments::of(class, 0, &new),
            class,
            old,
            new,
        }
    }

    fn touched(&self, content: &[u8]) -> Touched {
        self.patch
            .touched(content)
            .expect("the content has the patch's length")
    }

    fn fits(&self, content: &[u8]) -> bool {
        self.touched(content).fits(self.before, self.after)
    }

    fn already_applied(&self, content: &[u8]) -> bool {
        self.touched(content)
            .already_applied(self.before, self.after)
    }

    /// Indexes of the elements that the patch changes.
    fn changed(&self) -> Vec<usize> {
        model::diff(self.class, &self.old, &self.new)
            .into_keys()
            .map(|i| i as usize)
            .collect()
    }
}

proptest! {
    #![proptest_config(strategies::cases(400))]

    #[test]
    fn moments_are_what_the_definition_says(history in strategies::history(1)) {
        let case = Case::of(&history);
        prop_assert_eq!(case.before, model::moments(case.class, &case.old));
        // From the patch alone: the first moment.
        let sum = model::first_moment_of(&model::diff(case.class, &case.old, &case.new));
        prop_assert_eq!(sum, (case.after - case.before).l);
        prop_assert_eq!(case.touched(&case.old).forward.unwrap().l, sum);
    }

    #[test]
    fn the_right_base_fits_and_gives_the_new_moments(history in strategies::history(1)) {
        let case = Case::of(&history);
        prop_assert!(case.fits(&case.old));
        prop_assert_eq!(case.patch.moments_after(case.before, &case.old).unwrap(), case.after);
    }

    /// NVIDIA-NeMo/RL#3274: a replayed delta reverted bytes.
    #[test]
    fn a_patch_that_was_applied_is_recognised(history in strategies::history(1)) {
        let case = Case::of(&history);
        prop_assert!(case.already_applied(&case.new));
        let changes_something = case.patch.changed() > 0;
        prop_assert_eq!(case.fits(&case.new), !changes_something);
        prop_assert_eq!(case.already_applied(&case.old), !changes_something);
    }

    /// A crash in the midst of writing leaves some elements new and some old.
    #[test]
    fn a_half_applied_patch_neither_fits_nor_was_applied(history in strategies::history(1), share in 0.0..1.0f64) {
        let case = Case::of(&history);
        let changed = case.changed();
        prop_assume!(changed.len() >= 2);
        let width = case.class.width();
        let some = 1 + (share * (changed.len() - 1) as f64) as usize;
        let mut half = case.old.clone();
        for &i in &changed[..some] {
            half[i * width..][..width].copy_from_slice(&case.new[i * width..][..width]);
        }
        prop_assert!(!case.fits(&half));
        prop_assert!(!case.already_applied(&half));
        prop_assert!(Moments::of(case.class, 0, &half) != case.before);
        prop_assert!(Moments::of(case.class, 0, &half) != case.after);
    }

    #[test]
    fn a_base_that_differs_where_the_patch_writes_is_refused(history in strategies::history(1), seed in any::<u64>()) {
        let case = Case::of(&history);
        let changed = case.changed();
        prop_assume!(!changed.is_empty());
        let width = case.class.width();
        let other = weights::updated(case.class, &case.old, Density::Share(0.3), Update::Step, seed);
        let differs = |i: &usize| other[i * width..][..width] != case.old[i * width..][..width];
        prop_assume!(changed.iter().any(differs));
        prop_assert!(!case.fits(&other));
    }

    /// THUDM/slime#2209: the weights in memory are what must be proven.
    #[test]
    fn a_flipped_bit_is_found_by_the_proof_that_reads_it(
        history in strategies::history(1), at in any::<u64>(), bit in 0..8u32,
    ) {
        let case = Case::of(&history);
        prop_assume!(!case.old.is_empty());
        let mut stream = Stream::new(at);
        let width = case.class.width();
        let element = stream.below(case.patch.elements) as usize;
        let byte = element * width + stream.below(width as u64) as usize;
        let is_touched = case.changed().binary_search(&element).is_ok();

        let mut stale = case.old.clone();
        stale[byte] ^= 1 << bit;
        // touched: refuses exactly the flips that it can see.
        prop_assert_eq!(case.fits(&stale), !is_touched);
        // full: refuses all of them.
        prop_assert!(Moments::of(case.class, 0, &stale) != case.before);

        let mut corrupt = case.new.clone();
        corrupt[byte] ^= 1 << bit;
        prop_assert_eq!(case.already_applied(&corrupt), !is_touched);
        prop_assert!(Moments::of(case.class, 0, &corrupt) != case.after);
    }

    /// Each rank sums what it owns; the sums add up to the tensor's.
    #[test]
    fn the_sums_of_parts_add_up(history in strategies::history(1), cut in any::<u64>()) {
        let case = Case::of(&history);
        let runs = case.patch.elements / 512;
        let first = 512 * (cut % (runs + 1));
        let at = first as usize * case.class.width();
        let parts = Moments::of(case.class, 0, &case.old[..at]) + Moments::of(case.class, first, &case.old[at..]);
        prop_assert_eq!(parts, case.before);
    }
}

/// Every flip of a touched element is found, not only most: the smaller classes, element by element.
#[test]
fn every_flip_of_a_touched_element_is_found() {
    for &class in ElementClass::ALL {
        let old = weights::content(class, 40, 5);
        let new = weights::updated(class, &old, Density::Share(0.5), Update::Step, 6);
        let case = Case::new(class, old, new);
        for element in case.changed() {
            for bit in 0..8 * class.width() {
                let mut stale = case.old.clone();
                stale[element * class.width() + bit / 8] ^= 1 << (bit % 8);
                assert!(!case.fits(&stale), "{class} element {element} bit {bit}");
            }
        }
    }
}

#[test]
fn proofs_reach_across_pieces() {
    for (class, elements) in [
        (ElementClass::BF16, PIECE_BOUNDARIES[2]),
        (ElementClass::F32, PIECE_BOUNDARIES[1]),
    ] {
        let old = weights::content(class, elements, 8);
        let ends = weights::updated(class, &old, Density::Ends, Update::Step, 9);
        let case = Case::new(class, old, ends);
        assert_eq!(case.before, model::moments(class, &case.old));
        assert!(case.fits(&case.old));
        assert!(case.already_applied(&case.new));
        // The last element, which lies in the second piece where there is one.
        let mut stale = case.old.clone();
        let last = stale.len() - 1;
        stale[last] ^= 1;
        assert!(!case.fits(&stale));
        let mut half = case.old.clone();
        half[..class.width()].copy_from_slice(&case.new[..class.width()]);
        assert!(!case.fits(&half) && !case.already_applied(&half));
    }
}

/// The first moment alone would not tell where a shift belongs: the weights of elements differ.
#[test]
fn moments_tell_neighbours_apart() {
    let class = ElementClass::BF16;
    let mut seen = std::collections::HashSet::new();
    for element in 0..2048u64 {
        let mut content = vec![0; 4096];
        content[element as usize * 2] = 1;
        assert!(seen.insert(Moments::of(class, 0, &content)));
    }
}
