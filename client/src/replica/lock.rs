//! The lock on a replica: `.deltaic/lock`, held exclusively by whoever may write, together by those who only read.

use crate::disk::open_if_there;
use crate::error::{At, ClientError, Result};
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// How the folder may be used as long as this lives.
#[derive(Debug)]
pub(super) enum Lock {
    /// Alone, for writing.
    Exclusive(File),
    /// For reading only; without a file where there is none to lock, which somebody who may write would have made.
    Shared(#[expect(dead_code, reason = "holds the lock")] Option<File>),
}

impl Lock {
    /// Take the lock `path` of the replica `root` exclusively; `None` if it was deleted meanwhile.
    pub(super) fn exclusive(root: &Path, path: &Path) -> Result<Option<Self>> {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(path);
        let mut file = match opened {
            // The folder that it is in went away.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.at(path)?,
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(locked(root, &mut file)),
            Err(TryLockError::Error(error)) => return Err(error).at(path),
        }
        let inode = file.metadata().at(path)?.ino();
        if fs::symlink_metadata(path).is_ok_and(|there| there.ino() == inode) {
            // Only a note for others, which a full disk must not keep from opening the replica.
            let noted = file.set_len(0);
            let _ = noted.and_then(|()| write!(file, "process {}", std::process::id()));
            return Ok(Some(Self::Exclusive(file)));
        }
        Ok(None)
    }

    /// Take the lock `path` of the replica `root` together with others that only read.
    pub(super) fn shared(root: &Path, path: &Path) -> Result<Self> {
        let Some(mut file) = open_if_there(path, false)? else {
            return Ok(Self::Shared(None));
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(Self::Shared(Some(file))),
            Err(TryLockError::WouldBlock) => Err(locked(root, &mut file)),
            Err(TryLockError::Error(error)) => Err(error).at(path),
        }
    }

    pub(super) fn is_exclusive(&self) -> bool {
        matches!(self, Self::Exclusive(_))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Self::Exclusive(file) = self {
            // A name that stays would be taken for the holder's; at worst it is wrong in an error message.
            let _ = file.set_len(0);
        }
    }
}

fn locked(root: &Path, file: &mut File) -> ClientError {
    let mut holder = String::new();
    let known = file.read_to_string(&mut holder).is_ok() && !holder.is_empty();
    ClientError::Locked {
        path: root.to_owned(),
        holder: if known {
            holder
        } else {
            "another process".into()
        },
    }
}
