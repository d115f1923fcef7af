//! The main job with the program, on real checkpoints: commit, export, pull forwards and backwards, revert, verify.

use crate::each_way;
use deltaic_tests::checkpoints::{self, RealCheckpoints};
use deltaic_tests::stores::{ScratchStore, assert_same_files};
use serde_json::Value;

/// Every version exported, and a replica pulled along `route`, byte for byte.
fn main_job(set: &RealCheckpoints, route: &[usize]) {
    each_way(|store| {
        for version in &set.versions {
            store.commit("acme/policy", version);
        }
        check_reports(store, set);
        for (number, version) in set.versions.iter().enumerate() {
            let out = store.place(&format!("out{number}"));
            store.json(&["export", &format!("acme/policy@v{number}"), "-o", &out]);
            assert_same_files(out.as_ref(), version);
        }
        let replica = store.place("replica");
        let mut held = None;
        for &number in route {
            let revision = format!("acme/policy@v{number}");
            let pulled = store.json(&["pull", &revision, "-o", &replica]);
            assert_same_files(replica.as_ref(), &set.versions[number]);
            assert_eq!(
                (pulled["from"].as_u64(), pulled["to"].as_u64()),
                (held, Some(number as u64))
            );
            if let Some(from) = held {
                let plan = store.json(&[
                    "plan",
                    "acme/policy",
                    &format!("v{from}"),
                    &format!("v{number}"),
                ]);
                assert_eq!(plan["bytes"], pulled["received_bytes"], "{plan}");
                let full = plan["full_bytes"].as_u64();
                assert!(
                    plan["bytes"].as_u64().map(|bytes| bytes * 20) < full,
                    "{plan}"
                );
            }
            held = Some(number as u64);
        }
        let reverted = store.json(&["revert", "acme/policy@main", "v1"]);
        assert_eq!(reverted["version"], set.versions.len());
        store.json(&["pull", "acme/policy", "-o", &replica]);
        assert_same_files(replica.as_ref(), &set.versions[1]);
        let verified = store.json(&["verify", &replica]);
        assert_eq!(verified["ok"], true);
        store.verify();
    });
}

/// `commit`, `show` and `diff` say what numpy found.
fn check_reports(store: &ScratchStore, set: &RealCheckpoints) {
    let log = store.json(&["log", "acme/policy"]);
    let commits = log["commits"].as_array().map_or(0, Vec::len);
    assert_eq!(commits, set.versions.len());
    let Value::Object(pairs) = &set.facts else {
        panic!("facts by pair");
    };
    for (pair, facts) in pairs {
        let (from, to) = crate::figures::versions(pair);
        let diff = store.json(&["diff", &format!("acme/policy@v{from}..v{to}")]);
        assert_eq!(diff["changed"], facts["changed"], "{pair}");
        for tensor in diff["tensors"].as_array().expect("a list") {
            let name = tensor["name"].as_str().expect("a name");
            assert_eq!(tensor["changed"], facts["tensors"][name], "{pair} {name}");
        }
        if from + 1 == to {
            let show = store.json(&["show", &format!("acme/policy@v{to}")]);
            assert_eq!(
                (&show["changed"], &show["elements"]),
                (&facts["changed"], &facts["elements"])
            );
            // A real update, all overhead of its storage included, stays near what any blind coder could reach.
            let bound = facts["blind_bound_bytes"].as_f64().expect("a number");
            let ratio = show["patch_bytes"].as_f64().expect("a number") / bound;
            assert!(ratio <= 1.06, "{pair}: {ratio}");
        }
    }
}

#[test]
fn on_the_small_real_set() {
    main_job(&checkpoints::small(), &[2, 3, 0, 1]);
}

#[test]
fn on_the_large_real_sets() {
    if let Some(set) = checkpoints::large("policy-bf16", "the main job on policy-bf16") {
        main_job(&set, &[4, 12, 2, 7, 3]);
    }
    if let Some(set) = checkpoints::large("policy-fp8", "the main job on policy-fp8") {
        main_job(&set, &[0, 3, 1, 2]);
    }
}
