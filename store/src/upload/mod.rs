//! Uploads: a version that comes in parts, kept until all of it is there, and then committed as the one that its maker named.
//!
//! What comes is appended to a *spool*, a file of checked records in the store's folder (`spool`, `record`), so that neither
//! a cut nor a restart loses it. Finishing turns the spool, on top of the parent's contents, into a checkpoint (`received`,
//! `deliveries`, `files`, `checkpoint`), which is committed like any other: every content is made, hashed and proven, and what
//! comes of it must be the very tree that was sent. Nothing else of the store is used for it than what the parent has: whoever knows
//! an id does not thereby have the content.

mod checkpoint;
mod deliveries;
mod files;
mod received;
mod record;
mod room;
mod spool;

use crate::error::{Result, StoreError};
use crate::store::Store;
use checkpoint::UploadedCheckpoint;
use deltaic_format::answers::{CommitOutcome, Expect};
use deltaic_format::ids::CommitId;
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::CanonicalObject;
use deltaic_format::progress::Progress;
use deltaic_format::upload::{UploadId, UploadItem, UploadPosition, UploadTarget};
use received::Received;
use room::Room;
use spool::{Mark, Spool};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Uploads that this process knows: each has one sender at a time, and of those that nobody has open, how they were left.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpenUploads(Arc<Mutex<HashMap<UploadId, Known>>>);

#[derive(Debug)]
enum Known {
    Open,
    Left(Mark),
}

/// One upload's entry there, for as long as it is open.
#[derive(Debug)]
struct Claim {
    open: OpenUploads,
    id: UploadId,
    /// How it was left, and how it is left.
    left: Option<Mark>,
}

impl OpenUploads {
    fn known(&self) -> MutexGuard<'_, HashMap<UploadId, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claim(&self, id: UploadId) -> Option<Claim> {
        let left = match self.known().insert(id, Known::Open) {
            Some(Known::Open) => return None,
            Some(Known::Left(mark)) => Some(mark),
            None => None,
        };
        Some(Claim {
            open: self.clone(),
            id,
            left,
        })
    }
}

impl Claim {
    /// Give it up after its spool was removed.
    fn forget(mut self) {
        self.left = None;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let left = self.left.take();
        let mut known = self.open.known();
        match left {
            Some(mark) => known.insert(self.id, Known::Left(mark)),
            None => known.remove(&self.id),
        };
    }
}

/// An upload that is open: what came of it so far, to be continued. Dropping it keeps that.
#[derive(Debug)]
pub struct Upload {
    target: UploadTarget,
    spool: Spool,
    room: Room,
    /// Whether the spool may have been found damaged.
    doubted: bool,
    /// Given up last.
    claim: Claim,
}

impl Upload {
    /// Where the sender goes on; `None` if nothing is held.
    pub fn position(&self) -> Option<&UploadPosition> {
        self.spool.position()
    }

    /// How many items are held.
    pub fn items(&self) -> u64 {
        self.spool.items()
    }

    /// Bytes that they take on disk, those of earlier connections too.
    pub fn bytes(&self) -> u64 {
        self.spool.bytes()
    }

    /// Hold the next item, after which `position` is where the sender goes on.
    ///
    /// On error nothing has changed, and the same item may be tried again.
    ///
    /// # Errors
    ///
    /// [`StoreError::NoSpace`] if the disk is full, or would be but for what is kept free of it; [`StoreError::Invalid`] if item
    /// or position is longer than any message; [`StoreError::Upload`] if the item is empty, or an object longer than any may be.
    pub fn append(&mut self, position: UploadPosition, item: UploadItem) -> Result<()> {
        if item.is_empty() {
            // There could be any number of them.
            return Err(refused("an item without bytes"));
        }
        self.room.take(item.len() + position.len() as u64)?;
        self.spool.append(position, &item)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // Whoever sent nothing leaves nothing behind.
        if self.spool.items() == 0 {
            self.spool.remove();
        } else if !self.doubted {
            self.claim.left = self.spool.mark();
        }
    }
}

impl Store {
    /// What came of an upload whose commit is known and which the branch has: it was done before. What may still be held of
    /// it, because the process that made the version ended before it could clean up, is given up.
    ///
    /// # Errors
    ///
    /// If stored data is damaged.
    pub fn committed(&self, target: &UploadTarget) -> Result<Option<CommitOutcome>> {
        let Some(commit) = target.commit else {
            return Ok(None);
        };
        let outcome = self.outcome_on(&target.repo, &target.branch, commit)?;
        // Someone else who sends it learns the same at the end.
        if outcome.is_some()
            && let Some(claim) = self.uploads().claim(target.id)
        {
            spool::remove(self.folder(), target.id);
            claim.forget();
        }
        Ok(outcome)
    }

    /// Begin an upload, or go on with what is held of it. What was held under the same id for another branch or
    /// parent is given up.
    ///
    /// # Errors
    ///
    /// [`StoreError::Conflict`] if it is open already; [`StoreError::NoSpace`] if the disk is full.
    pub fn open_upload(&self, target: &UploadTarget) -> Result<Upload> {
        let Some(mut claim) = self.uploads().claim(target.id) else {
            return Err(StoreError::Conflict {
                what: format!(
                    "this upload to {}@{} is being received on another connection",
                    target.repo, target.branch
                ),
            });
        };
        let room = self.room();
        room.admit()?;
        Ok(Upload {
            room,
            spool: Spool::open(self.folder(), target, claim.left.take())?,
            target: target.clone(),
            doubted: false,
            claim,
        })
    }

    /// Remove what is held of uploads that nobody has gone on with for a week, as opening the store does.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read.
    pub fn sweep_uploads(&self) -> Result<()> {
        self.room().sweep()
    }

    fn room(&self) -> Room {
        Room::new(self.folder().uploads(), self.uploads().clone())
    }

    /// Make the version that was uploaded, and move the branch to it. If the branch has it already, that is success.
    ///
    /// What is held of the upload is given up on success, and where trying again could not help; on any other error it is kept.
    ///
    /// # Errors
    ///
    /// [`StoreError::Upload`] if something is missing or is not what it claims to be, [`StoreError::Conflict`] if the branch
    /// does not stand at the parent, [`StoreError::Corrupt`] if what the store has of the parent is damaged,
    /// [`StoreError::NoSpace`] if the disk is full. Nothing of it is then visible.
    pub fn finish_upload(
        &self,
        mut upload: Upload,
        progress: &dyn Progress,
    ) -> Result<CommitOutcome> {
        upload.doubted = true;
        let outcome = self.finish(&upload, progress);
        let over = match &outcome {
            Ok(_) => true,
            Err(error) => matches!(
                error,
                StoreError::Upload { .. } | StoreError::Conflict { .. }
            ),
        };
        if over {
            upload.spool.remove();
        }
        outcome
    }

    fn finish(&self, upload: &Upload, progress: &dyn Progress) -> Result<CommitOutcome> {
        // One at a time: what is known of all that came is held in memory.
        let _writing = self.writer();
        let UploadTarget { repo, branch, .. } = &upload.target;
        let received = Received::read(&upload.spool, progress)?;
        let version = &received.version;
        if upload.target.commit.is_some_and(|id| id != version.id) {
            return Err(refused("the commit is not the one that was announced"));
        }
        if let Some(outcome) = self.outcome_on(repo, branch, version.id)? {
            return Ok(outcome);
        }
        let expect = upload.target.parent.map_or(Expect::Nothing, Expect::Commit);
        let parent = self.parent_of(repo, branch, Some(expect))?;
        received.check_place(parent.as_ref())?;

        let checkpoint = UploadedCheckpoint::new(self, &upload.spool, &received, parent.as_ref())?;
        let written = self.write_checkpoint(&checkpoint, parent.as_ref(), progress);
        let mut written = written.map_err(|error| checkpoint.failure(error))?;
        checkpoint.check_tree(&mut written)?;
        let published = self.publish_commit(
            repo,
            branch,
            &version.commit,
            version.tree.to_bytes(),
            written.grown,
            written.batch,
        )?;
        Ok(CommitOutcome {
            id: published.id,
            version: published.version,
            elements: version.elements(),
            changed: written.tensors.iter().map(|t| t.changed).sum(),
            full_bytes: written.full_bytes,
            patch_bytes: written.tensors.iter().map(|t| t.patch_bytes).sum(),
            new_bytes: published.new_bytes,
        })
    }

    /// What commit `id` took, if the branch has it.
    fn outcome_on(
        &self,
        repo: &RepoName,
        branch: &BranchName,
        id: CommitId,
    ) -> Result<Option<CommitOutcome>> {
        let Some(head) = self.find_branch(repo, branch)? else {
            return Ok(None);
        };
        let version = match self.read_commit(id) {
            Ok(commit) => commit.version,
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let at = self.find_in_history(head.commit, |commit| commit.version <= version)?;
        if at != Some(id) {
            return Ok(None);
        }
        let stats = self.version_stats(&self.snapshot(id)?)?;
        Ok(Some(CommitOutcome {
            id,
            version,
            elements: stats.elements,
            changed: stats.changed,
            full_bytes: stats.full_bytes,
            patch_bytes: stats.patch_bytes,
            new_bytes: stats.new_bytes.unwrap_or_default(),
        }))
    }
}

/// Something that came is not what it claims to be.
fn refused(what: impl ToString) -> StoreError {
    StoreError::Upload {
        what: what.to_string(),
    }
}
