//! Checkpoints on disk: what belongs to them, and what is refused.

use super::error_of;
use super::model::{TestFile, tensor};
use crate::{Checkpoint, ClientError};
use deltaic_format::object::FileMode;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use tempfile::{TempDir, tempdir};

fn weights() -> Vec<u8> {
    let file = TestFile {
        path: "",
        metadata: "",
        tensors: vec![
            tensor("a", "BF16", &[2, 2], (0..8).collect()),
            tensor("b", "U8", &[3], vec![7, 8, 9]),
        ],
    };
    file.bytes()
}

fn write(root: &Path, path: &str, bytes: impl AsRef<[u8]>) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// A folder with one weight file.
fn folder() -> TempDir {
    let folder = tempdir().unwrap();
    write(folder.path(), "model.safetensors", weights());
    folder
}

#[track_caller]
fn refused(root: &Path, expected: &str) {
    let error = error_of(Checkpoint::open(root)).to_string();
    assert!(
        error.contains(expected),
        "{error:?} does not say {expected:?}"
    );
}

#[test]
fn a_folder_is_read_with_all_its_files() {
    let folder = folder();
    let root = folder.path();
    write(root, "b/run.sh", "#!");
    fs::set_permissions(root.join("b/run.sh"), PermissionsExt::from_mode(0o755)).unwrap();
    write(root, "a.json", "{}");
    write(root, "deep/er/part.safetensors", weights());
    for skipped in [
        ".git/config",
        ".deltaic/x",
        ".cache/huggingface/x",
        "b/.git/x",
    ] {
        write(root, skipped, "not mine");
    }
    let checkpoint = Checkpoint::open(root).unwrap();
    let paths = checkpoint.schema().files.iter().map(|f| f.path.as_str());
    assert_eq!(
        paths.collect::<Vec<_>>(),
        ["deep/er/part.safetensors", "model.safetensors"]
    );
    let files = checkpoint
        .files()
        .iter()
        .map(|f| (f.path.as_str(), f.mode, f.size));
    assert_eq!(
        files.collect::<Vec<_>>(),
        [
            ("a.json", FileMode::Plain, 2),
            ("b/run.sh", FileMode::Executable, 2)
        ]
    );
    let mut out = [0; 4];
    checkpoint.read_data(1, 6, &mut out).unwrap();
    assert_eq!(out, [6, 7, 7, 8]);
    checkpoint.read_file(1, 0, &mut out[..2]).unwrap();
    assert_eq!(&out[..2], b"#!");
    assert_eq!(checkpoint.header(0)[0], b'{');
    assert_eq!(checkpoint.total_bytes(), 2 * weights().len() as u64 + 4);
    checkpoint.check_unchanged().unwrap();
}

#[test]
fn a_single_file_is_a_tree_of_one() {
    let folder = folder();
    let checkpoint = Checkpoint::open(folder.path().join("model.safetensors")).unwrap();
    assert_eq!(
        checkpoint.schema().files[0].path.as_str(),
        "model.safetensors"
    );
    assert!(checkpoint.files().is_empty());
}

#[test]
fn a_snapshot_in_a_hugging_face_cache_is_read_through_its_symlinks() {
    let cache = tempdir().unwrap();
    let repo = cache.path().join("hub/models--acme--policy");
    write(&repo, "blobs/1234", weights());
    write(&repo, "blobs/5678", "{}");
    let snapshot = repo.join("snapshots/abc");
    fs::create_dir_all(snapshot.join("sub")).unwrap();
    symlink("../../blobs/1234", snapshot.join("model.safetensors")).unwrap();
    symlink("../../../blobs/5678", snapshot.join("sub/config.json")).unwrap();
    let checkpoint = Checkpoint::open(&snapshot).unwrap();
    assert_eq!(checkpoint.schema().tensor_count(), 2);
    assert_eq!(checkpoint.files()[0].path.as_str(), "sub/config.json");
    // A single file of it, too.
    Checkpoint::open(snapshot.join("model.safetensors")).unwrap();
    // Another repository of the cache is out of bounds.
    write(cache.path(), "hub/models--other/blobs/1", "secret");
    symlink("../../../models--other/blobs/1", snapshot.join("x")).unwrap();
    refused(&snapshot, "leaves the folder");
}

#[test]
fn symlinks_stay_within_the_folder() {
    let outside = tempdir().unwrap();
    write(outside.path(), "secret", "secret");
    let folder = folder();
    let root = folder.path();
    symlink("model.safetensors", root.join("alias.safetensors")).unwrap();
    assert_eq!(Checkpoint::open(root).unwrap().schema().files.len(), 2);
    for (target, expected) in [
        (outside.path().join("secret"), "leaves the folder"),
        (outside.path().to_owned(), "leaves the folder"),
        (root.join("sub"), "a symlink to a folder"),
        (root.join("nowhere"), "leads nowhere"),
        (root.join("link"), "leads nowhere"),
    ] {
        fs::create_dir_all(root.join("sub")).unwrap();
        symlink(target, root.join("link")).unwrap();
        refused(root, expected);
        refused(root, "link");
        fs::remove_file(root.join("link")).unwrap();
    }
}

#[test]
fn what_is_no_file_and_no_tree_path_is_refused() {
    let folder = folder();
    let socket = folder.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    refused(folder.path(), "neither a file nor a folder");
    drop(listener);
    fs::remove_file(&socket).unwrap();
    let name = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff.txt");
    fs::write(folder.path().join(name), "").unwrap();
    refused(folder.path(), "not UTF-8");
    fs::remove_file(folder.path().join(name)).unwrap();
    write(folder.path(), "a\\b", "");
    refused(folder.path(), "backslash");
}

#[test]
fn where_no_weights_are_there_is_no_checkpoint() {
    let folder = tempdir().unwrap();
    write(folder.path(), "pytorch_model.bin", "");
    for path in [
        folder.path().to_owned(),
        folder.path().join("missing"),
        folder.path().join("pytorch_model.bin"),
    ] {
        let error = error_of(Checkpoint::open(path));
        assert!(matches!(error, ClientError::NoCheckpoint { .. }), "{error}");
    }
    refused(folder.path(), "*.safetensors");
}

#[test]
fn malformed_weight_files_are_named() {
    let good = weights();
    for (bytes, expected) in [
        (vec![], "0 bytes are too few"),
        (good[..20].to_vec(), "ends within its header"),
        (good[..good.len() - 1].to_vec(), "truncated"),
        ([&good[..], b"x"].concat(), "too many after the last tensor"),
        ([&good[..9], b"x", &good[10..]].concat(), "not valid"),
    ] {
        let folder = tempdir().unwrap();
        write(folder.path(), "sub/bad.safetensors", bytes);
        refused(folder.path(), expected);
        refused(folder.path(), "sub/bad.safetensors: ");
    }
}

#[test]
fn an_index_must_fit_the_files() {
    let index = |folder: &TempDir, json: &str| {
        write(folder.path(), "sub/model.safetensors.index.json", json);
        write(folder.path(), "sub/part.safetensors", weights());
    };
    let folder = folder();
    index(
        &folder,
        r#"{"metadata": {"total_size": 11}, "weight_map": {"a": "part.safetensors"}}"#,
    );
    Checkpoint::open(folder.path()).unwrap();
    for (json, expected) in [
        (
            r#"{"weight_map": {"a": "missing.safetensors"}}"#,
            r#"the file "missing.safetensors", which is missing"#,
        ),
        (
            r#"{"weight_map": {"a": "model.safetensors"}}"#,
            "which is missing",
        ),
        (
            r#"{"weight_map": {"c": "part.safetensors"}}"#,
            r#"the tensor "c" in "part.safetensors""#,
        ),
        ("{", "not a safetensors index"),
    ] {
        index(&folder, json);
        refused(folder.path(), expected);
        refused(folder.path(), "index.json");
    }
}

#[test]
fn files_that_change_while_they_are_read_are_errors() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let mut out = [0; 11];
    checkpoint.read_data(0, 0, &mut out).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(weights().len() as u64 - 1).unwrap();
    let error = error_of(checkpoint.read_data(0, 0, &mut out));
    assert!(
        error
            .to_string()
            .contains("model.safetensors shrank while it was read"),
        "{error}"
    );
    let error = error_of(checkpoint.check_unchanged());
    assert!(
        error.to_string().contains("changed since it was opened"),
        "{error}"
    );

    // Replaced before it was first read: noticed when it is opened.
    fs::write(&path, weights()).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    fs::rename(&path, folder.path().join("old")).unwrap();
    fs::write(&path, weights()).unwrap();
    let error = error_of(checkpoint.read_data(0, 0, &mut out));
    assert!(matches!(error, ClientError::Changed { .. }), "{error}");
}

/// What it prevents: `commit .` that takes the store it commits to.
#[test]
fn stores_in_a_checkpoint_are_left_out() {
    let folder = tempdir().unwrap();
    let trees = super::model::example_trees(10);
    let weights = trees[0].weights[0].bytes();
    fs::write(folder.path().join("model.safetensors"), &weights).unwrap();
    for (name, format) in [
        ("store", "deltaic store format 1\n"),
        ("other", "deltaic stor"),
    ] {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("FORMAT"), format).unwrap();
        fs::write(folder.path().join(name).join("x.safetensors"), &weights).unwrap();
    }
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let found = checkpoint.schema().files.iter().map(|f| f.path.as_str());
    assert_eq!(
        found.collect::<Vec<_>>(),
        ["model.safetensors", "other/x.safetensors"]
    );
    assert_eq!(checkpoint.files().len(), 1);
}
