//! Crashes: a pull that stops at any step, and then again while it is completed, leaves a version and nothing else.

use super::model::{History, example_trees};
use super::{assert_holds, fault_at, files_in, pull};
use crate::{PullOptions, ReplicaFolder};
use deltaic_format::progress::Silent;
use std::fs;
use std::path::Path;
use tempfile::tempdir;

/// Pull `version` and crash at step `at`; returns whether it got that far.
fn crash(folder: &Path, history: &History, version: usize, at: usize) -> bool {
    let mut replica = ReplicaFolder::open_faulty(folder, fault_at(at)).unwrap();
    let want = &history.versions[version].snapshot;
    replica
        .pull(history, want, &PullOptions::default(), &Silent)
        .is_err()
}

/// What it prevents: files of two versions after a crash, or a state that names one which is not there.
#[test]
fn a_crash_at_any_step_leaves_one_version_and_the_way_to_any_other() {
    let history = History::new(&example_trees(3000));
    for (from, to) in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)] {
        let folder = tempdir().unwrap();
        pull(folder.path(), &history, from).unwrap();
        for at in 0.. {
            if !crash(folder.path(), &history, to, at) {
                assert!(at > 5, "there are steps to crash at");
                break;
            }
            let replica = ReplicaFolder::open_or_create(folder.path(), &Silent).unwrap();
            let held = replica.held().unwrap().commit.version.0 as usize;
            assert_eq!(
                held == from,
                at == 0,
                "only the first step comes before the journal"
            );
            assert_holds(folder.path(), &history.versions[held]);
            assert!(replica.verify(&Silent).unwrap().problems.is_empty());
            drop(replica);
            pull(folder.path(), &history, at % 5).unwrap();
            assert_holds(folder.path(), &history.versions[at % 5]);
            pull(folder.path(), &history, from).unwrap();
        }
        assert_holds(folder.path(), &history.versions[to]);
    }
}

/// What it prevents: a first pull that, interrupted, leaves a folder which is neither empty nor a replica.
#[test]
fn a_first_pull_that_crashes_at_any_step_goes_on() {
    let history = History::new(&example_trees(100));
    for at in 0.. {
        let folder = tempdir().unwrap();
        let crashed = crash(folder.path(), &history, 3, at);
        pull(folder.path(), &history, 0).unwrap();
        assert_holds(folder.path(), &history.versions[0]);
        if !crashed {
            break;
        }
    }
}

/// What it prevents: a replay that works once and not twice.
#[test]
fn a_crash_while_a_crash_is_mended_changes_nothing() {
    let history = History::new(&example_trees(3000));
    for (from, to) in [(1, 2), (2, 3), (3, 4)] {
        let folder = tempdir().unwrap();
        for first in [2, 6, 9] {
            pull(folder.path(), &history, from).unwrap();
            assert!(crash(folder.path(), &history, to, first));
            for second in 0.. {
                let opened = ReplicaFolder::open_faulty(folder.path(), fault_at(second));
                if opened.is_ok() {
                    break;
                }
            }
            assert_holds(folder.path(), &history.versions[to]);
        }
    }
}

/// What it prevents: half of a journal taken for a whole one.
#[test]
fn a_journal_cut_at_any_byte_is_discarded() {
    let history = History::new(&example_trees(100));
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    assert!(crash(folder.path(), &history, 1, 1));
    let path = folder.path().join(".deltaic/journal");
    let journal = fs::read(&path).unwrap();
    assert!(ReplicaFolder::journal_is_complete(folder.path()).unwrap());
    for length in 0..journal.len() {
        fs::write(&path, &journal[..length]).unwrap();
        assert!(
            !ReplicaFolder::journal_is_complete(folder.path()).unwrap(),
            "{length}"
        );
    }
    let mut flipped = journal.clone();
    for byte in (0..journal.len()).step_by(7) {
        flipped[byte] ^= 1;
        fs::write(&path, &flipped).unwrap();
        assert!(
            !ReplicaFolder::journal_is_complete(folder.path()).unwrap(),
            "{byte}"
        );
        flipped[byte] ^= 1;
    }
    for length in [0, 8, 9, 48, journal.len() / 2, journal.len() - 1] {
        fs::write(&path, &journal[..length]).unwrap();
        fs::write(folder.path().join(".deltaic/staged/7"), "left over").unwrap();
        let replica = ReplicaFolder::open(folder.path(), &Silent).unwrap();
        assert_eq!(replica.held().unwrap().id, history.versions[0].snapshot.id);
        assert!(!path.exists() && !folder.path().join(".deltaic/staged/7").exists());
        assert_holds(folder.path(), &history.versions[0]);
    }
}

/// What it prevents: an edit made after the crash that passes as ours once the journal has been replayed.
#[test]
fn an_edit_between_crash_and_replay_is_noticed() {
    let history = History::new(&example_trees(3000));
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    assert!(crash(folder.path(), &history, 1, 3));
    let path = folder.path().join("sub/model-2.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = super::error_of(pull(folder.path(), &history, 1));
    assert!(error.to_string().contains("frozen"), "{error}");
    super::pull_with(folder.path(), &history, 1, &super::repair()).unwrap();
    assert_holds(folder.path(), &history.versions[1]);
}

/// What it prevents: a replica that can never be opened again because a file went missing at the wrong moment.
#[test]
fn files_deleted_between_crash_and_replay_are_repaired() {
    let history = History::new(&example_trees(3000));
    for deleted in ["model-1.safetensors", "config.json"] {
        let folder = tempdir().unwrap();
        pull(folder.path(), &history, 1).unwrap();
        assert!(crash(folder.path(), &history, 2, 3));
        fs::remove_file(folder.path().join(deleted)).unwrap();
        drop(ReplicaFolder::open(folder.path(), &Silent).unwrap());
        super::pull_with(folder.path(), &history, 2, &super::repair()).unwrap();
        assert_holds(folder.path(), &history.versions[2]);
        assert_eq!(files_in(folder.path()).len(), 5);
    }
}
