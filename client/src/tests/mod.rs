//! Tests against histories in memory, built from the formats alone.

#![allow(clippy::unwrap_used)]

mod checkpoint;
mod crash;
mod damage;
mod export;
mod hostile;
mod meddling;
mod model;
mod pull;
mod repository;
mod seeds;
mod spans;
mod trust;

use crate::replica::FaultPoint;
use crate::{ClientError, PullOptions, PullOutcome, ReplicaFolder, Result};
use deltaic_format::object::FileMode;
use deltaic_format::progress::Silent;
use model::{History, Version};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Path, bytes and mode of every file.
type Files = BTreeMap<String, (Vec<u8>, FileMode)>;

/// Every file in `folder`, `.deltaic` aside.
fn files_in(folder: &Path) -> Files {
    fn collect(root: &Path, within: &Path, files: &mut Files) {
        for entry in fs::read_dir(within).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap();
            if name == ".deltaic" {
                continue;
            }
            if path.is_dir() {
                collect(root, &path, files);
                continue;
            }
            let mode = match path.metadata().unwrap().permissions().mode() & 0o100 {
                0 => FileMode::Plain,
                _ => FileMode::Executable,
            };
            files.insert(name.to_owned(), (fs::read(&path).unwrap(), mode));
        }
    }
    let mut files = Files::new();
    collect(folder, folder, &mut files);
    files
}

/// Fail unless `folder` holds exactly the files of `version`; says which one differs, not how.
#[track_caller]
fn assert_holds(folder: &Path, version: &Version) {
    let found = files_in(folder);
    let names: Vec<_> = found.keys().collect();
    assert_eq!(names, version.files.keys().collect::<Vec<_>>());
    for (name, file) in &found {
        assert!(*file == version.files[name], "{name} differs");
    }
}

/// Open the replica at `folder` and pull version `version` of `history` with defaults.
fn pull(folder: &Path, history: &History, version: usize) -> Result<PullOutcome> {
    pull_with(folder, history, version, &PullOptions::default())
}

fn pull_with(
    folder: &Path,
    history: &History,
    version: usize,
    options: &PullOptions,
) -> Result<PullOutcome> {
    let mut replica = ReplicaFolder::open_or_create(folder, &Silent)?;
    let want = &history.versions[version].snapshot;
    replica.pull(history, want, options, &Silent)
}

fn repair() -> PullOptions {
    PullOptions {
        repair: true,
        ..PullOptions::default()
    }
}

/// Make what is in the files pass as what the last pull left, as silent damage by a failing disk does: no time of theirs
/// changes then.
fn pass_as_ours(folder: &Path) {
    use std::os::unix::fs::MetadataExt;
    let path = folder.join(".deltaic/state.json");
    let mut state: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for line in state["files"].as_array_mut().unwrap() {
        let metadata = fs::metadata(folder.join(line["path"].as_str().unwrap())).unwrap();
        let ns = |seconds: i64, ns: i64| serde_json::Value::from(seconds * 1_000_000_000 + ns);
        let stat = &mut line["stat"];
        assert!(stat["mtime_ns"].is_i64() && stat["ctime_ns"].is_i64());
        stat["mtime_ns"] = ns(metadata.mtime(), metadata.mtime_nsec());
        stat["ctime_ns"] = ns(metadata.ctime(), metadata.ctime_nsec());
    }
    fs::write(&path, serde_json::to_vec(&state).unwrap()).unwrap();
}

/// The error of a result, whose value has no debug form.
#[track_caller]
fn error_of<T>(result: Result<T>) -> ClientError {
    match result {
        Ok(_) => panic!("an error was expected"),
        Err(error) => error,
    }
}

/// A fault at step `at`, counted from 0.
fn fault_at(at: usize) -> FaultPoint {
    let steps = std::sync::atomic::AtomicUsize::new(0);
    Box::new(
        move |_| match steps.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            step if step >= at => Err(ClientError::Interrupted),
            _ => Ok(()),
        },
    )
}
