//! Pulling: any version from any other, and what is reported of it.

use super::model::{Answer, History, TestTree, example_trees, nudge};
use super::{assert_holds, error_of, files_in, pull, pull_with};
use crate::{ClientError, Proof, PullOptions, ReplicaFolder};
use deltaic_format::Version;
use deltaic_format::name::TreePath;
use deltaic_format::progress::{Progress, Silent};
use std::fs;
use std::sync::Mutex;
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
                let replica = ReplicaFolder::open(folder.path(), &Silent).unwrap();
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
    let error = error_of(ReplicaFolder::open(folder.path().join("missing"), &Silent));
    assert!(matches!(error, ClientError::NotAReplica { .. }), "{error}");
}

#[test]
fn only_one_process_has_a_replica_open() {
    let folder = tempdir().unwrap();
    let _first = ReplicaFolder::open_or_create(folder.path(), &Silent).unwrap();
    let error = error_of(ReplicaFolder::open_or_create(folder.path(), &Silent));
    let ClientError::Locked { holder, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(holder, format!("process {}", std::process::id()));
}

/// What it prevents: an empty `.deltaic` in every folder that somebody tried to pull into.
#[test]
fn a_first_pull_that_fails_early_leaves_nothing() {
    let history = History::example();
    let outside = tempdir().unwrap();
    let missing = outside.path().join("a/b");
    let options = PullOptions {
        path: Some(TreePath::new("no/such/file").unwrap()),
        ..PullOptions::default()
    };
    for folder in [&missing, &outside.path().to_owned()] {
        error_of(pull_with(folder, &history, 0, &options));
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }
    // A file system's own folder does not make a folder one of other files.
    fs::create_dir(outside.path().join("lost+found")).unwrap();
    pull(outside.path(), &history, 0).unwrap();
    let replica = ReplicaFolder::open(outside.path(), &Silent).unwrap();
    assert_eq!(replica.verify(&Silent).unwrap().problems, []);
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
        let mut replica = ReplicaFolder::open_or_create(folder.path(), &Silent).unwrap();
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

/// Remembers phases with their totals, and how far each came.
#[derive(Default)]
struct Phases(Mutex<Vec<(&'static str, Option<u64>, u64)>>);

impl Progress for Phases {
    fn phase(&self, name: &'static str, total: Option<u64>) {
        self.0.lock().unwrap().push((name, total, 0));
    }

    fn advance(&self, bytes: u64) {
        self.0.lock().unwrap().last_mut().unwrap().2 += bytes;
    }
}

#[test]
fn every_phase_of_a_pull_reaches_the_total_that_it_names() {
    let history = History::example();
    let folder = tempdir().unwrap();
    let options = PullOptions {
        proof: Proof::Full,
        ..PullOptions::default()
    };
    for version in [0, 1, 2, 3, 4, 1] {
        let progress = Phases::default();
        let mut replica = ReplicaFolder::open_or_create(folder.path(), &progress).unwrap();
        let want = &history.versions[version].snapshot;
        replica.pull(&history, want, &options, &progress).unwrap();
        let phases = progress.0.into_inner().unwrap();
        // This source's plans name no bytes.
        let phases: Vec<_> = phases.iter().filter(|p| p.0 != "receiving").collect();
        for (name, total, done) in &phases {
            assert_eq!(*total, Some(*done), "{name} of version {version}");
        }
        let names: Vec<_> = phases.iter().map(|p| p.0).collect();
        assert!(
            names.ends_with(&["reusing", "writing", "proving"]),
            "{names:?}"
        );
    }
}

/// What it prevents: a shard whose tensors were replaced that is written to the journal and to its place.
#[test]
fn a_file_that_is_mostly_new_is_staged() {
    use std::os::unix::fs::MetadataExt;
    let trees = example_trees(70_000);
    let history = History::new(&trees);
    let folder = tempdir().unwrap();
    let inode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().ino();
    pull(folder.path(), &history, 0).unwrap();
    let names = ["model-1.safetensors", "sub/model-2.safetensors"];
    let before = names.map(inode);
    let damage = |name: &str, at: usize| {
        let path = folder.path().join(name);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.len() - at;
        bytes[at] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    // In `big`, 70,000 bytes of 76,018.
    damage(names[0], 7000);
    pull_with(folder.path(), &history, 0, &super::repair()).unwrap();
    assert_ne!(inode(names[0]), before[0]);
    // In `frozen`, 1,000 of 2,696.
    damage(names[1], 1);
    pull_with(folder.path(), &history, 0, &super::repair()).unwrap();
    assert_eq!(inode(names[1]), before[1]);
    assert_holds(folder.path(), &history.versions[0]);
}

#[test]
fn a_version_with_the_same_content_is_a_version() {
    let trees = example_trees(100);
    let history = History::new(&[trees[0].clone(), trees[0].clone()]);
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    let outcome = pull(folder.path(), &history, 1).unwrap();
    assert_eq!((outcome.to, outcome.received_bytes), (Version(1), 0));
    let replica = ReplicaFolder::open(folder.path(), &Silent).unwrap();
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
        super::pass_as_ours(folder.path());
        let outcome = pull(folder.path(), &history, 1).unwrap();
        assert_eq!(outcome.patched, 1);
        assert_holds(folder.path(), &history.versions[1]);
    }
}
