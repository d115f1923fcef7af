//! What others do to a replica's files is noticed, named, and repaired when asked for.

use super::model::History;
use super::{assert_holds, error_of, pull, pull_with, repair};
use crate::{ClientError, Proof, PullOptions, ReplicaFolder};
use deltaic_format::progress::Silent;
use std::fs;
use std::path::Path;
use tempfile::tempdir;

/// Flip a bit of the first byte of tensor `name`, or of byte `offset` of the file.
fn edit(folder: &Path, history: &History, name: &str) {
    let snapshot = &history.versions[0].snapshot;
    let view = snapshot
        .tensors()
        .into_iter()
        .find(|v| v.spec.name == name)
        .unwrap();
    flip(&folder.join(view.path.as_str()), view.offset as usize);
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 4;
    fs::write(path, bytes).unwrap();
}

#[track_caller]
fn modified(error: ClientError) -> Vec<String> {
    match error {
        ClientError::Modified { what, .. } => what,
        other => panic!("{other}"),
    }
}

#[test]
fn an_edited_tensor_is_named_and_repaired() {
    let history = History::example();
    // One that the next version changes, and one that it does not.
    for name in ["attn.weight", "attn.bias", "frozen", "mlp.qweight"] {
        let folder = tempdir().unwrap();
        pull(folder.path(), &history, 0).unwrap();
        edit(folder.path(), &history, name);
        let before = super::files_in(folder.path());
        let what = modified(error_of(pull(folder.path(), &history, 1)));
        assert_eq!(what.len(), 1);
        assert!(what[0].contains(name), "{what:?}");
        assert!(
            super::files_in(folder.path()) == before,
            "nothing was written"
        );
        let outcome = pull_with(folder.path(), &history, 1, &repair()).unwrap();
        assert_eq!(outcome.repaired, what);
        assert_eq!(outcome.whole, 1);
        assert_holds(folder.path(), &history.versions[1]);
    }
}

#[test]
fn a_repair_of_the_version_that_is_held_fetches_what_differs() {
    let history = History::example();
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    edit(folder.path(), &history, "big");
    flip(&folder.path().join("sub/model-2.safetensors"), 12);
    flip(&folder.path().join("model-1.safetensors"), 0);
    fs::write(folder.path().join("config.json"), "mine").unwrap();
    let what = modified(error_of(pull(folder.path(), &history, 0)));
    assert_eq!(what.len(), 4, "{what:?}");
    pull_with(folder.path(), &history, 0, &repair()).unwrap();
    assert_eq!(history.wishes.borrow().len(), 1);
    assert_holds(folder.path(), &history.versions[0]);
}

#[test]
fn missing_and_shortened_files_are_repaired() {
    let history = History::example();
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    fs::remove_file(folder.path().join("scripts/run.sh")).unwrap();
    fs::remove_file(folder.path().join("model-1.safetensors")).unwrap();
    let path = folder.path().join("sub/model-2.safetensors");
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len(100).unwrap();
    let what = modified(error_of(pull(folder.path(), &history, 1)));
    assert_eq!(what.len(), 3, "{what:?}");
    pull_with(folder.path(), &history, 1, &repair()).unwrap();
    assert_holds(folder.path(), &history.versions[1]);
}

#[test]
fn a_touched_file_with_the_same_content_is_no_edit() {
    let history = History::example();
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    let path = folder.path().join("model-1.safetensors");
    fs::write(&path, fs::read(&path).unwrap()).unwrap();
    pull(folder.path(), &history, 0).unwrap();
    pull(folder.path(), &history, 1).unwrap();
    assert_holds(folder.path(), &history.versions[1]);
}

/// What it prevents: an edit that puts the modification time back and passes as none.
#[test]
fn an_edit_that_keeps_the_modification_time_is_noticed() {
    let history = History::example();
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    let path = folder.path().join("model-1.safetensors");
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    edit(folder.path(), &history, "attn.bias");
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(modified).unwrap();
    let what = modified_names(folder.path(), &history);
    assert!(what[0].contains("attn.bias"), "{what:?}");
}

/// What pulling version 1 says of others' edits.
fn modified_names(folder: &Path, history: &History) -> Vec<String> {
    modified(error_of(pull(folder, history, 1)))
}

/// Damage that leaves the file's times alone, as a failing disk does.
#[test]
fn silent_damage_is_found_where_it_matters_and_by_a_full_scan() {
    let history = History::example();
    let damage = |folder: &Path, name: &str| {
        edit(folder, &history, name);
        super::pass_as_ours(folder);
    };
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    damage(folder.path(), "attn.weight");
    let error = error_of(pull(folder.path(), &history, 1));
    assert!(
        matches!(&error, ClientError::Proof { object, .. } if object.contains("attn.weight")),
        "{error}"
    );
    let full = PullOptions {
        proof: Proof::Full,
        ..PullOptions::default()
    };
    let what = modified(error_of(pull_with(folder.path(), &history, 1, &full)));
    assert!(what[0].contains("attn.weight"));
    let report = ReplicaFolder::open(folder.path(), &Silent)
        .unwrap()
        .verify(&Silent)
        .unwrap();
    assert!(!report.is_ok());
    assert_eq!(report.problems[0].kind, "tensor");
    pull_with(folder.path(), &history, 1, &repair()).unwrap();
    assert_holds(folder.path(), &history.versions[1]);
}

#[test]
fn files_in_the_way_are_not_overwritten() {
    let history = History::example();
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 2).unwrap();
    fs::write(folder.path().join("scripts/mine"), "mine").unwrap();
    // Version 3 has a file where this folder is.
    let error = error_of(pull_with(folder.path(), &history, 3, &repair()));
    assert!(error.to_string().contains("in the way"), "{error}");
    assert_eq!(
        fs::read(folder.path().join("scripts/mine")).unwrap(),
        b"mine"
    );
    // Version 4 has a file of this name.
    fs::write(folder.path().join("sub.safetensors"), "mine").unwrap();
    let what = modified(error_of(pull(folder.path(), &history, 4)));
    assert!(what[0].starts_with("sub.safetensors"), "{what:?}");
    let report = ReplicaFolder::open(folder.path(), &Silent)
        .unwrap()
        .verify(&Silent)
        .unwrap();
    assert!(report.is_ok());
    let kinds: Vec<_> = report
        .problems
        .iter()
        .map(|p| (p.kind, p.object.as_str()))
        .collect();
    assert_eq!(kinds.len(), 2);
    assert!(kinds.contains(&("extra", "scripts/mine")));
}

#[test]
fn symlinks_put_into_a_replica_are_not_followed() {
    let history = History::example();
    let folder = tempdir().unwrap();
    let outside = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    let sub = folder.path().join("sub");
    let moved = outside.path().join("sub");
    fs::rename(&sub, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &sub).unwrap();
    let before = super::files_in(&moved);
    for options in [PullOptions::default(), repair()] {
        let error = error_of(pull_with(folder.path(), &history, 1, &options));
        assert!(error.to_string().contains("in the way"), "{error}");
    }
    assert!(super::files_in(&moved) == before);

    fs::remove_file(&sub).unwrap();
    fs::create_dir(&sub).unwrap();
    let file = sub.join("model-2.safetensors");
    std::os::unix::fs::symlink(moved.join("model-2.safetensors"), &file).unwrap();
    modified(error_of(pull(folder.path(), &history, 1)));
    pull_with(folder.path(), &history, 1, &repair()).unwrap();
    assert!(super::files_in(&moved) == before);
    assert_holds(folder.path(), &history.versions[1]);
}

#[test]
fn an_edit_during_the_pull_is_noticed_before_anything_is_written() {
    let history = History::example();
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    let path = folder.path().join("model-1.safetensors");
    *history.before.borrow_mut() = Some(Box::new(move || flip(&path, 5000)));
    let error = error_of(pull(folder.path(), &history, 1));
    assert!(
        matches!(
            error,
            ClientError::Changed { .. } | ClientError::Proof { .. }
        ),
        "{error}"
    );
    *history.before.borrow_mut() = None;
    pull_with(folder.path(), &history, 1, &repair()).unwrap();
    assert_holds(folder.path(), &history.versions[1]);
}

/// Pull version 1 over version 0, with `meddle` called once everything is written and before it is read back.
fn pull_and_meddle(
    folder: &Path,
    history: &History,
    proof: Proof,
    meddle: impl Fn() + Send + Sync + 'static,
) -> (ReplicaFolder, ClientError) {
    let once = std::sync::Once::new();
    let fault = move |step: &'static str| {
        if step == "sync" {
            once.call_once(&meddle);
        }
        Ok(())
    };
    let mut replica = ReplicaFolder::open_faulty(folder, Box::new(fault)).unwrap();
    let want = &history.versions[1].snapshot;
    let options = PullOptions {
        proof,
        ..PullOptions::default()
    };
    let error = error_of(replica.pull(history, want, &options, &Silent));
    assert!(replica.held().is_none(), "no version is claimed");
    (replica, error)
}

#[test]
fn words_that_do_not_read_back_make_the_replica_unusable_until_they_are_written_again() {
    let history = History::example();
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    let path = folder.path().join("sub/model-2.safetensors");
    let old = history.versions[0].files["sub/model-2.safetensors"]
        .0
        .clone();
    let meddle = move || fs::write(&path, &old).unwrap();
    let (mut replica, error) = pull_and_meddle(folder.path(), &history, Proof::Touched, meddle);
    let ClientError::Unusable { what, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(what.len(), 2, "{what:?}");
    assert!(
        what[0].contains("mlp.qweight") && what[1].contains("steps"),
        "{what:?}"
    );
    let want = &history.versions[1].snapshot;
    replica
        .pull(&history, want, &PullOptions::default(), &Silent)
        .unwrap();
    assert_holds(folder.path(), &history.versions[1]);
}

#[test]
fn a_full_proof_sees_what_happened_beside_the_patch() {
    let history = History::example();
    let folder = tempdir().unwrap();
    pull(folder.path(), &history, 0).unwrap();
    let path = folder.path().join("sub/model-2.safetensors");
    let last = fs::metadata(&path).unwrap().len() as usize - 1;
    let meddle = move || flip(&path, last);
    let (replica, error) = pull_and_meddle(folder.path(), &history, Proof::Full, meddle);
    assert!(error.to_string().contains("tensor frozen"), "{error}");
    assert!(matches!(error, ClientError::Unusable { .. }), "{error}");
    drop(replica);
    let what = modified(error_of(pull(folder.path(), &history, 1)));
    assert!(what[0].contains("frozen"), "{what:?}");
    pull_with(folder.path(), &history, 1, &repair()).unwrap();
    assert_holds(folder.path(), &history.versions[1]);
}

/// The state is only as good as the objects beside it.
#[test]
fn damaged_records_are_named() {
    let history = History::example();
    for name in ["state.json", "commit", "tree", "schema"] {
        let folder = tempdir().unwrap();
        pull(folder.path(), &history, 0).unwrap();
        let path = folder.path().join(".deltaic").join(name);
        flip(&path, 0);
        let error = error_of(ReplicaFolder::open(folder.path(), &Silent));
        assert!(
            matches!(&error, ClientError::Corrupt { object, .. } if object.ends_with(name)),
            "{error}"
        );
        fs::remove_file(&path).unwrap();
        assert!(ReplicaFolder::open(folder.path(), &Silent).is_err());
    }
}
