//! Seeds: what is on this machine is not fetched.

use super::model::{History, TestFile, example_trees, tensor};
use super::{assert_holds, error_of, pull, pull_with};
use crate::{ClientError, PullOptions};
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

#[test]
fn a_seed_that_is_no_checkpoint_is_an_error() {
    let history = History::example();
    let (seed, folder) = (tempdir().unwrap(), tempdir().unwrap());
    let options = with_seeds(&[seed.path().to_owned()]);
    let error = error_of(pull_with(folder.path(), &history, 0, &options));
    assert!(matches!(error, ClientError::NoCheckpoint { .. }), "{error}");
}
