//! What others do to a folder while it is pulled into, and what a pull must not do to what others have there.

use super::model::History;
use super::{assert_holds, error_of, fault_at, files_in, pull, pull_with, repair};
use crate::replica::FaultPoint;
use crate::{ClientError, PullOptions, ReplicaFolder};
use deltaic_format::progress::{Progress, Silent};
use std::fs::{self, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::tempdir;

/// Calls `meddle` the `nth` time, from 0, that step `at` is come to.
fn at(at: &'static str, nth: usize, meddle: impl Fn() + Send + Sync + 'static) -> FaultPoint {
    let count = AtomicUsize::new(0);
    Box::new(move |step| {
        if step == at && count.fetch_add(1, Ordering::Relaxed) == nth {
            meddle();
        }
        Ok(())
    })
}

/// Flip the last byte of a file where it lies.
fn flip_last(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 4;
    let mut file = fs::File::options().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(last as u64)).unwrap();
    file.write_all(&bytes[last..]).unwrap();
}

/// What it prevents: somebody's edit beside ours, made while we write, that is stamped as what we left.
#[test]
fn an_edit_while_the_pull_writes_is_never_taken_for_ours() {
    let history = History::example();
    for (step, nth) in [
        ("words", 0),
        ("words", 3),
        ("words", 4),
        ("sync", 0),
        ("sync", 1),
        ("settle", 0),
    ] {
        let folder = tempdir().unwrap();
        pull(folder.path(), &history, 0).unwrap();
        // Its last tensor, `frozen`, is not changed by the pull.
        let path = folder.path().join("sub/model-2.safetensors");
        let fault = at(step, nth, move || flip_last(&path));
        let mut replica = ReplicaFolder::open_faulty(folder.path(), fault).unwrap();
        let want = &history.versions[1].snapshot;
        let options = PullOptions::default();
        let error = error_of(replica.pull(&history, want, &options, &Silent));
        assert!(matches!(error, ClientError::Unusable { .. }), "{error}");
        assert!(error.to_string().contains("frozen"), "{step}: {error}");
        assert!(replica.held().is_none());
        drop(replica);
        let error = error_of(pull(folder.path(), &history, 1));
        assert!(matches!(error, ClientError::Modified { .. }), "{error}");
        pull_with(folder.path(), &history, 1, &repair()).unwrap();
        assert_holds(folder.path(), &history.versions[1]);
    }
}

/// A write that changes nothing costs a scan, now and at the next pull, and is no error.
#[test]
fn a_write_of_the_same_bytes_while_the_pull_writes_does_no_harm() {
    let history = History::example();
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    let path = folder.path().join("sub/model-2.safetensors");
    let fault = at("settle", 0, move || {
        flip_last(&path);
        flip_last(&path);
    });
    let mut replica = ReplicaFolder::open_faulty(folder.path(), fault).unwrap();
    let want = &history.versions[1].snapshot;
    let options = PullOptions::default();
    replica.pull(&history, want, &options, &Silent).unwrap();
    let state = fs::read_to_string(folder.path().join(".deltaic/state.json")).unwrap();
    assert_eq!(state.matches("\"stat\": null").count(), 1, "{state}");
    assert_holds(folder.path(), &history.versions[1]);
}

/// What it prevents: a full disk between two renames, reported as if nothing had changed.
#[test]
fn a_full_disk_after_the_journal_leaves_the_update_under_way() {
    let history = History::example();
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 2).unwrap();
    let internal = folder.path().join(".deltaic");
    let full = {
        let (once, internal) = (Once::new(), internal.clone());
        move |step: &'static str| {
            if step == "rename" {
                once.call_once(|| {
                    // All that comes after the journal is there already.
                    for name in ["commit", "tree", "schema", "state.json"] {
                        assert!(internal.join(format!("{name}.new")).exists(), "{name}");
                    }
                });
                let path = internal.join("journal");
                return Err(ClientError::NoSpace { path });
            }
            Ok(())
        }
    };
    let mut replica = ReplicaFolder::open_faulty(folder.path(), Box::new(full)).unwrap();
    let want = &history.versions[3].snapshot;
    let options = PullOptions::default();
    let error = error_of(replica.pull(&history, want, &options, &Silent));
    let ClientError::Unfinished { source, .. } = &error else {
        panic!("{error}");
    };
    assert!(matches!(**source, ClientError::NoSpace { .. }), "{error}");
    assert!(error.to_string().contains("under way"), "{error}");
    assert!(replica.held().is_none());
    drop(replica);
    pull(folder.path(), &history, 3).unwrap();
    assert_holds(folder.path(), &history.versions[3]);
}

/// What it prevents: the state written to a file that is not the one which was reserved for it.
#[test]
fn the_next_state_is_what_was_reserved_before_the_journal() {
    let history = History::example();
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    let internal = folder.path().join(".deltaic");
    let reserved = std::sync::Arc::new(AtomicUsize::new(0));
    let (found, new) = (reserved.clone(), internal.join("state.json.new"));
    let fault = at("journal", 0, move || {
        found.store(
            fs::metadata(&new).unwrap().ino() as usize,
            Ordering::Relaxed,
        );
    });
    let mut replica = ReplicaFolder::open_faulty(folder.path(), fault).unwrap();
    let want = &history.versions[1].snapshot;
    let options = PullOptions::default();
    replica.pull(&history, want, &options, &Silent).unwrap();
    let state = fs::metadata(internal.join("state.json")).unwrap();
    assert_eq!(state.ino() as usize, reserved.load(Ordering::Relaxed));
    let names = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let new = fs::read_dir(&internal).unwrap().map(names);
    assert_eq!(
        new.filter(|n| n.to_str().unwrap().ends_with(".new"))
            .count(),
        0
    );
}

/// What it prevents: a snapshot made with hard links (`cp -al`, rsync --link-dest) that changes with the replica.
#[test]
fn hard_linked_files_are_not_changed_through_the_link() {
    let history = History::example();
    let (folder, backup) = (tempdir().unwrap(), tempdir().unwrap());
    pull(folder.path(), &history, 0).unwrap();
    for name in ["model-1.safetensors", "sub/model-2.safetensors"] {
        let link = backup.path().join(name.replace('/', "-"));
        fs::hard_link(folder.path().join(name), link).unwrap();
    }
    let before = files_in(backup.path());
    pull(folder.path(), &history, 1).unwrap();
    assert_holds(folder.path(), &history.versions[1]);
    assert!(files_in(backup.path()) == before);
}

/// What it prevents: a pull that fails on a file of its own which somebody protected.
#[test]
fn a_read_only_weight_file_is_replaced_and_stays_read_only() {
    let history = History::example();
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    let path = folder.path().join("model-1.safetensors");
    let inode = fs::metadata(&path).unwrap().ino();
    fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
    pull(folder.path(), &history, 1).unwrap();
    assert_holds(folder.path(), &history.versions[1]);
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o444);
    assert_ne!(metadata.ino(), inode);
}

/// What it prevents: a link planted in `.deltaic` that makes a pull write elsewhere.
#[test]
fn symlinks_among_a_replicas_own_files_are_refused() {
    let history = History::example();
    let outside = tempdir().unwrap();
    let target = outside.path().join("precious");
    for name in [
        "lock",
        "journal",
        "state.json",
        "commit",
        "state.json.new",
        "tree.new",
        "staged",
    ] {
        let folder = tempdir().unwrap();
        pull(folder.path(), &history, 0).unwrap();
        fs::write(&target, "precious").unwrap();
        let own = folder.path().join(".deltaic").join(name);
        if own.is_dir() {
            fs::remove_dir(&own).unwrap();
            symlink(outside.path(), &own).unwrap();
        } else {
            let _ = fs::remove_file(&own);
            symlink(&target, &own).unwrap();
        }
        let error = error_of(pull(folder.path(), &history, 1));
        assert!(
            matches!(&error, ClientError::Corrupt { object, .. } if object.ends_with(name)),
            "{name}: {error}"
        );
        assert_eq!(fs::read(&target).unwrap(), b"precious");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    }
    let folder = tempdir().unwrap();
    symlink(outside.path(), folder.path().join(".deltaic")).unwrap();
    let error = error_of(pull(folder.path(), &history, 0));
    assert!(matches!(error, ClientError::NotAReplica { .. }), "{error}");
}

#[test]
fn whoever_may_only_read_verifies_beside_others_and_writes_nothing() {
    let history = History::example();
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    let mut first = ReplicaFolder::open_for_reading(folder.path()).unwrap();
    let second = ReplicaFolder::open_for_reading(folder.path()).unwrap();
    for replica in [&first, &second] {
        assert_eq!(replica.verify(&Silent).unwrap().problems, []);
    }
    let error = error_of(ReplicaFolder::open(folder.path(), &Silent));
    assert!(matches!(error, ClientError::Locked { .. }), "{error}");
    let want = &history.versions[1].snapshot;
    let options = PullOptions::default();
    let error = error_of(first.pull(&history, want, &options, &Silent));
    assert!(matches!(error, ClientError::Io { .. }), "{error}");
    drop((first, second));

    let mut replica = ReplicaFolder::open_faulty(folder.path(), fault_at(2)).unwrap();
    assert!(replica.pull(&history, want, &options, &Silent).is_err());
    drop(replica);
    let error = error_of(ReplicaFolder::open_for_reading(folder.path()));
    assert!(matches!(error, ClientError::Unfinished { .. }), "{error}");
}

/// Wants to stop from the beginning, and remembers the phases.
#[derive(Default)]
struct Stop(std::sync::Mutex<Vec<(&'static str, Option<u64>)>>, bool);

impl Progress for Stop {
    fn phase(&self, name: &'static str, total: Option<u64>) {
        self.0.lock().unwrap().push((name, total));
    }

    fn advance(&self, _bytes: u64) {}

    fn cancelled(&self) -> bool {
        self.1
    }
}

#[test]
fn what_a_crash_left_is_replayed_with_progress_and_not_against_a_wish_to_stop() {
    let history = History::example();
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    let mut replica = ReplicaFolder::open_faulty(folder.path(), fault_at(1)).unwrap();
    let options = PullOptions {
        repo: "acme/policy".into(),
        revision: "v1".into(),
        ..PullOptions::default()
    };
    let want = &history.versions[1].snapshot;
    assert!(replica.pull(&history, want, &options, &Silent).is_err());
    drop(replica);
    let stop = Stop(std::sync::Mutex::default(), true);
    let error = error_of(ReplicaFolder::open(folder.path(), &stop));
    assert!(matches!(error, ClientError::Interrupted), "{error}");
    assert_holds(folder.path(), &history.versions[0]);
    let progress = Stop::default();
    let replica = ReplicaFolder::open(folder.path(), &progress).unwrap();
    // By hand: 71 bytes, 194 words of two bytes, 16 bytes of packed nibbles, 3 words of eight bytes, 1 of four.
    let total = 71 + 194 * 2 + 16 + 3 * 8 + 4;
    assert_eq!(
        progress.0.into_inner().unwrap(),
        [("replaying", Some(total))]
    );
    assert_holds(folder.path(), &history.versions[1]);
    assert_eq!(replica.origin(), Some(("acme/policy", "v1")));
}

/// What it prevents: a pull that leaves size and time as they were, so that a mirror never copies the file.
#[test]
fn two_pulls_leave_different_times_and_both_lie_in_the_past() {
    let history = History::example();
    let folder = tempdir().unwrap();
    let path = folder.path().join("model-1.safetensors");
    let mut times = Vec::new();
    for version in [0, 1, 0, 1] {
        let before = std::time::SystemTime::now();
        pull(folder.path(), &history, version).unwrap();
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        assert!(modified < before);
        times.push(modified);
    }
    assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
}
