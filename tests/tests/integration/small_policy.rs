//! The real updates that belong to the repository: what the format finds is what numpy found.

use crate::figures::{check_facts, versions};
use deltaic_tests::checkpoints;
use deltaic_tests::patch_sizes::StepSizes;
use serde_json::Value;

#[test]
fn what_changed_is_what_numpy_found() {
    let set = checkpoints::small();
    assert_eq!(set.versions.len(), 4);
    let Value::Object(pairs) = &set.facts else {
        panic!("facts by pair");
    };
    let contents: Vec<_> = (set.versions.iter())
        .map(|version| checkpoints::read_folder(version).unwrap())
        .collect();
    for pair in pairs.keys() {
        let (from, to) = versions(pair);
        let sizes = StepSizes::between(&contents[from], &contents[to]).unwrap();
        let ratio = check_facts("policy-small", &set, pair, &sizes);
        assert!(ratio <= 1.06, "{pair}: {ratio}");
    }
}
