//! Pulling: any version from any other, and what is reported of it.

use super::model::{Answer, History, TestTree, example_trees, nudge};
use super::{assert_holds, error_of, files_in, pull, pull_with};
use crate::{ClientError, Proof, PullOptions, ReplicaFolder};
use deltaic_format::Version;
use deltaic_format::name::TreePath;
use deltaic_format::progress::{Progress, Silent};
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::tempdir;

#[test]
fn every_version_is_reached_from_every_other() {
    let history = History::example();
    for (answer, proof) in [
        (Answer::Patches, Proof::Touched),
        (Answer::Patches, Proof::Full),
        (Answer::Contents, Proof::Full),
    ] {
        history.answer.set(answer);
        let folder = tempdir().unwrap();
        let options = PullOptions {
            proof,
            ..PullOptions::default()
        };
        for from in 0..5 {
            for to in 0..5 {
                pull_with(folder.path(), &history, from, &options).unwrap();
                assert_holds(folder.path(), &history.versions[from]);
                let outcome = pull_with(folder.path(), &history, to, &options).unwrap();
                assert_holds(folder.path(), &history.versions[to]);
                assert_eq!(outcome.from, Some(Version(from as u64)));
                assert_eq!(outcome.to, Version(to as u64));
                let replica = ReplicaFolder::open(folder.path()).unwrap();
                assert_eq!(replica.verify(&Silent).unwrap().problems, []);
            }
        }
    }
}

#[test]
fn a_tensor_of_several_pieces_is_patched_across_their_bounds() {
    let history = History::new(&example_trees((1 << 22) + 70_001));
    let folder = tempdir().unwrap();
    for version in [0, 1, 2, 0, 3] {
        pull(folder.path(), &history, version).unwrap();
        assert_holds(folder.path(), &history.versions[version]);
    }
}

#[test]
fn a_pull_reports_what_it_did() {
    let history = History::example();
    let folder = tempdir().unwrap();
    let first = pull(folder.path(), &history, 0).unwrap();
    assert_eq!((first.from, first.to), (None, Version(0)));
    // Nine tensors, of which one has no bytes.
    assert_eq!((first.whole, first.patched, first.unchanged), (8, 0, 1));
    assert_eq!(first.changed, history.versions[0].snapshot.elements());
    let next = pull(folder.path(), &history, 1).unwrap();
    assert_eq!((next.whole, next.patched, next.unchanged), (0, 5, 4));
    // By hand: ceil(70000/997), and of bytes 0, 31, 62, … of 6,000 no two are of one element; ceil(1600/100), 3, 1.
    assert_eq!(next.changed, 71 + 194 + 16 + 3 + 1);
    assert!(next.received_bytes > 0 && next.received_bytes < first.received_bytes / 10);
    let again = pull(folder.path(), &history, 1).unwrap();
    assert_eq!(
        (again.received_bytes, again.changed, again.unchanged),
        (0, 0, 9)
    );
}

#[test]
fn what_is_patched_in_place_keeps_its_file() {
    use std::os::unix::fs::MetadataExt;
    let history = History::example();
    let folder = tempdir().unwrap();
    let inode = || {
        let path = folder.path().join("model-1.safetensors");
        fs::metadata(path).unwrap().ino()
    };
    pull(folder.path(), &history, 0).unwrap();
    let before = inode();
    for version in [1, 2, 3] {
        pull(folder.path(), &history, version).unwrap();
        assert_eq!(inode(), before);
    }
}

#[test]
fn a_folder_of_other_files_is_no_replica_and_stays_as_it_is() {
    let history = History::example();
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("mine.txt"), "mine").unwrap();
    let error = error_of(pull(folder.path(), &history, 0));
    assert!(matches!(error, ClientError::NotAReplica { .. }), "{error}");
    assert_eq!(files_in(folder.path()).len(), 1);
    assert!(!folder.path().join(".deltaic").exists());
    let error = error_of(ReplicaFolder::open(folder.path().join("missing")));
    assert!(matches!(error, ClientError::NotAReplica { .. }), "{error}");
}

#[test]
fn only_one_process_has_a_replica_open() {
    let folder = tempdir().unwrap();
    let _first = ReplicaFolder::open_or_create(folder.path()).unwrap();
    let error = error_of(ReplicaFolder::open_or_create(folder.path()));
    let ClientError::Locked { holder, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(holder, format!("process {}", std::process::id()));
}

#[test]
fn a_part_of_the_tree_can_be_held_and_grown_but_not_shrunk() {
    let history = History::example();
    let folder = tempdir().unwrap();
    let only = |path: &str| PullOptions {
        path: Some(TreePath::new(path).unwrap()),
        ..PullOptions::default()
    };
    for version in [0, 1, 2] {
        pull_with(folder.path(), &history, version, &only("sub")).unwrap();
        let files = files_in(folder.path());
        assert_eq!(
            files.keys().collect::<Vec<_>>(),
            ["sub/model-2.safetensors"]
        );
        let expected = &history.versions[version].files["sub/model-2.safetensors"];
        assert!(files["sub/model-2.safetensors"] == *expected);
    }
    let error = error_of(pull_with(folder.path(), &history, 2, &only("config.json")));
    assert!(matches!(error, ClientError::Invalid { .. }), "{error}");
    pull(folder.path(), &history, 2).unwrap();
    assert_holds(folder.path(), &history.versions[2]);
    let error = error_of(pull_with(folder.path(), &history, 2, &only("sub")));
    assert!(matches!(error, ClientError::Invalid { .. }), "{error}");

    let empty = tempdir().unwrap();
    let error = error_of(pull_with(empty.path(), &history, 2, &only("su")));
    assert!(
        error.to_string().contains("no file or folder su"),
        "{error}"
    );
}

/// Wants to stop at the nth question.
struct StopAt(usize, AtomicUsize);

impl Progress for StopAt {
    fn phase(&self, _name: &'static str, _total: Option<u64>) {}

    fn advance(&self, _bytes: u64) {}

    fn cancelled(&self) -> bool {
        self.1.fetch_add(1, Ordering::Relaxed) >= self.0
    }
}

#[test]
fn whoever_stops_a_pull_has_the_old_version_or_the_new_one() {
    let history = History::example();
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    let options = PullOptions::default();
    for stop in 0.. {
        let mut replica = ReplicaFolder::open_or_create(folder.path()).unwrap();
        let progress = StopAt(stop, AtomicUsize::new(0));
        let want = &history.versions[3].snapshot;
        match replica.pull(&history, want, &options, &progress) {
            Ok(_) => break,
            Err(error) => assert!(matches!(error, ClientError::Interrupted), "{error}"),
        }
        assert_eq!(replica.held().unwrap().id, history.versions[0].snapshot.id);
        assert_holds(folder.path(), &history.versions[0]);
    }
    assert_holds(folder.path(), &history.versions[3]);
}

#[test]
fn a_version_with_the_same_content_is_a_version() {
    let trees = example_trees(100);
    let history = History::new(&[trees[0].clone(), trees[0].clone()]);
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    let outcome = pull(folder.path(), &history, 1).unwrap();
    assert_eq!((outcome.to, outcome.received_bytes), (Version(1), 0));
    let replica = ReplicaFolder::open(folder.path()).unwrap();
    assert_eq!(replica.held().unwrap().id, history.versions[1].snapshot.id);
}

#[test]
fn files_and_folders_may_change_places() {
    let base = example_trees(100).remove(0);
    let tree = |paths: &[&'static str]| TestTree {
        files: paths
            .iter()
            .map(|p| {
                (
                    *p,
                    deltaic_format::object::FileMode::Plain,
                    p.as_bytes().to_vec(),
                )
            })
            .collect(),
        ..base.clone()
    };
    let history = History::new(&[tree(&["a"]), tree(&["a/b/c", "d"]), tree(&["a/b", "d/e"])]);
    let folder = tempdir().unwrap();
    for version in [0, 1, 2, 1, 0, 2, 0] {
        pull(folder.path(), &history, version).unwrap();
        assert_holds(folder.path(), &history.versions[version]);
    }
}

#[test]
fn a_patch_that_is_there_already_is_not_applied_again() {
    let trees = example_trees(5000);
    let mut next = trees[0].clone();
    nudge(next.content("attn.weight"), 31);
    nudge(next.content("big"), 100);
    // Staged too: the same change in a file whose header grows.
    let mut grown = next.clone();
    grown.weights[0].metadata = "a longer note than before";
    for next in [next, grown] {
        let history = History::new(&[trees[0].clone(), next]);
        let folder = tempdir().unwrap();
        pull(folder.path(), &history, 0).unwrap();
        let path = folder.path().join("model-1.safetensors");
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let data = |version: usize| {
            let view = history.versions[version].snapshot.tensors();
            let view = view
                .into_iter()
                .find(|v| v.spec.name == "attn.weight")
                .unwrap();
            view.offset as usize..(view.offset + view.spec.byte_len()) as usize
        };
        let after = &history.versions[1].files["model-1.safetensors"].0;
        bytes[data(0)].copy_from_slice(&after[data(1)]);
        fs::write(&path, bytes).unwrap();
        fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(modified)
            .unwrap();
        let outcome = pull(folder.path(), &history, 1).unwrap();
        assert_eq!(outcome.patched, 1);
        assert_holds(folder.path(), &history.versions[1]);
    }
}
