//! Which crate may use which (DESIGN §8): a worker's build never compiles the store, one crate knows RocksDB,
//! one knows CUDA. And what libraries leave to their callers: the formats do no input or output, no library prints or reads
//! the environment.

use deltaic_tests::places;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
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

/// What the source of a crate never has, tests excluded, and why. A path of `std` is found in braces too.
const NEVER: [(&[&str], &[&str], &str); 2] = [
    (
        &["format-spec"],
        &["tokio", "std::fs", "std::net", "std::process"],
        "the formats do no input or output and are not async (DESIGN §8)",
    ),
    (
        &["format-spec", "store", "client", "gpu"],
        &[
            "println!",
            "print!",
            "eprintln!",
            "eprint!",
            "dbg!",
            "env::var",
            "env::vars",
            "env::args",
            "env::home_dir",
        ],
        "libraries never print and never read the environment (DESIGN §8)",
    ),
];

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

/// The Rust files below `folder`, but those that hold tests alone.
fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_stem().is_some_and(|name| name == "tests") {
            continue;
        }
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}

/// Numbered lines of code: no comments, and nothing from where the tests of the file begin.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines.windows(2).position(|pair| {
        let [attribute, module] = pair else {
            return false;
        };
        // `mod tests;` ends nothing: more may follow.
        attribute.trim() == "#[cfg(test)]" && module.starts_with("mod ") && module.ends_with('{')
    });
    let end = tests.unwrap_or(lines.len());
    (1..)
        .zip(lines)
        .take(end)
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// Whether a line of code has `word`, not as part of a longer one. `group` says that it is within `use std::{…}`.
fn has_word(line: &str, word: &str, group: bool) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let find = |word: &str| {
        line.match_indices(word).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + word.len()..].chars().next();
            let whole = word.ends_with('!') || !after.is_some_and(part);
            whole && !before.is_some_and(part)
        })
    };
    find(word)
        || word
            .strip_prefix("std::")
            .is_some_and(|module| group && find(module))
}

/// The places in `text` that have one of `words`, as line numbers.
fn places_of(text: &str, words: &[&str]) -> Vec<(usize, String)> {
    let mut group = false;
    let mut found = Vec::new();
    for (number, line) in code(text) {
        group |= line.trim_start().starts_with("use std::{");
        for word in words.iter().filter(|word| has_word(line, word, group)) {
            found.push((number, (*word).to_owned()));
        }
        group &= !line.contains(';');
    }
    found
}

#[test]
fn libraries_leave_input_output_and_environment_to_their_callers() {
    let mut broken = Vec::new();
    for (crates, words, why) in NEVER {
        for name in crates {
            let mut files = Vec::new();
            sources(&places::workspace().join(name).join("src"), &mut files);
            assert!(!files.is_empty(), "{name} has sources");
            for file in files {
                let text = fs::read_to_string(&file).unwrap();
                for (line, word) in places_of(&text, words) {
                    broken.push(format!("{}:{line}: {word}: {why}", file.display()));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_scan_finds_what_it_looks_for() {
    let words = ["std::fs", "print!", "env::var"];
    let lines = |text: &str| -> Vec<usize> {
        let found = places_of(text, &words);
        found.into_iter().map(|(line, _)| line).collect()
    };
    assert_eq!(lines("use std::fs;\nuse std::fs::File;"), [1, 2]);
    assert_eq!(lines("use std::{\n    fmt,\n    fs,\n};\nlet fs = 1;"), [3]);
    assert_eq!(lines("print!(\"x\");\neprint!(\"x\");\n// print!"), [1]);
    assert_eq!(lines("std::env::var(x);\nenv::variable(x);"), [1]);
    assert_eq!(
        lines("#[cfg(test)]\nmod tests;\nprint!()\n#[cfg(test)]\nmod more {\nprint!()"),
        [3]
    );
}
