//! The note of what is about to be published, for a process that dies before it hears of its success.

use super::beside;
use crate::disk::{create_new, remove_if_there, sync_folder};
use crate::error::{At, ClientError, Result};
use deltaic_format::ids::CommitId;
use deltaic_format::object::{CanonicalObject, Commit};
use deltaic_format::upload::UploadId;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that a note takes at most: a commit's message and metadata are bounded.
const MAX_NOTE: u64 = 64 << 20;

/// The note beside a shadow: the upload's id, and the commit's bytes.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    path: PathBuf,
    noting: Arc<Mutex<Noting>>,
}

/// Where noting stands: the thread that makes the items of an attempt may still be at it when the next attempt's is, or when
/// that one has succeeded.
#[derive(Debug, Default)]
struct Noting {
    noted: Option<UploadId>,
    forgotten: bool,
}

/// The note of one upload.
#[derive(Debug, Clone)]
pub(super) struct PendingUpload {
    pending: Pending,
    upload: UploadId,
}

impl Pending {
    pub(super) fn beside(shadow: &Path) -> Self {
        Self {
            path: beside(shadow, ".pending"),
            noting: Arc::default(),
        }
    }

    fn noting(&self) -> MutexGuard<'_, Noting> {
        self.noting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn of(self, upload: UploadId) -> PendingUpload {
        PendingUpload {
            pending: self,
            upload,
        }
    }

    /// The upload and commit that were noted. A note that cannot be understood is none.
    pub(super) fn read(&self) -> Result<Option<(UploadId, Commit)>> {
        match fs::metadata(&self.path) {
            Ok(metadata) if metadata.len() <= MAX_NOTE => {}
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(ClientError::io(&self.path, error)),
        }
        let bytes = fs::read(&self.path).at(&self.path)?;
        let Some((id, commit)) = bytes.split_first_chunk::<32>() else {
            return Ok(None);
        };
        let commit = Commit::from_bytes(commit).ok();
        Ok(commit.map(|commit| (UploadId(*id), commit)))
    }

    /// Note no more: the version is made.
    pub(super) fn close(&self) {
        self.noting().forgotten = true;
    }

    /// Forget the note of the version `made`, which is known to be made; another process may have noted another one since. If
    /// that fails, the next commit finds the version once more.
    pub(super) fn forget(&self, made: CommitId) {
        self.close();
        if matches!(self.read(), Ok(Some((_, noted))) if noted.id() == made) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl PendingUpload {
    /// Note that `commit`, which all attempts at the upload make, is about to be published.
    pub(super) fn note(&self, commit: &Commit) -> Result<()> {
        let mut noting = self.pending.noting();
        if noting.forgotten || noting.noted == Some(self.upload) {
            return Ok(());
        }
        let path = &self.pending.path;
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).at(folder)?;
        let new = path.with_extension("pending.new");
        remove_if_there(&new)?;
        let mut file = create_new(&new)?;
        file.write_all(&self.upload.0).at(&new)?;
        file.write_all(&commit.to_bytes()).at(&new)?;
        file.sync_all().at(&new)?;
        fs::rename(&new, path).at(path)?;
        sync_folder(folder)?;
        noting.noted = Some(self.upload);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltaic_format::Version;
    use deltaic_format::ids::TreeId;
    use std::collections::BTreeMap;

    #[test]
    fn attempts_that_overlap_note_the_same_and_none_after_success() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let pending = Pending::beside(&folder.path().join("shadow"));
        let commit = Commit {
            tree: TreeId([7; 32]),
            parents: Vec::new(),
            version: Version(0),
            time_ms: 0,
            message: String::new(),
            meta: BTreeMap::new(),
        };
        let upload = pending.clone().of(UploadId([1; 32]));
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| upload.note(&commit).expect("it can be noted"));
            }
        });
        let noted = pending.read().expect("it can be read");
        assert_eq!(noted, Some((UploadId([1; 32]), commit.clone())));
        pending.forget(CommitId([3; 32]));
        assert!(pending.read().expect("it can be read").is_some());
        pending.forget(commit.id());
        upload.note(&commit).expect("nothing is to be done");
        assert_eq!(pending.read().expect("it can be read"), None);
    }
}
