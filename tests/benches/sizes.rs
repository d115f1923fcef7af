//! What patches take.

use deltaic_format::ids::PatchId;
use deltaic_format::patch::{Changes, Patch, compose};
use deltaic_tests::checkpoints::{self, RealCheckpoints, TensorContent};
use deltaic_tests::patch_sizes::{self, StepSizes};
use serde_json::{Value, json};

/// Every pair of the real sets that facts are known of.
pub(crate) fn measure() -> Value {
    let mut rows = Vec::new();
    let sets = [
        (
            "policy-bf16",
            checkpoints::large("policy-bf16", "patch sizes of policy-bf16"),
        ),
        (
            "policy-fp8",
            checkpoints::large("policy-fp8", "patch sizes of policy-fp8"),
        ),
        (
            "policy-small",
            checkpoints::small_with_python("patch sizes of policy-small"),
        ),
    ];
    for (name, set) in sets {
        let Some(set) = set else { continue };
        for (pair, facts) in set.facts.as_object().into_iter().flatten() {
            rows.push(row(name, &set, pair, facts));
        }
    }
    Value::Array(rows)
}

fn read(set: &RealCheckpoints, version: usize) -> Vec<TensorContent> {
    checkpoints::read_folder(&set.versions[version]).expect("an expanded version is readable")
}

fn row(name: &str, set: &RealCheckpoints, pair: &str, facts: &Value) -> Value {
    let (from, to) = pair.split_once('-').expect("a pair is M-N");
    let [from, to] = [from, to].map(|v| v.parse::<usize>().expect("a version is a number"));
    let step = StepSizes::between(&read(set, from), &read(set, to)).expect("versions compare");
    let bytes = step.sets.bytes as f64;
    let full: u64 = facts["bytes"].as_u64().unwrap_or_default();
    let direct: Vec<PatchId> = step.patches.iter().map(|(_, patch)| patch.id()).collect();
    json!({
        "set": name,
        "pair": pair,
        "changed": step.sets.changed,
        "bytes": step.sets.bytes,
        "bytes_per_change": bytes / step.sets.changed as f64,
        "of_blind_bound": bytes / facts["blind_bound_bytes"].as_f64().expect("a bound"),
        "x_smaller": full as f64 / bytes,
        "composed_is_direct": composed(set, from, to) == direct,
    })
}

/// Ids of the patches composed of the single steps between two versions, in either direction.
fn composed(set: &RealCheckpoints, from: usize, to: usize) -> Vec<PatchId> {
    let (low, high) = (from.min(to), from.max(to));
    let mut steps: Vec<Vec<Patch>> = Vec::new();
    let mut last = read(set, low);
    for version in low + 1..=high {
        let next = read(set, version);
        let step = StepSizes::between(&last, &next).expect("versions compare");
        steps.push(step.patches.into_iter().map(|(_, patch)| patch).collect());
        last = next;
    }
    let tensors = steps.first().map_or(0, Vec::len);
    let compose_tensor = |tensor: usize| {
        let path: Vec<&Patch> = steps.iter().map(|step| &step[tensor]).collect();
        let (first, last) = (path[0], path[path.len() - 1]);
        let pieces = (0..first.pieces.len()).map(|piece| {
            let parts: Vec<&Changes> = path.iter().map(|patch| &patch.pieces[piece]).collect();
            compose(first.class, &parts).expect("steps compose")
        });
        let patch = Patch {
            to: last.to,
            pieces: pieces.collect(),
            ..*first
        };
        if from < to {
            patch.id()
        } else {
            patch.negate().id()
        }
    };
    (0..tensors).map(compose_tensor).collect()
}

/// The share of headers and directories where tensors have a handful of changes each.
pub(crate) fn mixture_of_experts() -> Value {
    let sizes = patch_sizes::mixture_of_experts(91_000).expect("the sets encode");
    json!([{
        "members": sizes.members,
        "sets": sizes.sets,
        "changed": sizes.changed,
        "bytes": sizes.bytes,
        "overhead": sizes.overhead,
        "overhead_share": sizes.overhead as f64 / sizes.bytes as f64,
    }])
}
