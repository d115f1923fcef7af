//! How files looked, which tells what others do to them.
//!
//! A file that we wrote is *settled*: it gets a modification time in the past. Whatever is written to it later changes
//! that time, even on a file system whose clock is so coarse that two writes in a row have the same one. What the times
//! cannot show is a write by someone else while one of ours is under way, between the two looks around it.

use deltaic_format::name::TreePath;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

/// What tells that a file is as we left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct FileStat {
    /// Length in bytes.
    pub size: u64,
    /// Modification time, nanoseconds since 1970, UTC.
    pub mtime_ns: i64,
    /// Time of the last change of content, name or attributes, likewise. Nobody can set it, so it shows edits that put the
    /// modification time back.
    pub ctime_ns: i64,
    /// Inode number.
    pub inode: u64,
    /// Device that the inode is on.
    pub device: u64,
    /// Number of names that the file has.
    pub links: u64,
}

impl Default for FileStat {
    /// What no file looks like.
    fn default() -> Self {
        Self {
            size: 0,
            mtime_ns: i64::MIN,
            ctime_ns: i64::MIN,
            inode: u64::MAX,
            device: u64::MAX,
            links: u64::MAX,
        }
    }
}

impl FileStat {
    pub(super) fn of(metadata: &Metadata) -> Self {
        let ns = |seconds: i64, ns: i64| seconds.wrapping_mul(1_000_000_000).wrapping_add(ns);
        Self {
            size: metadata.len(),
            mtime_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
            ctime_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
            inode: metadata.ino(),
            device: metadata.dev(),
            links: metadata.nlink(),
        }
    }

    /// The longest that a stat can become in `state.json`.
    pub(super) fn longest() -> Self {
        Self {
            size: u64::MAX,
            ..Self::default()
        }
    }
}

/// The modification time of a file that is settled now: further back than the coarsest clock's tick (FAT: 2 s), so
/// that no later write has the same.
///
/// It keeps its nanoseconds, so that the times of two pulls differ and tools that go by size and time (rsync) copy
/// the file again. Where such a tool or the file system counts whole seconds only, two pulls within one look the
/// same to it, as two writes of any program do: times further apart would have to lie in the future.
pub(super) fn settled_time() -> SystemTime {
    SystemTime::now() - Duration::from_secs(2)
}

/// Watches the files that a commit writes for what others do to them meanwhile.
#[derive(Debug, Default)]
pub(super) struct Watch {
    files: BTreeMap<TreePath, Watched>,
}

#[derive(Debug)]
struct Watched {
    /// How it looked after our last write; `None` if that is not known.
    stat: Option<FileStat>,
    /// Whether others have written to it, or put another file in its place.
    meddled: bool,
}

impl Watch {
    /// Begin to watch a file that looks like `stat` if nobody has touched it, unless it is watched already.
    pub(super) fn begin(&mut self, path: &TreePath, stat: Option<FileStat>) {
        if !self.files.contains_key(path) {
            let meddled = false;
            self.files.insert(path.clone(), Watched { stat, meddled });
        }
    }

    /// Compare how a file looks now, before we write to it, with how we left it.
    pub(super) fn look(&mut self, path: &TreePath, now: Option<FileStat>) {
        if let Some(file) = self.files.get_mut(path) {
            file.meddled |= file.stat.is_some() && file.stat != now;
        }
    }

    /// Note how a file looks after we wrote to it.
    pub(super) fn wrote(&mut self, path: &TreePath, now: FileStat) {
        if let Some(file) = self.files.get_mut(path) {
            file.stat = Some(now);
        }
    }

    /// The files that are watched.
    pub(super) fn paths(&self) -> Vec<TreePath> {
        self.files.keys().cloned().collect()
    }

    /// Whether others have meddled with a file.
    pub(super) fn is_meddled(&self, path: &TreePath) -> bool {
        self.files.get(path).is_some_and(|file| file.meddled)
    }

    /// Every file with its stat, which is unknown where others meddled.
    pub(super) fn stats(&self) -> BTreeMap<TreePath, Option<FileStat>> {
        let stat = |file: &Watched| file.stat.filter(|_| !file.meddled);
        (self.files.iter())
            .map(|(path, file)| (path.clone(), stat(file)))
            .collect()
    }
}
