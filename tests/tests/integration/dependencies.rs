//! Which crate may use which (DESIGN §8): a worker's build never compiles the store, one crate knows RocksDB,
//! one knows CUDA.

use deltaic_tests::places;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

/// Each crate of the workspace and those of the others that it may use.
const ALLOWED: [(&str, &[&str]); 6] = [
    ("deltaic-format", &[]),
    ("deltaic-store", &["deltaic-format"]),
    ("deltaic-gpu", &["deltaic-format"]),
    ("deltaic-client", &["deltaic-format", "deltaic-gpu"]),
    (
        "deltaic-server",
        &[
            "deltaic-format",
            "deltaic-gpu",
            "deltaic-client",
            "deltaic-store",
        ],
    ),
    (
        "deltaic-tests",
        &[
            "deltaic-format",
            "deltaic-gpu",
            "deltaic-client",
            "deltaic-store",
            "deltaic-server",
        ],
    ),
];

/// Packages that one crate alone may name.
const OWNED: [(&str, &str); 2] = [("rocksdb", "deltaic-store"), ("cudarc", "deltaic-gpu")];

/// The crates of the workspace with the packages that each names.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ])
        .current_dir(places::workspace())
        .output()
        .expect("cargo runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata failed: {errors}");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let packages = metadata["packages"].as_array().expect("a list of packages");
    packages
        .iter()
        .map(|package| {
            let named = package["dependencies"].as_array().expect("a list");
            (
                text(&package["name"]),
                named.iter().map(|d| text(&d["name"])).collect(),
            )
        })
        .collect()
}

#[test]
fn crates_depend_in_the_allowed_direction() {
    let found = dependencies();
    let known: Vec<&str> = ALLOWED.iter().map(|(name, _)| *name).collect();
    for name in found.keys() {
        assert!(
            known.contains(&name.as_str()),
            "{name} is new: say here what it may depend on"
        );
    }
    for (name, allowed) in ALLOWED {
        let named = found
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not in the workspace"));
        for other in named.iter().filter(|other| known.contains(&other.as_str())) {
            assert!(
                allowed.contains(&other.as_str()),
                "{name} depends on {other}; it may depend on {allowed:?} only (DESIGN §8)"
            );
        }
    }
}

#[test]
fn one_crate_knows_rocksdb_and_one_knows_cuda() {
    for (name, named) in dependencies() {
        for (package, owner) in OWNED {
            assert!(
                name == owner || !named.iter().any(|other| other == package),
                "{name} names {package}; only {owner} may (DESIGN §8)"
            );
        }
    }
}
