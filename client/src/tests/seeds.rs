//! Seeds: what is on this machine is not fetched.

use super::model::{History, TestFile, example_trees, tensor};
use super::{assert_holds, pull, pull_with};
use crate::{PullOptions, ReplicaFolder};
use deltaic_format::progress::{Progress, Silent};
use std::fs;
use std::path::PathBuf;
use tempfile::tempdir;

fn with_seeds(seeds: &[PathBuf]) -> PullOptions {
    PullOptions {
        seeds: seeds.to_vec(),
        ..PullOptions::default()
    }
}

#[test]
fn what_a_seed_holds_is_copied_and_not_fetched() {
    let history = History::example();
    let (seed, folder) = (tempdir().unwrap(), tempdir().unwrap());
    pull(seed.path(), &history, 0).unwrap();
    let options = with_seeds(&[seed.path().to_owned()]);
    let outcome = pull_with(folder.path(), &history, 1, &options).unwrap();
    assert_holds(folder.path(), &history.versions[1]);
    // Nine tensors, of which five changed and one has no bytes.
    assert_eq!((outcome.seeded, outcome.whole), (3, 5));
    assert_eq!(history.wishes.borrow().len(), 5);
}

#[test]
fn a_content_is_found_under_another_name_and_in_a_single_file() {
    let trees = example_trees(3000);
    let history = History::new(&trees);
    let seed = tempdir().unwrap();
    let content = trees[0].weights[0].tensors[2].content.clone();
    let file = TestFile {
        path: "other.safetensors",
        metadata: "",
        tensors: vec![
            tensor("decoy", "U8", &[3000], vec![0; 3000]),
            tensor("renamed", "U8", &[30, 100], content),
        ],
    };
    let path = seed.path().join(file.path);
    fs::write(&path, file.bytes()).unwrap();
    let folder = tempdir().unwrap();
    let outcome = pull_with(folder.path(), &history, 0, &with_seeds(&[path])).unwrap();
    assert_eq!((outcome.seeded, outcome.whole), (1, 7));
    assert_holds(folder.path(), &history.versions[0]);
}

#[test]
fn a_tensor_that_moved_within_the_replica_is_not_fetched() {
    let history = History::example();
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    // One tensor has another name, one file another path; all contents are the first version's.
    let outcome = pull(folder.path(), &history, 4).unwrap();
    assert_eq!((outcome.patched, outcome.whole, outcome.seeded), (0, 0, 5));
    assert_holds(folder.path(), &history.versions[4]);
}

/// What it prevents: a pull that fails although all that it needs is to be had.
#[test]
fn seeds_that_cannot_be_read_are_skipped_and_named() {
    let history = History::example();
    let (empty, good, folder) = (tempdir().unwrap(), tempdir().unwrap(), tempdir().unwrap());
    pull(good.path(), &history, 0).unwrap();
    let missing = empty.path().join("missing");
    let seeds = [
        empty.path().to_owned(),
        missing.clone(),
        good.path().to_owned(),
    ];
    let outcome = pull_with(folder.path(), &history, 0, &with_seeds(&seeds)).unwrap();
    assert_holds(folder.path(), &history.versions[0]);
    assert_eq!((outcome.seeded, outcome.whole), (8, 0));
    let [first, second] = &outcome.seeds_skipped[..] else {
        panic!("{:?}", outcome.seeds_skipped);
    };
    assert!(first.contains(empty.path().to_str().unwrap()), "{first}");
    assert!(second.contains(missing.to_str().unwrap()), "{second}");
}

/// Changes a file the moment that a phase begins.
struct ChangeAt(&'static str, PathBuf);

impl Progress for ChangeAt {
    fn phase(&self, name: &'static str, _total: Option<u64>) {
        if name == self.0 {
            let mut bytes = fs::read(&self.1).unwrap();
            bytes.iter_mut().rev().take(1000).for_each(|b| *b ^= 1);
            fs::write(&self.1, bytes).unwrap();
        }
    }

    fn advance(&self, _bytes: u64) {}
}

/// What it prevents: bytes of a seed that were right when it was hashed, and are not when they are copied.
#[test]
fn a_seed_that_changes_while_it_is_read_is_skipped() {
    let trees = example_trees(3000);
    let history = History::new(&trees);
    for phase in ["searching seeds", "reusing"] {
        // Into an empty folder the contents are staged; a repair of one tensor puts them into the journal.
        for in_place in [false, true] {
            let (seed, folder) = (tempdir().unwrap(), tempdir().unwrap());
            pull(seed.path(), &history, 0).unwrap();
            let changed = seed.path().join("sub/model-2.safetensors");
            if in_place {
                pull(folder.path(), &history, 0).unwrap();
                let path = folder.path().join("sub/model-2.safetensors");
                let mut bytes = fs::read(&path).unwrap();
                *bytes.last_mut().unwrap() ^= 1;
                fs::write(path, bytes).unwrap();
            }
            let options = PullOptions {
                repair: true,
                ..with_seeds(&[seed.path().to_owned()])
            };
            let mut replica = ReplicaFolder::open_or_create(folder.path(), &Silent).unwrap();
            let want = &history.versions[0].snapshot;
            let progress = ChangeAt(phase, changed);
            let outcome = replica.pull(&history, want, &options, &progress).unwrap();
            assert_eq!(outcome.seeds_skipped.len(), 1, "{phase} {in_place}");
            assert!(outcome.whole > 0);
            assert_holds(folder.path(), &history.versions[0]);
            assert_eq!(replica.verify(&Silent).unwrap().problems, []);
        }
    }
}
