//! How many bytes patches take, on real checkpoints where they are there, against what an ideal coder that does not
//! look at the weights would take (`facts.json` beside the data, computed with numpy).

use deltaic_format::patch::{Changes, Patch, compose};
use deltaic_tests::checkpoints::{self, RealCheckpoints, TensorContent};
use deltaic_tests::patch_sizes::{StepSizes, mixture_of_experts};
use deltaic_tests::vectors::number;
use serde_json::Value;

fn read(set: &RealCheckpoints, version: usize) -> Vec<TensorContent> {
    checkpoints::read_folder(&set.versions[version]).expect("an expanded version is readable")
}

/// Compare what the format finds with the facts of `pair` of data set `name`; gives bytes over the blind bound.
pub fn check_facts(name: &str, set: &RealCheckpoints, pair: &str, sizes: &StepSizes) -> f64 {
    let facts = &set.facts[pair];
    let pair = &format!("{name} {pair}");
    assert_eq!(sizes.sets.changed, number(&facts["changed"]), "{pair}");
    let elements: u64 = sizes.patches.iter().map(|(_, patch)| patch.elements).sum();
    assert_eq!(elements, number(&facts["elements"]), "{pair}");
    let Value::Object(per_tensor) = &facts["tensors"] else {
        panic!("{pair}: facts per tensor are missing");
    };
    assert_eq!(per_tensor.len(), sizes.patches.len(), "{pair}");
    for (name, patch) in &sizes.patches {
        assert_eq!(patch.changed(), number(&per_tensor[name]), "{pair} {name}");
    }
    let changed = sizes.sets.changed as f64;
    for (key, shift) in [("plus_one", 1), ("minus_one", -1)] {
        let share = sizes.shifts().filter(|&d| d == shift).count() as f64 / changed;
        let expected = facts[key].as_f64().expect("a share");
        assert!(
            (share - expected).abs() < 1e-12,
            "{pair} {key}: {share} {expected}"
        );
    }
    let sum: i128 = sizes.shifts().map(i128::from).sum();
    let expected = facts["sum_of_steps"].as_i64().expect("a sum");
    assert_eq!(sum, i128::from(expected), "{pair}");

    let bound = facts["blind_bound_bytes"].as_f64().expect("a bound");
    let ratio = sizes.sets.bytes as f64 / bound;
    println!(
        "{pair}: {} changed, {} bytes in {} sets, {} of them overhead: {ratio:.4} of the blind bound, {:.3} bytes per change",
        sizes.sets.changed,
        sizes.sets.bytes,
        sizes.sets.sets,
        sizes.sets.overhead,
        sizes.sets.bytes as f64 / changed,
    );
    ratio
}

/// The versions of `M-N`.
pub fn versions(pair: &str) -> (usize, usize) {
    let (from, to) = pair.split_once('-').expect("a pair is M-N");
    let version = |text: &str| text.parse().expect("a version is a number");
    (version(from), version(to))
}

/// Every pair that the facts know, with the most bytes of the blind bound that it may take.
fn check_set(name: &str, most: fn(usize) -> f64) {
    let Some(set) = checkpoints::large(name, &format!("figures of {name}")) else {
        return;
    };
    let Value::Object(pairs) = &set.facts else {
        panic!("facts by pair");
    };
    for pair in pairs.keys() {
        let (from, to) = versions(pair);
        let sizes = StepSizes::between(&read(&set, from), &read(&set, to)).unwrap();
        let ratio = check_facts(name, &set, pair, &sizes);
        assert!(ratio <= most(from.abs_diff(to)), "{name} {pair}: {ratio}");
    }
}

#[test]
fn bf16_policy_steps_take_little_more_than_the_blind_bound() {
    check_set("policy-bf16", |steps| if steps == 1 { 1.06 } else { 1.04 });
}

#[test]
fn fp8_policy_steps_take_little_more_than_the_blind_bound() {
    check_set("policy-fp8", |steps| if steps == 1 { 1.06 } else { 1.04 });
}

/// The sum of all steps of a policy is the direct patch, tensor by tensor, in id and in bits.
fn check_composition(name: &str) {
    let Some(set) = checkpoints::large(name, &format!("composition of {name}")) else {
        return;
    };
    let first = read(&set, 0);
    let mut last = first.clone();
    let mut steps: Vec<Vec<Patch>> = vec![Vec::new(); first.len()];
    for version in 1..set.versions.len() {
        let next = read(&set, version);
        for (tensor, steps) in steps.iter_mut().enumerate() {
            let (old, new) = (&last[tensor], &next[tensor]);
            steps.push(Patch::diff(new.spec.class, &old.content, &new.content).unwrap());
        }
        last = next;
    }
    for ((first, last), steps) in first.into_iter().zip(&last).zip(&steps) {
        let (name, class) = (&first.spec.name, first.spec.class);
        let direct = Patch::diff(class, &first.content, &last.content).unwrap();
        let pieces = (0..direct.pieces.len()).map(|piece| {
            let parts: Vec<&Changes> = steps.iter().map(|step| &step.pieces[piece]).collect();
            compose(class, &parts).unwrap()
        });
        let composed = Patch {
            pieces: pieces.collect(),
            ..direct
        };
        assert_eq!(composed.id(), direct.id(), "{name}");
        let mut content = first.content;
        composed.apply(&mut content).unwrap();
        assert!(content == last.content, "{name}");
        composed.negate().apply(&mut content).unwrap();
        assert_eq!(
            deltaic_format::ids::TensorId::of(&content),
            direct.from,
            "{name}"
        );
    }
}

#[test]
fn twelve_bf16_steps_compose_to_the_direct_patch() {
    check_composition("policy-bf16");
}

#[test]
fn three_fp8_steps_compose_to_the_direct_patch() {
    check_composition("policy-fp8");
}

/// 91,000 tensors with a handful of changes each do not drown in headers.
#[test]
fn headers_of_a_mixture_of_experts_are_a_small_part() {
    let sizes = mixture_of_experts(91_000).unwrap();
    let share = sizes.overhead as f64 / sizes.bytes as f64;
    println!(
        "{} members in {} sets: {} changed, {} bytes, {:.2} % of them overhead",
        sizes.members,
        sizes.sets,
        sizes.changed,
        sizes.bytes,
        100.0 * share
    );
    assert!(share <= 0.08, "{share}");
}
