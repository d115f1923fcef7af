//! `kill -9` in the middle of commits and pulls. What this prevents: a store that no longer opens, a version that is half
//! there, a replica that is neither the old version nor the new one.

use deltaic_format::Dtype;
use deltaic_tests::checkpoints::{NamedTensor, write_folder};
use deltaic_tests::stores::{ScratchStore, assert_same_files};
use deltaic_tests::weights::Stream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Kills spread over the time that the command takes.
const KILLS: u32 = 12;

/// Start `command` and kill it once `after` has passed; says whether it was killed before its end.
fn kill_after(mut command: Command, after: Duration) -> bool {
    let mut child = (command.stdout(Stdio::null()).stderr(Stdio::null()))
        .spawn()
        .expect("the program starts");
    // Nothing is ever sent: this waits.
    let (_sender, receiver) = mpsc::channel::<()>();
    let _ = receiver.recv_timeout(after);
    child.kill().expect("it can be killed");
    let status = child.wait().expect("it has ended");
    !status.success()
}

/// Two versions of some megabytes, with changes all over.
fn versions(store: &ScratchStore) -> Vec<PathBuf> {
    let tensors: Vec<NamedTensor> = (0..24)
        .map(|i| {
            let content = Stream::new(i).bytes(400_000, 0x3fff_3fff_3fff_3fff);
            NamedTensor::flat(&format!("layers.{i}.weight"), Dtype::BF16, content)
        })
        .collect();
    let mut versions = vec![tensors];
    for version in 1..=3u8 {
        let mut next = versions[usize::from(version) - 1].clone();
        for byte in next
            .iter_mut()
            .flat_map(|t| t.content.iter_mut().step_by(100))
        {
            *byte = byte.wrapping_add(version);
        }
        versions.push(next);
    }
    let write = |(number, tensors)| {
        let folder = store.path(&format!("v{number}"));
        write_folder(&folder, &[("model.safetensors", tensors)]).unwrap();
        folder
    };
    versions.into_iter().enumerate().map(write).collect()
}

fn text(path: &std::path::Path) -> &str {
    path.to_str().expect("scratch paths are UTF-8")
}

#[test]
fn a_killed_commit_is_there_whole_or_not_at_all() {
    let store = ScratchStore::new();
    let versions = versions(&store);
    store.commit("run", &versions[0]);
    let begun = Instant::now();
    store.commit("run", &versions[1]);
    let takes = begun.elapsed();
    let mut killed = 0;
    for kill in 0..KILLS {
        // Different contents each time, so that each commit has work to do.
        let folder = store.path("next");
        let tensors: Vec<NamedTensor> = (0..24)
            .map(|i| {
                let mut content = Stream::new(i).bytes(400_000, 0x3fff_3fff_3fff_3fff);
                content
                    .iter_mut()
                    .step_by(90 + kill as usize)
                    .for_each(|b| *b ^= 1);
                NamedTensor::flat(&format!("layers.{i}.weight"), Dtype::BF16, content)
            })
            .collect();
        write_folder(&folder, &[("model.safetensors", tensors)]).unwrap();
        let before = store.json(&["log", "run", "-n", "1"])["commits"][0]["version"].clone();
        let command = store.command(&["commit", "run", text(&folder)]);
        killed += u32::from(kill_after(command, takes * kill / KILLS));
        let after = store.json(&["log", "run", "-n", "1"])["commits"][0]["version"].clone();
        if after == before {
            store.commit("run", &folder);
        }
        let out = store.place(&format!("out{kill}"));
        store.json(&["export", "run", "-o", &out]);
        assert_same_files(out.as_ref(), &folder);
    }
    assert!(killed > 0, "no commit was killed before its end");
    store.verify();
}

#[test]
fn a_killed_pull_ends_right_with_the_next_one() {
    let store = ScratchStore::new();
    let versions = versions(&store);
    for version in &versions {
        store.commit("run", version);
    }
    let replica = store.place("replica");
    let begun = Instant::now();
    store.json(&["pull", "run@v0", "-o", &replica]);
    let first = begun.elapsed();
    let begun = Instant::now();
    store.json(&["pull", "run@v3", "-o", &replica]);
    let takes = begun.elapsed();
    let mut killed = 0;
    for kill in 0..KILLS {
        // A replica on its way to another version,
        let target = kill as usize % 3;
        let command = store.command(&["pull", &format!("run@v{target}"), "-o", &replica]);
        killed += u32::from(kill_after(command, takes * kill / KILLS));
        // and one that has never been there.
        let fresh = store.place(&format!("fresh{kill}"));
        let command = store.command(&["pull", "run@v1", "-o", &fresh]);
        killed += u32::from(kill_after(command, first * kill / KILLS));
        for folder in [&replica, &fresh] {
            let next = (kill as usize + 1) % 4;
            store.json(&[
                "pull",
                &format!("run@v{next}"),
                "-o",
                folder,
                "--proof",
                "full",
            ]);
            assert_same_files(folder.as_ref(), &versions[next]);
        }
        store.json(&["pull", "run@v3", "-o", &replica]);
    }
    assert!(killed > 0, "no pull was killed before its end");
}
