//! A full disk. What this prevents: success reported, or something half-visible, when there was no room.

use crate::scratch_store;
use deltaic_format::Dtype;
use deltaic_tests::checkpoints::{NamedTensor, skipped, write_folder};
use deltaic_tests::stores::assert_same_files;
use deltaic_tests::weights::Stream;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small file system in memory, unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None` where this user may not mount.
    fn mount(path: PathBuf, size: &str) -> Option<Self> {
        std::fs::create_dir_all(&path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(&path)
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then_some(Self(path))
    }

    /// Leave no room but for `spare` bytes; returns the file that takes it.
    fn fill(&self, spare: u64) -> PathBuf {
        let filler = self.0.join("filler");
        let free = rustix::fs::statvfs(&self.0).unwrap();
        let bytes = (free.f_bavail * free.f_frsize).saturating_sub(spare);
        std::fs::write(&filler, vec![0; bytes as usize]).unwrap();
        filler
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

fn version(folder: &Path, seed: u64, every: usize) -> PathBuf {
    let mut content = Stream::new(1).bytes(12 << 20, u64::MAX);
    content
        .iter_mut()
        .step_by(every)
        .for_each(|b| *b = b.wrapping_add(seed as u8));
    let folder = folder.join(format!("v{seed}"));
    let tensors = vec![NamedTensor::flat("weight", Dtype::BF16, content)];
    write_folder(&folder, &[("model.safetensors", tensors)]).unwrap();
    folder
}

#[test]
fn no_space_is_an_error_and_with_room_everything_works_again() {
    let scratch = scratch_store();
    let Some(disk) = SmallDisk::mount(scratch.path("disk"), "96m") else {
        skipped(
            "the full disk",
            "this user may not mount a small file system",
        );
        return;
    };
    let store = disk.0.join("store").to_str().expect("UTF-8").to_owned();
    let run = |args: &[&str]| scratch.command_on(&store, args).output().unwrap();
    let text = |output: &std::process::Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(run(&["init"]).status.success());
    let [first, second] =
        [(1, 1000), (2, 7)].map(|(seed, every)| version(&scratch.path(""), seed, every));
    let commit = |folder: &Path| run(&["commit", "run", folder.to_str().expect("UTF-8")]);
    assert!(commit(&first).status.success());
    for spare in [0, 64 << 10, 1 << 20] {
        let filler = disk.fill(spare);
        let refused = commit(&second);
        assert_eq!(
            refused.status.code(),
            Some(15),
            "{spare}: {}",
            text(&refused)
        );
        assert!(text(&refused).contains("no space"), "{}", text(&refused));
        std::fs::remove_file(filler).unwrap();
        let log = run(&["log", "run"]);
        assert!(
            log.status.success() && !text(&log).contains("\"version\": 1"),
            "{}",
            text(&log)
        );
    }
    let replica = disk.0.join("replica").to_str().expect("UTF-8").to_owned();
    let filler = disk.fill(2 << 20);
    let refused = run(&["pull", "run@v0", "-o", &replica]);
    assert_eq!(refused.status.code(), Some(15), "{}", text(&refused));
    std::fs::remove_file(filler).unwrap();
    for (folder, revision) in [(&first, "run@v0"), (&second, "run@v1")] {
        if revision == "run@v1" {
            let committed = commit(&second);
            assert!(committed.status.success(), "{}", text(&committed));
        }
        let pulled = run(&["pull", revision, "-o", &replica]);
        assert!(pulled.status.success(), "{}", text(&pulled));
        assert_same_files(replica.as_ref(), folder);
    }
    let verified = run(&["verify", "--read-data"]);
    assert!(verified.status.success(), "{}", text(&verified));
}
