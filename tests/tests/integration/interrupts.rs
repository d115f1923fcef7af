//! Ctrl-C, and readers that go away. What this prevents: a command that cannot be stopped, or that fails, or leaves
//! something half done, because nobody waits for its answer any more.

use crate::{each_way, scratch_store};
use deltaic_format::Dtype;
use deltaic_tests::checkpoints::{NamedTensor, write_folder};
use deltaic_tests::program::watch;
use deltaic_tests::stores::{Access, ScratchStore, assert_same_files};
use deltaic_tests::weights::Stream;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const INTERRUPTED: i32 = 130;

/// A command may end before it sees the signal: it is then tried again.
const TRIES: u64 = 20;

/// A checkpoint of 24 MB that no other has tensors of.
fn checkpoint(store: &ScratchStore, seed: u64) -> PathBuf {
    let tensors = (0..24).map(|i| {
        let content = Stream::new(100 * seed + i).bytes(1 << 20, u64::MAX);
        NamedTensor::flat(&format!("layers.{i}.weight"), Dtype::BF16, content)
    });
    let folder = store.path(&format!("v{seed}"));
    write_folder(&folder, &[("model.safetensors", tensors.collect())]).unwrap();
    folder
}

fn text(path: &Path) -> &str {
    path.to_str().expect("scratch paths are UTF-8")
}

fn any_bytes(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut lengths = entries.filter_map(|entry| Some(entry.metadata().ok()?.len()));
    lengths.any(|len| len > 0)
}

/// Run `command` and send it SIGINT once `seen`; what it printed if it was stopped by that.
fn interrupted(mut command: Command, seen: impl FnMut() -> bool) -> Option<Output> {
    let mut child = (command.stdout(Stdio::piped()).stderr(Stdio::piped()))
        .spawn()
        .unwrap();
    if watch(&mut child, seen) {
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    match output.status.code() {
        Some(0) => None,
        code => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(code, Some(INTERRUPTED), "{said}");
            Some(output)
        }
    }
}

#[test]
fn a_commit_stops_and_leaves_nothing_behind() {
    each_way(|store| {
        store.commit("run", &checkpoint(store, 0));
        let stopped = (1..TRIES).find_map(|seed| {
            let next = checkpoint(store, seed);
            let before = store.json(&["log", "run"]);
            let command = store.command(&["commit", "run", text(&next)]);
            let output = interrupted(command, || any_bytes(&store.path("store/tmp")))?;
            if store.access() == Access::Folder {
                assert_eq!(store.json(&["log", "run"]), before, "nothing was committed");
            }
            Some((next, before, output))
        });
        let (next, before, output) = stopped.expect("a commit was stopped");
        let error: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(error["error"]["kind"], "interrupted", "{error}");
        store.verify();
        // A server that had everything goes on without its client, and the same command then finds the version.
        store.json(&["commit", "run", text(&next)]);
        let count = |log: &Value| log["commits"].as_array().map_or(0, Vec::len);
        assert_eq!(count(&store.json(&["log", "run"])), count(&before) + 1);
        let out = store.place("out");
        store.json(&["export", "run", "-o", &out]);
        assert_same_files(out.as_ref(), &next);
        store.verify();
    });
}

#[test]
fn a_pull_stops_and_leaves_the_old_version() {
    each_way(|store| {
        let versions = [0, 1].map(|seed| checkpoint(store, seed));
        versions
            .iter()
            .for_each(|version| drop(store.commit("run", version)));
        let replica = store.path("replica");
        let stopped = (0..TRIES).any(|_| {
            store.json(&["pull", "run@v0", "-o", text(&replica)]);
            let command = store.command(&["pull", "run@v1", "-o", text(&replica)]);
            let journal = || replica.join(".deltaic/journal").is_file();
            let stopped = interrupted(command, journal).is_some();
            assert_same_files(&replica, &versions[usize::from(!stopped)]);
            stopped
        });
        assert!(stopped, "a pull was stopped");
        store.json(&["pull", "run@v1", "-o", text(&replica)]);
        assert_same_files(&replica, &versions[1]);
    });
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let store = scratch_store();
    let folder = checkpoint(&store, 0);
    store.commit("run", &folder);
    let place = store.place("store");
    for args in [
        vec!["log", "run"],
        vec!["show", "run", "--json"],
        vec!["man"],
        vec!["completions", "bash"],
        vec!["--help"],
        vec!["commit", "run", text(&folder)],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = store
            .bare_command(&["--store", &place, "--progress", "none"])
            .args(&args)
            .stdout(writer)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*said), (Some(0), ""), "{args:?}");
    }
    let log = store.json(&["log", "run"]);
    assert_eq!(log["commits"][0]["version"], 1, "the commit was made");
}
