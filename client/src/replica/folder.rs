//! A replica's folder on disk: its own files in `.deltaic`, its lock, and writes that are there wholly or not at all.

use super::lock::Lock;
use super::stamp::FileStat;
use crate::disk::{
    INTERNAL, LOST_AND_FOUND, Staging, create_folders, create_new, is_folder, locate, open,
    open_if_there, remove_if_there, sync_folder,
};
use crate::error::{At, ClientError, Result};
use deltaic_format::name::TreePath;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

const STAGED: &str = "staged";
const LOCK: &str = "lock";
const NEW: &str = "new";

/// What a folder is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// To pull into it; it may be missing or empty.
    Create,
    /// To use the replica that is there, for reading only where nothing else is allowed.
    Open,
    /// To read it.
    #[cfg(test)]
    Read,
}

/// A replica's folder, locked as long as this lives.
#[derive(Debug)]
pub(super) struct Folder {
    root: PathBuf,
    staging: Staging,
    lock: Lock,
    /// Folders that were made to lock it, the outermost first.
    made: Vec<PathBuf>,
}

impl Folder {
    /// Make sure that `root` has a `.deltaic` and lock it.
    pub(super) fn lock(root: &Path, access: Access) -> Result<Self> {
        /// Others can take the folder away between two steps only when their first pull fails.
        const ATTEMPTS: usize = 100;
        let mut made = Vec::new();
        for _ in 0..ATTEMPTS {
            made.extend(find_or_make(root, access)?);
            let Some(lock) = take_lock(root, access)? else {
                continue;
            };
            let staged = root.join(INTERNAL).join(STAGED);
            if lock.is_exclusive() && !is_folder(&staged)? {
                fs::create_dir(&staged).at(&staged)?;
                sync_folder(&root.join(INTERNAL))?;
            }
            return Ok(Self {
                root: root.to_owned(),
                staging: Staging::new(staged),
                lock,
                made,
            });
        }
        Err(ClientError::Locked {
            path: root.to_owned(),
            holder: "another process".into(),
        })
    }

    /// The folder.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// A file of the replica's own.
    pub(super) fn internal(&self, name: &str) -> PathBuf {
        self.root.join(INTERNAL).join(name)
    }

    /// Fail if the folder is open for reading only.
    pub(super) fn check_writable(&self) -> Result<()> {
        match self.lock.is_exclusive() {
            true => Ok(()),
            false => Err(ErrorKind::PermissionDenied.into()).at(&self.internal(LOCK)),
        }
    }

    /// Whether the folder is open for reading only.
    pub(super) fn is_read_only(&self) -> bool {
        !self.lock.is_exclusive()
    }

    /// The files on their way into the replica.
    pub(super) fn staging(&self) -> &Staging {
        &self.staging
    }

    /// Where the file `path` of the tree lies; see [`locate`].
    pub(super) fn locate(&self, path: &TreePath) -> Result<PathBuf> {
        locate(&self.root, path)
    }

    /// Stat of the file `path` of the tree; `None` if there is no regular file, or a symlink on the way to it.
    pub(super) fn stat(&self, path: &TreePath) -> Option<FileStat> {
        self.metadata(path).map(|metadata| FileStat::of(&metadata))
    }

    /// The permissions of the regular file `path` of the tree, if there is one.
    pub(super) fn permissions(&self, path: &TreePath) -> Option<u32> {
        self.metadata(path).map(|metadata| metadata.mode())
    }

    fn metadata(&self, path: &TreePath) -> Option<fs::Metadata> {
        let location = self.locate(path).ok()?;
        (fs::symlink_metadata(location).ok()).filter(fs::Metadata::is_file)
    }

    /// Whether the file `path` of the tree may be changed where it lies: it is ours, so that its times can be set, it may
    /// be written, and it has no other name under which someone keeps it as it is.
    pub(super) fn may_patch(&self, path: &TreePath) -> bool {
        const OWNER_WRITES: u32 = 0o200;
        let Some(metadata) = self.metadata(path) else {
            return false;
        };
        let user = rustix::process::geteuid();
        let ours = user.is_root() || metadata.uid() == user.as_raw();
        let protected = metadata.mode() & OWNER_WRITES == 0;
        ours && !protected && metadata.nlink() == 1 && self.open(path, true).is_ok()
    }

    /// Open the file `path` of the tree, for writing too if `write`.
    pub(super) fn open(&self, path: &TreePath, write: bool) -> Result<(File, PathBuf)> {
        let location = self.locate(path)?;
        Ok((open(&location, write)?, location))
    }

    /// Write a file of the replica's own so that a crash leaves the old or the new one; which of them is certain after
    /// [`sync`](Self::sync).
    pub(super) fn replace(&self, name: &str, content: &[u8]) -> Result<()> {
        self.reserve(name, content)?;
        let (path, new) = (self.internal(name), self.reserved(name));
        fs::rename(&new, &path).at(&path)
    }

    /// Write what is to replace a file of the replica's own beside it, so that
    /// [`replace_reserved`](Self::replace_reserved) needs no space any more.
    pub(super) fn reserve(&self, name: &str, content: &[u8]) -> Result<()> {
        let new = self.reserved(name);
        remove_if_there(&new)?;
        let mut file = create_new(&new)?;
        file.write_all(content).at(&new)?;
        file.sync_all().at(&new)
    }

    /// Replace a file of the replica's own as [`replace`](Self::replace) does, by way of what was reserved for it, if
    /// that is still there: written over, where it differs, and renamed.
    pub(super) fn replace_reserved(&self, name: &str, content: &[u8]) -> Result<()> {
        let (path, new) = (self.internal(name), self.reserved(name));
        if self.read(name)?.is_some_and(|current| current == content) {
            return remove_if_there(&new);
        }
        let Some(mut file) = open_if_there(&new, true)? else {
            return self.replace(name, content);
        };
        let mut reserved = Vec::new();
        file.read_to_end(&mut reserved).at(&new)?;
        if reserved != content {
            file.write_all_at(content, 0).at(&new)?;
            file.set_len(content.len() as u64).at(&new)?;
            file.sync_all().at(&new)?;
        }
        fs::rename(&new, &path).at(&path)
    }

    /// Delete what was reserved for a file of the replica's own.
    pub(super) fn unreserve(&self, name: &str) -> Result<()> {
        remove_if_there(&self.reserved(name))
    }

    fn reserved(&self, name: &str) -> PathBuf {
        self.internal(&format!("{name}.{NEW}"))
    }

    /// Make the names of the replica's own files durable.
    pub(super) fn sync(&self) -> Result<()> {
        sync_folder(&self.internal(""))
    }

    /// Read a file of the replica's own; `None` if there is none.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.internal(name);
        let Some(mut file) = open_if_there(&path, false)? else {
            return Ok(None);
        };
        let mut content = Vec::new();
        file.read_to_end(&mut content).at(&path)?;
        Ok(Some(content))
    }

    /// Delete everything that is staged.
    pub(super) fn clear_staged(&self) -> Result<()> {
        self.staging.clear()
    }

    /// Whether the folder holds anything that a replica would have to share it with.
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

    /// Take back what was made to lock the folder, if nothing has come into it since.
    fn unmake(&self) {
        let has = |name: &str| fs::symlink_metadata(self.internal(name)).is_ok();
        if self.made.is_empty() || has(super::state::STATE) || has(super::journal::JOURNAL) {
            return;
        }
        // Whatever does not go is not empty, so it stays. The lock goes last and while it is held: whoever gets it
        // next finds it gone and begins anew.
        let staged = fs::remove_dir(self.staging.folder());
        if staged.is_ok() && fs::remove_file(self.internal(LOCK)).is_ok() {
            for folder in self.made.iter().rev() {
                let _ = fs::remove_dir(folder);
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.unmake();
    }
}

/// Why a folder with other things in it is refused.
pub(super) const NOT_EMPTY: &str = "it holds other files and no .deltaic/state.json";

/// Check that `root` is or may become a replica, and make what is missing. Returns the folders that were made.
fn find_or_make(root: &Path, access: Access) -> Result<Vec<PathBuf>> {
    let refuse = |what: &str| {
        Err(ClientError::NotAReplica {
            path: root.to_owned(),
            what: what.to_owned(),
        })
    };
    let create = access == Access::Create;
    match fs::metadata(root) {
        Ok(metadata) if !metadata.is_dir() => return refuse("it is no folder"),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).at(root),
        Err(_) if !create => return refuse("there is no such folder"),
        Ok(_) | Err(_) => {}
    }
    let internal = root.join(INTERNAL);
    match fs::symlink_metadata(&internal) {
        Ok(metadata) if metadata.is_dir() => {
            refuse_symlinks(&internal)?;
            Ok(Vec::new())
        }
        Ok(_) => refuse("its .deltaic is no folder"),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).at(&internal),
        Err(_) if !create => refuse("it has no .deltaic"),
        Err(_) if has_files(root)? => refuse(NOT_EMPTY),
        Err(_) => create_folders(&internal),
    }
}

/// Fail if one of the replica's own files or folders is a symlink: no pull makes any, and what it leads to is not ours.
fn refuse_symlinks(internal: &Path) -> Result<()> {
    for entry in fs::read_dir(internal).at(internal)? {
        let entry = entry.at(internal)?;
        let path = entry.path();
        if entry.file_type().at(&path)?.is_symlink() {
            return Err(ClientError::corrupt(path.display(), "it is a symlink"));
        }
    }
    Ok(())
}

/// Take the lock that `access` needs; `None` if it was deleted meanwhile.
fn take_lock(root: &Path, access: Access) -> Result<Option<Lock>> {
    let path = root.join(INTERNAL).join(LOCK);
    #[cfg(test)]
    if access == Access::Read {
        return Lock::shared(root, &path).map(Some);
    }
    match Lock::exclusive(root, &path) {
        Err(ClientError::Io { source, .. })
            if access == Access::Open && is_read_only(source.kind()) =>
        {
            Lock::shared(root, &path).map(Some)
        }
        lock => lock,
    }
}

fn is_read_only(error: ErrorKind) -> bool {
    matches!(
        error,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
    )
}

fn has_files(root: &Path) -> Result<bool> {
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        entries => entries.at(root)?,
    };
    for entry in entries {
        let entry = entry.at(root)?;
        let name = entry.file_name();
        let system = name == LOST_AND_FOUND && entry.file_type().at(&entry.path())?.is_dir();
        if name != INTERNAL && !system {
            return Ok(true);
        }
    }
    Ok(false)
}
