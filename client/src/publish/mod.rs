//! Committing a checkpoint to a server: what travels is a patch, made against a shadow of what was last committed.
//!
//! 1. The branch's newest version is brought into the shadow, if it is not there already (`shadow`).
//! 2. The checkpoint is diffed against it, tensor by tensor (`difference`), and what differs is sent as it is found
//!    (`source`).
//! 3. The server applies, hashes and publishes; then the shadow becomes the new version, by what is on this machine.
//!
//! What is about to be published is noted beside the shadow (`pending`), so that a process that died before it heard
//! of its success finds the version there instead of making another one.

mod difference;
mod files;
mod pending;
mod position;
mod shadow;
mod source;

pub(crate) use files::new_files;
pub(crate) use position::{Stage, object_items};

use crate::asynchronous::{blocking, stoppable};
use crate::checkpoint::Checkpoint;
use crate::error::{ClientError, Result};
use crate::repository::{Repository, UploadSource, Watcher};
use deltaic_format::answers::{CommitOutcome, CommitRequest};
use deltaic_format::ids::CommitId;
use deltaic_format::object::{Commit, Snapshot};
use deltaic_format::refusal::Refusal;
use deltaic_format::upload::{UploadId, UploadItem, UploadPosition, UploadTarget};
use difference::Difference;
use files::CheckpointFiles;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use pending::Pending;
use shadow::{LocalSource, Shadow};
use source::CheckpointSource;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Commit `checkpoint` as the next version of a branch of `repository`, diffed against the shadow in the folder `shadow`,
/// which is made if it is not there.
///
/// Tried again after any failure, also of this process, it goes on where it was; if the version was made already, that is
/// success, until the caller has [acknowledged](acknowledge) it. Dropping the future stops the work; until the server has
/// everything, no version is visible.
///
/// # Errors
///
/// [`Refusal::Conflict`] if the branch is not where the request expects it, or another committer was first;
/// [`ClientError::Locked`] if another process uses the shadow; what reading the checkpoint, or the way to the server, fails
/// with.
pub async fn commit(
    repository: Arc<dyn Repository>,
    checkpoint: Checkpoint,
    request: CommitRequest,
    shadow: PathBuf,
    progress: Watcher,
) -> Result<CommitOutcome> {
    Commit::check_texts(&request.message, &request.meta).map_err(|error| Refusal::Invalid {
        what: error.to_string(),
    })?;
    let (progress, _stop) = stoppable(progress);
    let publication = Publication {
        pending: Pending::beside(&shadow),
        repository,
        checkpoint: Arc::new(checkpoint),
        request,
        shadow,
        progress,
    };
    match publication.run(false).await {
        // Someone changed the shadow's files, or the disk did.
        Err(ClientError::Modified { .. } | ClientError::Proof { .. }) => {
            publication.run(true).await
        }
        other => other,
    }
}

/// Take notice of the outcome of a [`commit`](fn@commit) with this shadow, which made the version `made`: from now on the same
/// checkpoint, committed again with the same words, makes another one.
pub fn acknowledge(shadow: &Path, made: CommitId) {
    Pending::beside(shadow).forget(made);
}

struct Publication {
    repository: Arc<dyn Repository>,
    checkpoint: Arc<Checkpoint>,
    request: CommitRequest,
    shadow: PathBuf,
    pending: Pending,
    progress: Watcher,
}

impl Publication {
    /// Send the version; with `repair`, all that the shadow holds is checked first.
    async fn run(&self, repair: bool) -> Result<CommitOutcome> {
        let head = self.head().await?;
        // After the look at the branch: what an earlier attempt publishes after this makes the same upload as this one, on
        // top of that head.
        if let Some(outcome) = self.already_published().await? {
            return Ok(outcome);
        }
        self.request.check_expected(head)?;
        let parent = match head {
            Some(head) => Some(self.repository.snapshot(&self.request.repo, head).await?),
            None => None,
        };
        let shadow = Shadow::open(self.shadow.clone(), Arc::clone(&self.progress)).await?;
        let (shadow, held) = match &parent {
            None => (shadow, None),
            Some(parent) => {
                let at = (Arc::clone(&self.repository), self.request.repo.clone());
                let progress = Arc::clone(&self.progress);
                let shadow = shadow
                    .bring_to(at, parent.clone(), &self.checkpoint, repair, progress)
                    .await?;
                blocking(move || {
                    let held = shadow.held()?;
                    Ok((shadow, held))
                })
                .await?
            }
        };
        let checkpoint = Arc::clone(&self.checkpoint);
        let difference = blocking(move || Ok(Arc::new(Difference::new(held, checkpoint)))).await?;
        let files = self.files(parent.clone()).await?;
        let parent = parent.map(|parent| parent.id);
        let id = self.upload_id(parent, repair);
        let source = Arc::new(CheckpointSource::new(
            Arc::clone(&difference),
            Arc::clone(&files),
            self.request_of(id)?,
            self.pending.clone().of(id),
            Arc::clone(&self.progress),
        ));
        let target = UploadTarget {
            repo: self.request.repo.clone(),
            branch: self.request.branch.clone(),
            id,
            parent,
            commit: None,
        };
        let total = self.checkpoint.total_bytes();
        self.progress.phase("committing", Some(total));
        let sent: Arc<dyn UploadSource> = Arc::clone(&source) as _;
        let outcome = (self.repository)
            .upload(&target, sent, Arc::clone(&self.progress))
            .await?;
        let outcome = self.must_be_of(outcome, &source).await?;
        let advanced = self.advance(shadow, (difference, files), &source, outcome.id);
        if let Err(error) = advanced.await {
            // The version is made; the next commit brings the shadow to it.
            tracing::warn!(%error, "the shadow could not be brought to the new version");
        }
        self.pending.close();
        Ok(outcome)
    }

    /// The outcome, if the version is the one that was sent, or that another process made of the same. The way may have damaged
    /// the answer, which has no checksum of its own.
    async fn must_be_of(
        &self,
        outcome: CommitOutcome,
        source: &CheckpointSource,
    ) -> Result<CommitOutcome> {
        if source.version().is_none() {
            // The server had it before all was read.
            let mut items = source.items(None);
            while items.next().await.transpose()?.is_some() {}
        }
        let sent = source.version().ok_or_else(|| Refusal::Failed {
            what: "what was sent is not known".to_owned(),
        })?;
        if sent.id == outcome.id {
            return Ok(outcome);
        }
        if let Some(found) = self.find_published(&sent.commit).await? {
            return Ok(found);
        }
        let repo = &self.request.repo;
        let made = self.repository.snapshot(repo, outcome.id).await?;
        let at_its_time = Commit {
            time_ms: sent.commit.time_ms,
            ..made.commit
        };
        if at_its_time != sent.commit {
            let object = format!("commit {}", sent.id.short());
            let what = format!(
                "the server says that it has made {} of it",
                outcome.id.short()
            );
            return Err(ClientError::delivery(object, what));
        }
        Ok(outcome)
    }

    /// What is asked for, with the time that an earlier attempt at the same upload gave it: the commit is the same one.
    fn request_of(&self, upload: UploadId) -> Result<CommitRequest> {
        let noted = self.pending.read()?;
        let earlier = noted.filter(|(noted, _)| *noted == upload);
        Ok(CommitRequest {
            time_ms: earlier.map_or(self.request.time_ms, |(_, commit)| commit.time_ms),
            ..self.request.clone()
        })
    }

    /// Where the branch stands; `None` if there is no repository yet.
    async fn head(&self) -> Result<Option<CommitId>> {
        let CommitRequest { repo, branch, .. } = &self.request;
        let branches = match self.repository.branches(repo).await {
            Ok(branches) => branches,
            Err(ClientError::Refused(Refusal::NotFound { .. })) => return Ok(None),
            Err(other) => return Err(other),
        };
        let head = branches.iter().find(|record| record.branch == *branch);
        let head = head.map(|record| record.commit);
        match head {
            Some(head) => Ok(Some(head)),
            None => Err(Refusal::NotFound {
                kind: "branch".to_owned(),
                name: format!("{branch} of {repo}"),
            }
            .into()),
        }
    }

    async fn files(&self, parent: Option<Snapshot>) -> Result<Arc<CheckpointFiles>> {
        let (checkpoint, progress) = (Arc::clone(&self.checkpoint), Arc::clone(&self.progress));
        let files =
            blocking(move || CheckpointFiles::new(&checkpoint, parent.as_ref(), &*progress));
        Ok(Arc::new(files.await?))
    }

    /// Names the upload: the same for the same files on top of the same version with the same words, so that another
    /// process goes on with it. One after a repair is another one.
    fn upload_id(&self, parent: Option<CommitId>, repair: bool) -> UploadId {
        let CommitRequest {
            repo,
            branch,
            message,
            meta,
            ..
        } = &self.request;
        let mut hasher =
            blake3::Hasher::new_derive_key("deltaic 2026-11-30 upload of a checkpoint v1");
        let meta = meta.iter().flat_map(|(key, value)| [key.as_str(), value]);
        for text in [repo.as_str(), branch.as_str(), message]
            .into_iter()
            .chain(meta)
        {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.update(&self.checkpoint.fingerprint());
        hasher.update(&parent.map_or([0; 32], |parent| parent.0));
        hasher.update(&[u8::from(repair)]);
        UploadId(*hasher.finalize().as_bytes())
    }

    /// The outcome of an earlier attempt at this very commit, whose answer was lost.
    async fn already_published(&self) -> Result<Option<CommitOutcome>> {
        let Some((upload, commit)) = self.pending.read()? else {
            return Ok(None);
        };
        let parent = commit.parents.first().copied();
        let same = [false, true]
            .map(|repair| self.upload_id(parent, repair))
            .contains(&upload);
        if !same {
            return Ok(None);
        }
        let found = self.find_published(&commit).await?;
        if let Some(outcome) = &found {
            self.let_go(upload, parent, outcome.id).await;
        }
        Ok(found)
    }

    /// Let the server give up what it still holds of an upload whose version it has made: it may have ended in between.
    async fn let_go(&self, id: UploadId, parent: Option<CommitId>, made: CommitId) {
        let target = UploadTarget {
            repo: self.request.repo.clone(),
            branch: self.request.branch.clone(),
            id,
            parent,
            commit: Some(made),
        };
        let nothing = Arc::new(Nothing);
        let watcher = Arc::clone(&self.progress);
        if let Err(error) = self.repository.upload(&target, nothing, watcher).await {
            // It is swept later.
            tracing::debug!(%error, "what is left of an upload stays for now");
        }
    }

    async fn find_published(&self, commit: &Commit) -> Result<Option<CommitOutcome>> {
        use deltaic_format::object::CanonicalObject as _;
        use futures::TryStreamExt as _;
        let CommitRequest { repo, branch, .. } = &self.request;
        let branches = match self.repository.branches(repo).await {
            Ok(branches) => branches,
            Err(ClientError::Refused(Refusal::NotFound { .. })) => return Ok(None),
            Err(other) => return Err(other),
        };
        let Some(head) = branches.iter().find(|record| record.branch == *branch) else {
            return Ok(None);
        };
        let id = commit.id();
        let mut history = self.repository.history(repo, head.commit, None).await?;
        while let Some((at, found)) = history.try_next().await? {
            if at == id {
                let version = self.repository.snapshot(repo, id).await?;
                let stats = self.repository.version_stats(repo, &version).await?;
                return Ok(Some(CommitOutcome {
                    id,
                    version: commit.version,
                    elements: stats.elements,
                    changed: stats.changed,
                    full_bytes: stats.full_bytes,
                    patch_bytes: stats.patch_bytes,
                    new_bytes: stats.new_bytes.unwrap_or_default(),
                }));
            }
            if found.version <= commit.version {
                break;
            }
        }
        Ok(None)
    }

    /// Bring the shadow to the version that was made.
    async fn advance(
        &self,
        shadow: Shadow,
        (difference, files): (Arc<Difference>, Arc<CheckpointFiles>),
        source: &CheckpointSource,
        made: CommitId,
    ) -> Result<()> {
        let repo = self.request.repo.clone();
        let version = match source.version().filter(|version| version.id == made) {
            Some(version) => version,
            None => self.repository.snapshot(&repo, made).await?,
        };
        let progress = Arc::clone(&self.progress);
        let local = LocalSource {
            difference,
            files,
            progress: Arc::clone(&progress),
        };
        shadow.advance(repo, version, local, progress).await
    }
}

/// Sends nothing: for an upload whose version is made.
#[derive(Debug)]
struct Nothing;

impl UploadSource for Nothing {
    fn items(
        &self,
        _after: Option<UploadPosition>,
    ) -> BoxStream<'static, Result<(UploadPosition, UploadItem)>> {
        stream::empty().boxed()
    }
}

/// Where what belongs to a shadow lies that is not in it.
fn beside(shadow: &Path, ending: &str) -> PathBuf {
    let mut name = shadow.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    shadow.with_file_name(name)
}
