//! Copying a branch's history from one store to another, version by version: push and clone.

use crate::arrival::{checked, of_size};
use crate::error::{ClientError, Result};
use crate::publish::{Stage, new_files, object_items};
use crate::repository::{Repository, UploadSource, Watcher};
use deltaic_format::fetch::{AnswerCheck, FetchRequest, Position};
use deltaic_format::ids::{CommitId, FileId};
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::{RefRecord, Snapshot};
use deltaic_format::refusal::Refusal;
use deltaic_format::upload::{UploadId, UploadItem, UploadPosition, UploadTarget};
use deltaic_format::{FormatError, Version};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use std::collections::{HashMap, HashSet};
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
    let known = match (&there, stands) {
        (None, _) => HashSet::new(),
        (Some(_), Some(stands)) => HashSet::from([stands]),
        (Some(branches), None) => versions_of(&*to, repo, branches).await?,
    };
    let missing = missing(&*from, &known, repo, head).await?;
    match (missing.parent, stands) {
        (None, Some(stands)) => {
            let what = format!(
                "the receiver's branch stands at {}, which is not in the history that is copied",
                stands.short()
            );
            return Err(Refusal::Conflict { what }.into());
        }
        (None, None) if there.is_some() => {
            let what = format!(
                "the receiver has a repository {repo}, but no version of this history to begin the branch {branch} at"
            );
            return Err(Refusal::Conflict { what }.into());
        }
        // The branch begins where the receiver's history and this one part.
        (Some((parent, time_ms)), None) => {
            to.create_branch(repo, branch, parent, time_ms).await?;
        }
        _ => {}
    }
    let mut parent = match missing.parent {
        Some((id, _)) if !missing.versions.is_empty() => {
            Some(Arc::new(from.snapshot(repo, id).await?))
        }
        _ => None,
    };
    let sent_bytes = Arc::new(AtomicU64::new(0));
    let versions = missing.versions.len() as u64;
    for id in missing.versions.into_iter().rev() {
        let version = Arc::new(from.snapshot(repo, id).await?);
        let source = VersionSource {
            from: Arc::clone(&from),
            repo: repo.clone(),
            parent: parent.clone(),
            version: Arc::clone(&version),
            sent_bytes: Arc::clone(&sent_bytes),
        };
        let target = UploadTarget {
            repo: repo.clone(),
            branch: branch.clone(),
            id: upload_id(repo, branch, id),
            parent: parent.as_ref().map(|parent| parent.id),
            commit: Some(id),
        };
        debug_assert_eq!(version.commit.parents.first().copied(), target.parent);
        let made = to.upload(&target, Arc::new(source), Arc::clone(&progress));
        let made = made.await?.id;
        if made != id {
            let object = format!("commit {}", id.short());
            let what = format!("the receiver says that it has made {} of it", made.short());
            return Err(ClientError::delivery(object, what));
        }
        parent = Some(version);
    }
    let version = match parent {
        Some(version) => version.commit.version,
        None => from.snapshot(repo, head).await?.commit.version,
    };
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
    versions: Vec<CommitId>,
    /// The newest version that both have, and when it was made.
    parent: Option<(CommitId, i64)>,
}

/// The versions from `head` back to the newest that the receiver has: where its branch stands, or, where it has none
/// of the name, any that its other branches have.
async fn missing(
    from: &dyn Repository,
    known: &HashSet<CommitId>,
    repo: &RepoName,
    head: CommitId,
) -> Result<Missing> {
    let mut history = from.history(repo, head, None).await?;
    let mut versions = Vec::new();
    while let Some((id, commit)) = history.try_next().await? {
        if known.contains(&id) {
            return Ok(Missing {
                versions,
                parent: Some((id, commit.time_ms)),
            });
        }
        versions.push(id);
    }
    Ok(Missing {
        versions,
        parent: None,
    })
}

/// All versions that the branches of a repository have.
async fn versions_of(
    at: &dyn Repository,
    repo: &RepoName,
    branches: &[RefRecord],
) -> Result<HashSet<CommitId>> {
    let mut known = HashSet::new();
    for branch in branches {
        let mut history = at.history(repo, branch.commit, None).await?;
        while let Some((id, _)) = history.try_next().await? {
            if !known.insert(id) {
                break;
            }
        }
    }
    Ok(known)
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
        let begin = match after {
            Stage::Files { file, .. } => file as usize,
            earlier if earlier < (Stage::Files { file: 0, end: 0 }) => 0,
            _ => return stream::empty().boxed(),
        };
        let tree = &self.version.tree;
        let files = new_files(self.parent.as_deref(), &tree.weight_files, &tree.files);
        let files = files.into_iter().enumerate().skip(begin);
        let headers = (tree.weight_files.iter()).map(|file| (file.header, file.header_len));
        let others = tree.files.iter().map(|file| (file.id, file.size));
        let sizes: HashMap<FileId, u64> = headers.chain(others).collect();
        let (from, repo) = (Arc::clone(&self.from), self.repo.clone());
        let version = self.version.id;
        let parts = files.map(move |(number, file)| {
            let (from, repo) = (Arc::clone(&from), repo.clone());
            let size = sizes.get(&file).copied().unwrap_or(0);
            let parts = async move {
                let mut end = 0;
                let parts = of_size(from.file(&repo, version, file).await?, (file, size));
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
        let want = self.version.id;
        let check = AnswerCheck::new(&self.version, &request, from).map_err(invalid);
        let chunks = async move {
            let check = check?;
            Ok::<_, ClientError>(checked(source.fetch(request, from).await?, want, check))
        };
        let items = stream::once(chunks).try_flatten().map_ok(|chunk| {
            let item = UploadItem::Delivery(chunk.delivery);
            (Stage::Deliveries(chunk.next), item)
        });
        items.boxed()
    }
}
