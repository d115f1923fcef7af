//! Copying a branch's history from one store to another, version by version: push and clone.

use crate::error::{ClientError, Result};
use crate::publish::{Stage, new_files, object_items};
use crate::repository::{Entry, Repository, UploadSource, Watcher};
use deltaic_format::fetch::{FetchRequest, Position};
use deltaic_format::ids::CommitId;
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::Snapshot;
use deltaic_format::refusal::Refusal;
use deltaic_format::upload::{UploadId, UploadItem, UploadPosition, UploadTarget};
use deltaic_format::{FormatError, Version};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Versions that the receiver did not have.
    pub versions: u64,
    /// Bytes that were sent for them.
    pub sent_bytes: u64,
    /// Where the branch stands now, on both sides.
    pub head: CommitId,
    /// Its number.
    pub version: Version,
}

/// Make a branch of `to` what it is in `from`: the versions that are missing there are sent, oldest first, each as patches
/// from the one before. The commits, and so their ids, are the same on both sides.
///
/// # Errors
///
/// [`Refusal::Conflict`] if the branch of `to` has versions that the one of `from` has not; what either side says. Versions
/// that arrived before an error stay.
pub async fn copy_branch(
    from: Arc<dyn Repository>,
    to: Arc<dyn Repository>,
    repo: &RepoName,
    branch: &BranchName,
    progress: Watcher,
) -> Result<Copied> {
    let head = find_branch(&*from, repo, branch).await?.ok_or_else(|| {
        let name = format!("{branch} of {repo}");
        Refusal::NotFound {
            kind: "branch".to_owned(),
            name,
        }
    })?;
    let there = match to.branches(repo).await {
        Ok(branches) => Some(branches),
        Err(ClientError::Refused(Refusal::NotFound { .. })) => None,
        Err(other) => return Err(other),
    };
    let stands = there.as_ref().and_then(|branches| {
        let found = branches.iter().find(|record| record.branch == *branch);
        found.map(|record| record.commit)
    });
    let missing = missing(&*from, (&*to, stands), repo, head, there.is_some()).await?;
    if there.is_some() && stands.is_none() {
        // The branch begins where the receiver's history and this one part.
        if let Some(parent) = missing.parent {
            to.create_branch(repo, branch, parent, missing.time_ms)
                .await?;
        }
    }
    let mut parent = missing.parent;
    let sent_bytes = Arc::new(AtomicU64::new(0));
    let versions = missing.entries.len() as u64;
    for (id, commit) in missing.entries.into_iter().rev() {
        let source = VersionSource {
            from: Arc::clone(&from),
            repo: repo.clone(),
            parent: match parent {
                Some(parent) => Some(Arc::new(from.snapshot(repo, parent).await?)),
                None => None,
            },
            version: Arc::new(from.snapshot(repo, id).await?),
            sent_bytes: Arc::clone(&sent_bytes),
        };
        let target = UploadTarget {
            repo: repo.clone(),
            branch: branch.clone(),
            id: upload_id(repo, branch, id),
            parent,
            commit: Some(id),
        };
        debug_assert_eq!(commit.parents.first().copied(), parent);
        to.upload(&target, Arc::new(source), Arc::clone(&progress))
            .await?;
        parent = Some(id);
    }
    let version = from.snapshot(repo, head).await?.commit.version;
    Ok(Copied {
        versions,
        sent_bytes: sent_bytes.load(Ordering::Relaxed),
        head,
        version,
    })
}

async fn find_branch(
    at: &dyn Repository,
    repo: &RepoName,
    branch: &BranchName,
) -> Result<Option<CommitId>> {
    let branches = at.branches(repo).await?;
    let found = branches.into_iter().find(|record| record.branch == *branch);
    Ok(found.map(|record| record.commit))
}

/// The versions that a receiver lacks.
struct Missing {
    /// Newest first.
    entries: Vec<Entry>,
    /// The newest version that both have.
    parent: Option<CommitId>,
    /// When that was made.
    time_ms: i64,
}

/// The versions from `head` back to the newest that the receiver has: where its branch stands, or, where it has none
/// of the name, any that it knows.
async fn missing(
    from: &dyn Repository,
    (to, stands): (&dyn Repository, Option<CommitId>),
    repo: &RepoName,
    head: CommitId,
    repo_exists: bool,
) -> Result<Missing> {
    let mut history = from.history(repo, head, None).await?;
    let mut entries = Vec::new();
    while let Some((id, commit)) = history.try_next().await? {
        let known = match stands {
            Some(stands) => stands == id,
            None => repo_exists && knows(to, repo, id).await?,
        };
        if known {
            return Ok(Missing {
                entries,
                parent: Some(id),
                time_ms: commit.time_ms,
            });
        }
        entries.push((id, commit));
    }
    if let Some(stands) = stands {
        let what = format!(
            "the receiver's branch stands at {}, which is not in the history that is copied",
            stands.short()
        );
        return Err(Refusal::Conflict { what }.into());
    }
    Ok(Missing {
        entries,
        parent: None,
        time_ms: 0,
    })
}

async fn knows(to: &dyn Repository, repo: &RepoName, id: CommitId) -> Result<bool> {
    let name = BranchName::new(id.to_string()).map_err(invalid)?;
    match to
        .resolve(repo, &deltaic_format::revision::Selector::branch(name))
        .await
    {
        Ok(found) => Ok(found == id),
        Err(ClientError::Refused(Refusal::NotFound { .. })) => Ok(false),
        Err(other) => Err(other),
    }
}

/// The same version for the same branch is the same upload, whoever sends it.
fn upload_id(repo: &RepoName, branch: &BranchName, version: CommitId) -> UploadId {
    let mut hasher = blake3::Hasher::new_derive_key("deltaic 2026-11-30 upload of a version v1");
    for part in [repo.as_str(), branch.as_str()] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.update(version.as_bytes());
    UploadId(*hasher.finalize().as_bytes())
}

fn invalid(error: FormatError) -> ClientError {
    Refusal::Invalid {
        what: error.to_string(),
    }
    .into()
}

/// A version of another store as what an upload sends: files and patches as that store answers for them.
struct VersionSource {
    from: Arc<dyn Repository>,
    repo: RepoName,
    parent: Option<Arc<Snapshot>>,
    version: Arc<Snapshot>,
    sent_bytes: Arc<AtomicU64>,
}

impl fmt::Debug for VersionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VersionSource")
            .field("version", &self.version.id)
            .finish_non_exhaustive()
    }
}

type Items = BoxStream<'static, Result<(UploadPosition, UploadItem)>>;

impl UploadSource for VersionSource {
    fn items(&self, after: Option<UploadPosition>) -> Items {
        let stage = match after.as_deref().map(Stage::from_bytes).transpose() {
            Ok(stage) => stage.unwrap_or_default(),
            Err(error) => return stream::once(async { Err(invalid(error)) }).boxed(),
        };
        let sent_bytes = Arc::clone(&self.sent_bytes);
        let objects = object_items(&self.version, stage);
        let (before, behind): (Vec<_>, Vec<_>) =
            (objects.into_iter()).partition(|(at, _)| *at < Stage::Deliveries(Position::default()));
        let all = ready(before)
            .chain(self.files(stage))
            .chain(self.deliveries(stage))
            .chain(ready(behind));
        let counted = all.map_ok(move |(at, item)| {
            sent_bytes.fetch_add(item.len(), Ordering::Relaxed);
            (at.to_bytes(), item)
        });
        counted.boxed()
    }
}

fn ready(items: Vec<(Stage, UploadItem)>) -> BoxStream<'static, Result<(Stage, UploadItem)>> {
    stream::iter(items.into_iter().map(Ok)).boxed()
}

impl VersionSource {
    fn files(&self, after: Stage) -> BoxStream<'static, Result<(Stage, UploadItem)>> {
        let tree = &self.version.tree;
        let files = new_files(self.parent.as_deref(), &tree.weight_files, &tree.files);
        let files = files.into_iter().enumerate();
        let (from, repo) = (Arc::clone(&self.from), self.repo.clone());
        let parts = files.map(move |(number, file)| {
            let (from, repo) = (Arc::clone(&from), repo.clone());
            let parts = async move {
                let mut end = 0;
                let parts = from.file(&repo, file).await?;
                let item = move |bytes: bytes::Bytes| {
                    let offset = end;
                    end += bytes.len() as u64;
                    let at = Stage::Files {
                        file: number as u64,
                        end,
                    };
                    let item = UploadItem::File {
                        file,
                        offset,
                        bytes,
                    };
                    (at, item)
                };
                Ok::<_, ClientError>(parts.map_ok(item))
            };
            stream::once(parts).try_flatten()
        });
        let all = stream::iter(parts).flatten();
        all.try_filter(move |(at, _)| std::future::ready(*at > after))
            .boxed()
    }

    fn deliveries(&self, after: Stage) -> BoxStream<'static, Result<(Stage, UploadItem)>> {
        let from = match after {
            Stage::Deliveries(position) => position,
            earlier if earlier < Stage::Deliveries(Position::default()) => Position::default(),
            _ => return stream::empty().boxed(),
        };
        let request = FetchRequest::all(self.repo.clone(), &self.version, self.parent.as_deref());
        let source = Arc::clone(&self.from);
        let chunks = async move { source.fetch(request, from).await };
        let items = stream::once(chunks).try_flatten().map_ok(|chunk| {
            let item = UploadItem::Delivery(chunk.delivery);
            (Stage::Deliveries(chunk.next), item)
        });
        items.boxed()
    }
}
