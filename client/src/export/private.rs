//! The private folder that an export stages its files in: `OUT/.deltaic/export-PROCESS-NUMBER`, locked as long as the
//! export runs, so that what dead ones left can be told from what others are still writing.

use crate::disk::{INTERNAL, create_folders, create_new, is_folder, open_if_there};
use crate::error::{At, ClientError, Result};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const PREFIX: &str = "export-";
const LOCK: &str = "lock";

/// A private folder; dropping it deletes it, and what was made around it and is empty.
#[derive(Debug)]
pub(super) struct PrivateFolder {
    path: PathBuf,
    /// Folders that were made for it, outermost first.
    made: Vec<PathBuf>,
    _lock: File,
}

impl PrivateFolder {
    /// Make one in `out`, and `out` itself if it is missing; delete those that no export uses any more.
    pub(super) fn create(out: &Path) -> Result<Self> {
        /// Others can take the folder away between two steps only when they end; so many never end at once.
        const ATTEMPTS: usize = 100;
        let internal = out.join(INTERNAL);
        let mut made = Vec::new();
        for _ in 0..ATTEMPTS {
            made.extend(create_folders(out)?);
            if !is_folder(&internal)? {
                made.extend(create_folders(&internal)?);
            }
            sweep(&internal)?;
            if let Some((path, lock)) = try_create(&internal)? {
                return Ok(Self {
                    path,
                    made,
                    _lock: lock,
                });
            }
        }
        Err(ClientError::Locked {
            path: out.to_owned(),
            holder: "other exports".into(),
        })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        // What cannot be deleted now is swept by the next export.
        let _ = fs::remove_dir_all(&self.path);
        if let Some(internal) = self.path.parent() {
            let _ = fs::remove_dir(internal);
        }
        for folder in self.made.iter().rev() {
            // Only empty ones go: after success none but `.deltaic` is.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Make and lock a folder in `internal`; `None` if another export took it for a dead one's before it was locked.
fn try_create(internal: &Path) -> Result<Option<(PathBuf, File)>> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = internal.join(format!("{PREFIX}{}-{number}", std::process::id()));
    match fs::create_dir(&path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) => {
            return Ok(None);
        }
        created => created.at(&path)?,
    }
    let lock = path.join(LOCK);
    let file = match create_new(&lock) {
        Err(ClientError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
            return Ok(None);
        }
        file => file?,
    };
    let held = file.try_lock().is_ok() && is_at(&file, &lock);
    Ok(held.then_some((path, file)))
}

/// Whether `file` is what is at `path` now.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let (file, there) = (file.metadata(), fs::symlink_metadata(path));
    file.is_ok_and(|file| there.is_ok_and(|there| identity(file) == identity(there)))
}

/// Delete what exports in `internal` left that ended without cleaning up.
fn sweep(internal: &Path) -> Result<()> {
    let entries = match fs::read_dir(internal) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.at(internal)?,
    };
    for entry in entries {
        let entry = entry.at(internal)?;
        let path = entry.path();
        let named = (entry.file_name().as_encoded_bytes()).starts_with(PREFIX.as_bytes());
        if !named || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        match open_if_there(&path.join(LOCK), true)? {
            Some(lock) if lock.try_lock().is_ok() => {
                // Whoever else deletes it at the same time wants the same.
                let _ = fs::remove_dir_all(&path);
            }
            Some(_) => {}
            // Either just made, and then its maker tries again, or left before it was locked.
            None => drop(fs::remove_dir(&path)),
        }
    }
    Ok(())
}
