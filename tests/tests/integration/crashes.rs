//! `kill -9` in the middle of commits and pulls. What this prevents: a store that no longer opens, a version that is half
//! there, a replica that is neither the old version nor the new one.
//!
//! Kills at points of time are spread over the work; kills at *observed* points come when the folder shows that the
//! command is there, and each of these points must be hit.

use crate::{each_way, scratch_store};
use deltaic_format::Dtype;
use deltaic_tests::checkpoints::{NamedTensor, write_folder};
use deltaic_tests::program::watch;
use deltaic_tests::stores::{ScratchStore, assert_same_files};
use deltaic_tests::weights::Stream;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Kills by the clock, spread over the time that a command takes.
const TIMED: u32 = 8;

/// A point is tried no more often than this: a command may pass it while the one that kills does not run.
const TRIES: u64 = 20;

const TENSORS: u64 = 24;
const TENSOR_LEN: usize = 400_000;

fn spawn(mut command: Command) -> Child {
    (command.stdout(Stdio::null()).stderr(Stdio::null()))
        .spawn()
        .expect("the program starts")
}

/// Kill it; says whether that ended it, and not its own end.
fn kill(mut child: Child) -> bool {
    child.kill().expect("it can be killed");
    child.wait().expect("it has ended").signal() == Some(9)
}

/// Run `command` and kill it once `after` has passed; says whether that was before its end.
fn kill_after(command: Command, after: Duration) -> bool {
    let child = spawn(command);
    // Nothing is ever sent: this waits.
    let (_sender, receiver) = mpsc::channel::<()>();
    let _ = receiver.recv_timeout(after);
    kill(child)
}

/// Run `command` and kill it once `seen`; says whether that ended it at a point that can still be seen.
fn kill_when(command: Command, seen: impl Fn() -> bool) -> bool {
    let mut child = spawn(command);
    let reached = watch(&mut child, &seen);
    kill(child) && reached && seen()
}

/// The moment of the kill number `kill` of [`TIMED`] in a command that takes `takes`: neither its begin nor its end.
fn moment(takes: Duration, kill: u32) -> Duration {
    takes * (kill + 1) / (TIMED + 1)
}

/// The shorter of two runs' times, so that kills come within the work of a run on a machine that is less busy.
fn shorter(mut run: impl FnMut(u32)) -> Duration {
    let time = |number| {
        let begun = Instant::now();
        run(number);
        begun.elapsed()
    };
    [0, 1].map(time).into_iter().min().expect("two runs")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("scratch paths are UTF-8")
}

/// Files of `folder` with their lengths; none if it is not there. Files that go away meanwhile are left out.
fn files(folder: &Path) -> BTreeMap<PathBuf, u64> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?.len())))
        .collect()
}

fn tensors() -> Vec<NamedTensor> {
    (0..TENSORS)
        .map(|i| {
            let content = Stream::new(i).bytes(TENSOR_LEN, 0x3fff_3fff_3fff_3fff);
            NamedTensor::flat(&format!("layers.{i:02}.weight"), Dtype::BF16, content)
        })
        .collect()
}

/// Contents that no version had before: every tensor changes somewhere, which makes edges, and some are new, which makes
/// bases.
fn commit_work(folder: &Path, number: u64) {
    let mut changed = tensors();
    for byte in (changed.iter_mut()).flat_map(|t| t.content.iter_mut().step_by(90)) {
        *byte ^= 1 + number as u8;
    }
    let new = (0..8)
        .map(|i| {
            let content = Stream::new(1000 * (number + 1) + i).bytes(1 << 20, u64::MAX);
            NamedTensor::flat(&format!("adapter.{number}.{i}"), Dtype::BF16, content)
        })
        .collect();
    write_folder(
        folder,
        &[
            ("model.safetensors", changed),
            ("adapter/model.safetensors", new),
        ],
    )
    .unwrap();
}

/// A store with a first version, and commits to be killed.
struct Commits {
    store: ScratchStore,
    next: PathBuf,
    number: u64,
}

impl Commits {
    fn new() -> Self {
        let store = scratch_store();
        let next = store.path("next");
        let mut commits = Self {
            store,
            next,
            number: 0,
        };
        commits.prepare();
        commits.store.commit("run", &commits.next);
        commits
    }

    /// Make the next version's files.
    fn prepare(&mut self) {
        commit_work(&self.next, self.number);
        self.number += 1;
    }

    fn newest(&self) -> u64 {
        let log = self.store.json(&["log", "run", "-n", "1"]);
        log["commits"][0]["version"].as_u64().expect("a version")
    }

    /// Kill a commit with `kill`, then see that the version is there whole or not at all. Says whether the kill came
    /// before the ref moved.
    fn killed(&mut self, kill: impl FnOnce(Command) -> bool) -> bool {
        self.prepare();
        let before = self.newest();
        let killed = kill(self.store.command(&["commit", "run", text(&self.next)]));
        let after = self.newest();
        assert!(after == before || after == before + 1);
        if after == before {
            self.store.commit("run", &self.next);
        }
        let out = self.store.place(&format!("out{}", self.number));
        self.store.json(&["export", "run", "-o", &out]);
        assert_same_files(out.as_ref(), &self.next);
        fs::remove_dir_all(out).unwrap();
        killed && after == before
    }
}

#[test]
fn a_commit_killed_at_any_time_is_there_whole_or_not_at_all() {
    let mut commits = Commits::new();
    let takes = shorter(|_| {
        commits.prepare();
        commits.store.commit("run", &commits.next);
    });
    let killed = (0..TIMED)
        .filter(|&kill| commits.killed(|command| kill_after(command, moment(takes, kill))))
        .count() as u32;
    assert!(killed >= TIMED / 4, "{killed} of {TIMED} were killed");
    commits.store.verify();
}

#[test]
fn a_commit_killed_at_each_point_of_its_work_is_there_whole_or_not_at_all() {
    let mut commits = Commits::new();
    let root = commits.store.path("store");
    let folder = |name: &str| files(&root.join(name));
    let logs = || -> BTreeMap<PathBuf, u64> {
        let mut logs = folder("db");
        logs.retain(|path, _| path.extension().is_some_and(|e| e == "log"));
        logs
    };
    // What the store's folder shows, against how it was before the commit.
    type Point<'a> = (&'a str, Box<dyn Fn(&Before) -> bool + 'a>);
    struct Before {
        packs: usize,
        logs: BTreeMap<PathBuf, u64>,
    }
    let points: [Point<'_>; 3] = [
        (
            "a pack is half written",
            Box::new(|_| folder("tmp").values().any(|&len| len > 0)),
        ),
        (
            "edges are in the log, the ref has not moved",
            Box::new(|before| {
                let grown = |(path, len): (PathBuf, u64)| {
                    len.saturating_sub(before.logs.get(&path).copied().unwrap_or(0))
                };
                logs().into_iter().map(grown).sum::<u64>() > 4096
            }),
        ),
        (
            "a pack is durable, the ref has not moved",
            Box::new(|before| folder("packs").len() > before.packs),
        ),
    ];
    for (point, seen) in &points {
        let hit = (0..TRIES).any(|_| {
            let before = Before {
                packs: folder("packs").len(),
                logs: logs(),
            };
            commits.killed(|command| kill_when(command, || seen(&before)))
        });
        assert!(hit, "no commit was killed when {point}");
    }
    commits.store.verify();
}

/// Four versions, every tensor of each changed all over, its first byte too.
fn pulled_versions(store: &ScratchStore) -> Vec<PathBuf> {
    let mut tensors = tensors();
    (0..4u8)
        .map(|version| {
            for byte in (tensors.iter_mut()).flat_map(|t| t.content.iter_mut().step_by(100)) {
                *byte = byte.wrapping_add(version);
            }
            let folder = store.path(&format!("v{version}"));
            write_folder(&folder, &[("model.safetensors", tensors.clone())]).unwrap();
            store.commit("run", &folder);
            folder
        })
        .collect()
}

/// The first byte of every tensor of a checkpoint folder; `None` while it has no weights.
fn first_bytes(folder: &Path) -> Option<Vec<u8>> {
    let file = File::open(folder.join("model.safetensors")).ok()?;
    let mut prefix = [0; 8];
    file.read_exact_at(&mut prefix, 0).ok()?;
    let data = 8 + u64::from_le_bytes(prefix);
    (0..TENSORS)
        .map(|tensor| {
            let mut byte = [0];
            let offset = data + tensor * TENSOR_LEN as u64;
            file.read_exact_at(&mut byte, offset).ok()?;
            Some(byte[0])
        })
        .collect()
}

/// The next pull, of whatever version, ends right.
fn ends_right(store: &ScratchStore, folder: &str, version: usize, versions: &[PathBuf]) {
    let revision = format!("run@v{version}");
    store.json(&["pull", &revision, "-o", folder, "--proof", "full"]);
    assert_same_files(folder.as_ref(), &versions[version]);
}

#[test]
fn a_pull_killed_at_any_time_ends_right_with_the_next_one() {
    each_way(|store| {
        let versions = pulled_versions(store);
        let replica = store.place("replica");
        let first = shorter(|run| {
            drop(store.json(&["pull", "run@v3", "-o", &store.place(&format!("first{run}"))]))
        });
        store.json(&["pull", "run@v0", "-o", &replica]);
        let takes = shorter(|run| {
            drop(store.json(&["pull", &format!("run@v{}", 3 - 3 * run), "-o", &replica]))
        });
        let mut killed = 0;
        for kill in 0..TIMED {
            // A replica on its way to another version,
            store.json(&["pull", "run@v3", "-o", &replica]);
            let target = kill as usize % 3;
            let command = store.command(&["pull", &format!("run@v{target}"), "-o", &replica]);
            killed += u32::from(kill_after(command, moment(takes, kill)));
            // and one that has never been there.
            let fresh = store.place(&format!("fresh{kill}"));
            let command = store.command(&["pull", "run@v1", "-o", &fresh]);
            killed += u32::from(kill_after(command, moment(first, kill)));
            for folder in [&replica, &fresh] {
                ends_right(store, folder, (kill as usize + 1) % 4, &versions);
            }
        }
        assert!(killed >= TIMED / 2, "{killed} of {} were killed", 2 * TIMED);
    });
}

#[test]
fn a_pull_killed_at_each_point_of_its_work_ends_right_with_the_next_one() {
    each_way(|store| {
        let versions = pulled_versions(store);
        let replica = store.path("replica");
        let old = first_bytes(&versions[0]).expect("a version has weights");
        let journal = |folder: &Path| folder.join(".deltaic/journal").is_file();
        let staged = |folder: &Path| {
            let staged = files(&folder.join(".deltaic/staged"));
            staged.values().any(|&len| len > 0)
        };
        // What the replica's folder shows, and whether the pull is its first one.
        type Point<'a> = (&'a str, bool, Box<dyn Fn(&Path) -> bool + 'a>);
        let points: [Point<'_>; 4] = [
            (
                "files are being staged",
                true,
                Box::new(|folder| staged(folder)),
            ),
            (
                "staged files move into place",
                true,
                Box::new(|folder| journal(folder) && folder.join("model.safetensors").is_file()),
            ),
            (
                "the journal is being written",
                false,
                Box::new(|folder| journal(folder) && first_bytes(folder).as_ref() == Some(&old)),
            ),
            (
                "words are written in place",
                false,
                Box::new(|folder| {
                    journal(folder) && first_bytes(folder).is_some_and(|bytes| bytes != old)
                }),
            ),
        ];
        for (point, first, seen) in &points {
            let hit = (0..TRIES).any(|attempt| {
                let folder = if *first {
                    store.path(&format!("{point} {attempt}"))
                } else {
                    store.json(&["pull", "run@v0", "-o", text(&replica)]);
                    replica.clone()
                };
                let command = store.command(&["pull", "run@v3", "-o", text(&folder)]);
                let killed = kill_when(command, || seen(&folder));
                ends_right(store, text(&folder), attempt as usize % 4, &versions);
                killed
            });
            assert!(hit, "no pull was killed when {point}");
        }
    });
}
