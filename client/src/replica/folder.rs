//! The folder on disk: paths that never leave it, its lock, and writes that are there wholly or not at all.

use crate::error::{At, ClientError, Result};
use deltaic_format::name::TreePath;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Where a replica keeps its own files.
pub(super) const INTERNAL: &str = ".deltaic";
const STAGED: &str = "staged";

/// What tells that a file is as we left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileStat {
    /// Length in bytes.
    pub size: u64,
    /// Modification time, nanoseconds since 1970, UTC.
    pub mtime_ns: i64,
    /// Inode number.
    pub inode: u64,
}

impl FileStat {
    fn of(metadata: &Metadata) -> Self {
        Self {
            size: metadata.len(),
            mtime_ns: metadata.mtime().wrapping_mul(1_000_000_000) + metadata.mtime_nsec(),
            inode: metadata.ino(),
        }
    }
}

/// A replica's folder, locked as long as this lives.
#[derive(Debug)]
pub(super) struct Folder {
    root: PathBuf,
    /// Holds the lock.
    _lock: File,
}

impl Folder {
    /// Make sure that `root` has a `.deltaic` and lock it. With `create` the folder may be missing or empty.
    pub(super) fn lock(root: &Path, create: bool) -> Result<Self> {
        let refuse = |what: &str| {
            Err(ClientError::NotAReplica {
                path: root.to_owned(),
                what: what.to_owned(),
            })
        };
        match fs::metadata(root) {
            Ok(metadata) if !metadata.is_dir() => return refuse("it is no folder; give a folder"),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).at(root),
            Ok(_) => {}
            Err(_) if !create => return refuse("there is no such folder"),
            Err(_) => {}
        }
        let internal = root.join(INTERNAL);
        match fs::symlink_metadata(&internal) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return refuse("its .deltaic is no folder; give an empty folder"),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).at(&internal),
            Err(_) if !create => return refuse("it has no .deltaic; pull a version into it"),
            Err(_) if has_files(root)? => return refuse(NOT_EMPTY),
            Err(_) => fs::create_dir_all(&internal).at(&internal)?,
        }
        let lock = take_lock(root, &internal.join("lock"))?;
        let root = root.to_owned();
        let folder = Self { root, _lock: lock };
        let staged = folder.internal(STAGED);
        fs::create_dir_all(&staged).at(&staged)?;
        Ok(folder)
    }

    /// The folder.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// A file of the replica's own.
    pub(super) fn internal(&self, name: &str) -> PathBuf {
        self.root.join(INTERNAL).join(name)
    }

    /// The staged file of number `number`.
    pub(super) fn staged(&self, number: usize) -> PathBuf {
        self.internal(STAGED).join(number.to_string())
    }

    /// Where the file `path` of the tree lies. No part of the way there may be a symlink or a file, so that
    /// nothing is ever read or written outside the folder.
    pub(super) fn locate(&self, path: &TreePath) -> Result<PathBuf> {
        let mut location = self.root.clone();
        let mut parts = path.as_str().split('/').peekable();
        while let Some(part) = parts.next() {
            location.push(part);
            if parts.peek().is_none() {
                break;
            }
            match fs::symlink_metadata(&location) {
                Ok(metadata) if metadata.is_dir() => {}
                Ok(_) => {
                    let what = format!(
                        "{} is in the way of {path}: it is no folder; move it away",
                        location.display()
                    );
                    return Err(ClientError::Invalid { what });
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error).at(&location),
            }
        }
        Ok(location)
    }

    /// Stat of the file `path` of the tree; `None` if there is no regular file, or a symlink on the way to it.
    pub(super) fn stat(&self, path: &TreePath) -> Option<FileStat> {
        let location = self.locate(path).ok()?;
        let metadata = fs::symlink_metadata(location).ok()?;
        metadata.is_file().then(|| FileStat::of(&metadata))
    }

    /// Open the file `path` of the tree, for writing too if `write`.
    pub(super) fn open(&self, path: &TreePath, write: bool) -> Result<(File, PathBuf)> {
        let location = self.locate(path)?;
        let file = OpenOptions::new()
            .read(true)
            .write(write)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
            .open(&location)
            .at(&location)?;
        Ok((file, location))
    }

    /// Give a file that was just written a time in the past, in a whole second, and return its stat: any later write
    /// then changes its time, however coarse the clock of the file system is.
    pub(super) fn settle(&self, path: &TreePath) -> Result<FileStat> {
        /// More than the tick of any kernel.
        const TICK: Duration = Duration::from_millis(20);
        let (file, location) = self.open(path, true)?;
        let past = (SystemTime::now() - TICK)
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let second = SystemTime::UNIX_EPOCH + Duration::from_secs(past.as_secs());
        file.set_modified(second).at(&location)?;
        Ok(FileStat::of(&file.metadata().at(&location)?))
    }

    /// Write a file of the replica's own so that a crash leaves the old or the new one; which of them is certain after
    /// [`sync`](Self::sync).
    pub(super) fn replace(&self, name: &str, content: &[u8]) -> Result<()> {
        let (path, new) = (self.internal(name), self.internal(&format!("{name}.new")));
        let mut file = File::create(&new).at(&new)?;
        file.write_all(content).at(&new)?;
        file.sync_all().at(&new)?;
        fs::rename(&new, &path).at(&path)
    }

    /// Make the names of the replica's own files durable.
    pub(super) fn sync(&self) -> Result<()> {
        sync_folder(&self.internal(""))
    }

    /// Read a file of the replica's own; `None` if there is none.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.internal(name);
        match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            read => read.at(&path).map(Some),
        }
    }

    /// Delete everything that is staged.
    pub(super) fn clear_staged(&self) -> Result<()> {
        let staged = self.internal(STAGED);
        fs::remove_dir_all(&staged).at(&staged)?;
        fs::create_dir(&staged).at(&staged)
    }

    /// Whether the folder holds anything but `.deltaic`.
    pub(super) fn has_files(&self) -> Result<bool> {
        has_files(&self.root)
    }

    /// Delete the folders on the way to `path` that are empty now.
    pub(super) fn remove_empty_parents(&self, path: &TreePath) {
        let mut within = Path::new(path.as_str()).parent();
        while let Some(parent) = within.filter(|p| !p.as_os_str().is_empty()) {
            // A folder that is not empty stays, which is what is wanted.
            if fs::remove_dir(self.root.join(parent)).is_err() {
                return;
            }
            within = parent.parent();
        }
    }
}

/// Why a folder with other things in it is refused.
pub(super) const NOT_EMPTY: &str = "it has no .deltaic/state.json; give an empty folder, and this one as --seed to reuse its files";

fn has_files(root: &Path) -> Result<bool> {
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        entries => entries.at(root)?,
    };
    for entry in entries {
        if entry.at(root)?.file_name() != OsStr::new(INTERNAL) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Take the exclusive lock, and note in its file who has it.
fn take_lock(root: &Path, path: &Path) -> Result<File> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .at(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let known = file.read_to_string(&mut holder).is_ok() && !holder.is_empty();
            return Err(ClientError::Locked {
                path: root.to_owned(),
                holder: if known {
                    holder
                } else {
                    "another process".into()
                },
            });
        }
        Err(TryLockError::Error(error)) => return Err(error).at(path),
    }
    file.set_len(0).at(path)?;
    write!(file, "process {}", std::process::id()).at(path)?;
    Ok(file)
}

/// Make the names in `folder` durable.
pub(super) fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|f| f.sync_all()).at(folder)
}
