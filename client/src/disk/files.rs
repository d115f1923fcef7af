//! Opening and making files and folders that others may have meddled with: never through a symlink, never over what is
//! there.

use crate::error::{At, ClientError, Result};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Options that refuse a symlink, and do not wait for the other end of a pipe.
fn no_follow() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    options
}

/// What the system said of `path`; a symlink is named as what it is.
fn typed(opened: io::Result<File>, path: &Path) -> Result<File> {
    opened.map_err(|error| match error.raw_os_error() {
        Some(code) if code == Errno::LOOP.raw_os_error() => {
            ClientError::corrupt(path.display(), "it is a symlink")
        }
        _ => ClientError::io(path, error),
    })
}

/// Open the file at `path` for reading, and for writing too if `write`.
pub(crate) fn open(path: &Path, write: bool) -> Result<File> {
    typed(no_follow().read(true).write(write).open(path), path)
}

/// As [`open`]; `None` if nothing is there.
pub(crate) fn open_if_there(path: &Path, write: bool) -> Result<Option<File>> {
    match no_follow().read(true).write(write).open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => typed(opened, path).map(Some),
    }
}

/// Create the file `path`, where nothing may be.
pub(crate) fn create_new(path: &Path) -> Result<File> {
    let mut options = no_follow();
    typed(
        options.read(true).write(true).create_new(true).open(path),
        path,
    )
}

/// Delete the file or symlink at `path`, if any.
pub(crate) fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.at(path),
    }
}

/// Whether a folder is at `path` itself, which no symlink to one is; an error if anything else is there.
pub(crate) fn is_folder(path: &Path) -> Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(true),
        Ok(_) => Err(ClientError::corrupt(path.display(), "it is no folder")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).at(path),
    }
}

/// The folder that the name `path` is in.
pub(crate) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Make the names in `folder` durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|f| f.sync_all()).at(folder)
}

/// Create `path` and what is missing above it, so that all of it outlives a crash. Returns the folders that were made,
/// the outermost first.
pub(crate) fn create_folders(path: &Path) -> Result<Vec<PathBuf>> {
    let mut missing = Vec::new();
    let above = path.ancestors().take_while(|p| !p.as_os_str().is_empty());
    for folder in above {
        match fs::metadata(folder) {
            Ok(_) => break,
            Err(error) if error.kind() == ErrorKind::NotFound => missing.push(folder),
            Err(error) => return Err(error).at(folder),
        }
    }
    let mut made = Vec::new();
    for folder in missing.into_iter().rev() {
        match fs::create_dir(folder) {
            // Another process was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => continue,
            created => created.at(folder)?,
        }
        made.push(folder.to_owned());
        sync_folder(folder)?;
        match sync_folder(parent_of(folder)) {
            // Where we may make names but not read them, the system makes them durable in its own time.
            Err(ClientError::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
            }
            synced => synced?,
        }
    }
    Ok(made)
}
