//! Files on their way: staged under numbers in a folder of their own, whole and durable before they get their names.

use super::files::{create_new, open, remove_if_there};
use crate::error::{At, Result};
use crate::handles::Handles;
use deltaic_format::object::FileMode;
use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Numbered files in a folder that holds nothing else of that kind.
#[derive(Debug)]
pub(crate) struct Staging {
    folder: PathBuf,
    handles: Handles,
}

/// What a staged file gets besides its content.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finish {
    /// Whether it may be executed.
    pub mode: FileMode,
    /// The permissions of the file that it replaces; without one, what the umask leaves.
    pub permissions: Option<u32>,
    /// Its modification time; now if `None`.
    pub modified: Option<SystemTime>,
}

impl Staging {
    /// Stage files in `folder`, which exists.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            handles: Handles::default(),
        }
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where file `number` lies.
    pub(crate) fn path(&self, number: usize) -> PathBuf {
        self.folder.join(number.to_string())
    }

    /// Create file `number` with `len` bytes, which are to be written.
    pub(crate) fn create(&self, number: usize, len: u64) -> Result<()> {
        let path = self.path(number);
        create_new(&path)?.set_len(len).at(&path)
    }

    /// Write `bytes` at `offset` of file `number`.
    pub(crate) fn write_at(&self, number: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let path = self.path(number);
        let file = self.handles.get(number, || open(&path, true))?;
        file.write_all_at(bytes, offset).at(&path)
    }

    /// Make file `number` durable, with its permissions and time.
    pub(crate) fn finish(&self, number: usize, finish: Finish) -> Result<()> {
        let path = self.path(number);
        let file = open(&path, false)?;
        let created = file.metadata().at(&path)?.permissions().mode();
        let bits = finish.permissions.unwrap_or(created) & 0o777;
        let bits = match finish.mode {
            FileMode::Plain => bits & !0o111,
            // Whoever may read it may run it.
            FileMode::Executable => bits | (bits & 0o444) >> 2,
        };
        (file.set_permissions(Permissions::from_mode(bits))).at(&path)?;
        if let Some(modified) = finish.modified {
            file.set_modified(modified).at(&path)?;
        }
        file.sync_all().at(&path)
    }

    /// Move file `number` to `to`, over whatever file or symlink is there. What is made of folders on the way, and the
    /// name itself, is durable once the folders are synced.
    pub(crate) fn place(&self, number: usize, to: &Path) -> Result<()> {
        let parent = super::parent_of(to);
        fs::create_dir_all(parent).at(parent)?;
        fs::rename(self.path(number), to).at(to)
    }

    /// Delete everything that is staged.
    pub(crate) fn clear(&self) -> Result<()> {
        self.handles.clear();
        // The folder stays: a full disk might have no room for a new one.
        for entry in fs::read_dir(&self.folder).at(&self.folder)? {
            let entry = entry.at(&self.folder)?;
            let path = entry.path();
            match entry.file_type().at(&path)?.is_dir() {
                true => fs::remove_dir_all(&path).at(&path)?,
                false => remove_if_there(&path)?,
            }
        }
        Ok(())
    }
}
