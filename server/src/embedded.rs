//! Where store and client meet in one process: each seen through the other's interface, errors kept as they are.

use crate::report::Failure;
use crate::serve::{Cancellable, Changes, Follower, Work, Workers, append_items, history_page};
use async_trait::async_trait;
use bytes::Bytes;
use deltaic_client::{Checkpoint, ClientError, Entry, Repository, Result, UploadSource, Watcher};
use deltaic_format::Version;
use deltaic_format::answers::{
    CommitOutcome, CommitRequest, StoreStats, Tag, TensorDiff, VerifyOptions, VerifyReport,
    VersionStats,
};
use deltaic_format::fetch::{Chunk, FetchPlan, FetchRequest, Position};
use deltaic_format::ids::{CommitId, FileId};
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::{RefRecord, Schema, Snapshot};
use deltaic_format::progress::{Progress, Silent};
use deltaic_format::refusal::Refusal;
use deltaic_format::revision::Selector;
use deltaic_format::upload::{UploadItem, UploadPosition, UploadTarget};
use deltaic_store::{Fetch, PlainFile, Store, StoreError, Upload};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Commits that are read at a time.
const HISTORY_PAGE: usize = 64;

/// Bytes of an upload that are held at a time.
const APPENDED_BYTES: u64 = 4 << 20;

/// Whoever changes refs need not say so: a follower looks this often.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// A store of this process as repositories.
#[derive(Debug, Clone)]
pub struct Embedded {
    store: Arc<Store>,
    workers: Workers,
    changes: Changes,
}

impl Embedded {
    /// Those of `store`.
    pub fn new(store: Arc<Store>) -> Self {
        Self::told(store, Changes::default())
    }

    /// The same, with word of changes to and from others that have the store open in this process.
    pub fn told(store: Arc<Store>, changes: Changes) -> Self {
        Self {
            store,
            workers: Workers::new(),
            changes,
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        kind: Work,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T> {
        let store = self.store.clone();
        let done = self.workers.run(kind, move || work(&store)).await;
        done.map_err(refused)
    }

    /// Work that is told to stop when whoever asked for it goes away.
    async fn watched<T: Send + 'static>(
        &self,
        kind: Work,
        progress: Watcher,
        work: impl FnOnce(&Store, &dyn Progress) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T> {
        let (progress, _stop) = Cancellable::new(progress);
        self.run(kind, move |store| work(store, &progress)).await
    }

    async fn change<T: Send + 'static>(
        &self,
        kind: Work,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T> {
        let changes = self.changes.clone();
        let change = move |store: &Store| work(store).inspect(|_| changes.made());
        self.run(kind, change).await
    }

    async fn must_reach(&self, repo: &RepoName, version: CommitId) -> Result<()> {
        let repo = repo.clone();
        self.run(Work::Short, move |store| store.must_reach(&repo, version))
            .await
    }

    /// A batch of chunks, made while the ones before it are being used.
    fn chunks(&self, fetch: &Arc<Fetch>, at: Position) -> tokio::task::JoinHandle<Batch> {
        let (this, fetch) = (self.clone(), fetch.clone());
        tokio::spawn(async move {
            let chunks = move |store: &Store| store.chunks(&fetch, at);
            this.run(Work::Compute, chunks).await
        })
    }

    /// Hold all items that `source` has, reading some while others are written.
    async fn append(&self, mut upload: Upload, source: &dyn UploadSource) -> Result<Upload> {
        let mut items = source.items(upload.position().cloned()).ready_chunks(64);
        let mut pending = Vec::new();
        let mut more = true;
        while more || !pending.is_empty() {
            let next = async {
                let mut taken = Vec::new();
                let mut bytes = 0;
                while more && bytes < APPENDED_BYTES {
                    let Some(batch) = items.next().await else {
                        more = false;
                        break;
                    };
                    for item in batch {
                        let item = item?;
                        bytes += item.1.len();
                        taken.push(item);
                    }
                }
                Ok::<Vec<(UploadPosition, UploadItem)>, ClientError>(taken)
            };
            let append = append_items(&self.workers, upload, std::mem::take(&mut pending));
            let (appended, taken) = futures::future::join(append, next).await;
            upload = appended.map_err(refused)?;
            pending = taken?;
        }
        Ok(upload)
    }
}

type Batch = Result<Vec<Chunk>>;

/// What a store refuses, told by the client.
fn refused(refusal: Refusal) -> ClientError {
    match refusal {
        Refusal::Interrupted => ClientError::Interrupted,
        refusal => ClientError::Refused(refusal),
    }
}

/// What a fetch would take.
///
/// # Errors
///
/// If stored data is damaged, or the caller stops.
pub(crate) fn plan(
    store: &Store,
    fetch: &Fetch,
    exactly: bool,
    progress: &dyn Progress,
) -> Result<FetchPlan, StoreError> {
    if exactly {
        return store.plan_exactly(fetch, progress);
    }
    let mut plan = store.plan(fetch)?;
    // Long paths add up to more than is ever sent.
    plan.bytes = plan.bytes.min(fetch.want().full_bytes());
    Ok(plan)
}

#[async_trait]
impl Repository for Embedded {
    async fn repos(&self) -> Result<Vec<RepoName>> {
        self.run(Work::Short, Store::repos).await
    }

    async fn branches(&self, repo: &RepoName) -> Result<Vec<RefRecord>> {
        let repo = repo.clone();
        self.run(Work::Short, move |store| store.branches(&repo))
            .await
    }

    async fn tags(&self, repo: &RepoName) -> Result<Vec<Tag>> {
        let repo = repo.clone();
        self.run(Work::Short, move |store| store.tags(&repo)).await
    }

    async fn create_branch(
        &self,
        repo: &RepoName,
        name: &BranchName,
        commit: CommitId,
        time_ms: i64,
    ) -> Result<RefRecord> {
        let (repo, name) = (repo.clone(), name.clone());
        self.change(Work::Refs, move |store| {
            store.create_branch(&repo, &name, commit, time_ms)
        })
        .await
    }

    async fn delete_branch(
        &self,
        repo: &RepoName,
        name: &BranchName,
        expected: Option<CommitId>,
    ) -> Result<RefRecord> {
        let (repo, name) = (repo.clone(), name.clone());
        self.change(Work::Refs, move |store| {
            store.delete_branch(&repo, &name, expected)
        })
        .await
    }

    async fn unreached_without(&self, repo: &RepoName, name: &BranchName) -> Result<Vec<Version>> {
        let (repo, name) = (repo.clone(), name.clone());
        let list = move |store: &Store| store.unreached_without(&repo, &name);
        self.run(Work::Compute, list).await
    }

    async fn create_tag(
        &self,
        repo: &RepoName,
        name: &BranchName,
        commit: CommitId,
        time_ms: i64,
    ) -> Result<Tag> {
        let (repo, name) = (repo.clone(), name.clone());
        self.change(Work::Refs, move |store| {
            store.create_tag(&repo, &name, commit, time_ms)
        })
        .await
    }

    async fn delete_tag(&self, repo: &RepoName, name: &BranchName) -> Result<Tag> {
        let (repo, name) = (repo.clone(), name.clone());
        self.change(Work::Refs, move |store| store.delete_tag(&repo, &name))
            .await
    }

    async fn resolve(&self, repo: &RepoName, selector: &Selector) -> Result<CommitId> {
        let (repo, selector) = (repo.clone(), selector.clone());
        self.run(Work::Compute, move |store| store.resolve(&repo, &selector))
            .await
    }

    async fn snapshot(&self, repo: &RepoName, id: CommitId) -> Result<Snapshot> {
        let repo = repo.clone();
        self.run(Work::Compute, move |store| store.snapshot_of(&repo, id))
            .await
    }

    async fn history(
        &self,
        repo: &RepoName,
        head: CommitId,
        limit: Option<u64>,
    ) -> Result<BoxStream<'static, Result<Entry>>> {
        self.must_reach(repo, head).await?;
        let going = (self.clone(), Some(head), limit.unwrap_or(u64::MAX));
        let pages = stream::try_unfold(going, |(this, next, left)| async move {
            let Some(head) = next.filter(|_| left > 0) else {
                return Ok(None);
            };
            let most = usize::try_from(left)
                .unwrap_or(usize::MAX)
                .min(HISTORY_PAGE);
            let page = move |store: &Store| history_page(store, head, most);
            let (entries, next) = this.run(Work::Short, page).await?;
            let left = left - entries.len() as u64;
            let entries = stream::iter(entries.into_iter().map(Ok));
            Ok::<_, ClientError>(Some((entries, (this, next, left))))
        });
        Ok(pages.try_flatten().boxed())
    }

    async fn version_stats(&self, repo: &RepoName, version: &Snapshot) -> Result<VersionStats> {
        self.must_reach(repo, version.id).await?;
        let version = version.clone();
        self.run(Work::Compute, move |store| store.version_stats(&version))
            .await
    }

    async fn diff(
        &self,
        repo: &RepoName,
        from: &Snapshot,
        to: &Snapshot,
        progress: Watcher,
    ) -> Result<Vec<TensorDiff>> {
        self.must_reach(repo, from.id).await?;
        self.must_reach(repo, to.id).await?;
        let (from, to) = (from.clone(), to.clone());
        let diff = move |store: &Store, progress: &dyn Progress| store.diff(&from, &to, progress);
        self.watched(Work::Long, progress, diff).await
    }

    async fn revert(
        &self,
        request: &CommitRequest,
        target: CommitId,
        progress: Watcher,
    ) -> Result<CommitOutcome> {
        let request = request.clone();
        let (progress, _stop) = Cancellable::new(progress);
        self.change(Work::Write, move |store| {
            store.revert(&request, target, &progress)
        })
        .await
    }

    async fn plan(
        &self,
        request: &FetchRequest,
        exactly: bool,
        progress: Watcher,
    ) -> Result<FetchPlan> {
        let request = request.clone();
        let work = move |store: &Store, progress: &dyn Progress| {
            plan(store, &store.open_fetch(&request)?, exactly, progress)
        };
        self.watched(Work::Long, progress, work).await
    }

    async fn fetch(
        &self,
        request: FetchRequest,
        from: Position,
    ) -> Result<BoxStream<'static, Result<Chunk>>> {
        let open = move |store: &Store| store.open_fetch(&request).map(Arc::new);
        let fetch = self.run(Work::Compute, open).await?;
        let ahead = Some(self.chunks(&fetch, from));
        let going = (self.clone(), fetch, ahead, VecDeque::<Chunk>::new());
        let chunks = stream::try_unfold(going, |(this, fetch, mut ahead, mut ready)| async move {
            if ready.is_empty()
                && let Some(batch) = ahead.take()
            {
                ready = batch.await.map_err(stopped)??.into();
                ahead = ready.back().map(|last| this.chunks(&fetch, last.next));
            }
            let next = ready.pop_front();
            Ok(next.map(|chunk| (chunk, (this, fetch, ahead, ready))))
        });
        Ok(chunks.boxed())
    }

    async fn file(
        &self,
        repo: &RepoName,
        version: CommitId,
        id: FileId,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        // A file that is not there is told at once.
        let repo = repo.clone();
        let open = move |store: &Store| {
            let version = store.snapshot_of(&repo, version)?;
            let file = store.find_file(&repo, &version, id)?;
            Ok((file, store.file_part(file, 0)?))
        };
        let (file, first) = self.run(Work::Compute, open).await?;
        let going = (self.clone(), 0, Some(first), false);
        let parts = stream::try_unfold(going, move |(this, at, part, complete)| async move {
            if complete {
                return Ok(None);
            }
            let (part, complete) = match part {
                Some(part) => part,
                None => {
                    this.run(Work::Compute, move |store| store.file_part(file, at))
                        .await?
                }
            };
            let next = at + part.len() as u64;
            Ok::<_, ClientError>(Some((Bytes::from(part), (this, next, None, complete))))
        });
        // An empty file has no parts.
        let parts = parts.try_filter(|part| std::future::ready(!part.is_empty()));
        Ok(parts.boxed())
    }

    async fn upload(
        &self,
        target: &UploadTarget,
        source: Arc<dyn UploadSource>,
        progress: Watcher,
    ) -> Result<CommitOutcome> {
        let (place, committed) = (target.clone(), target.clone());
        let done = self
            .run(Work::Compute, move |store| store.committed(&committed))
            .await?;
        if let Some(outcome) = done {
            return Ok(outcome);
        }
        let upload = self
            .run(Work::Compute, move |store| store.open_upload(&place))
            .await?;
        let upload = self.append(upload, &*source).await?;
        let (progress, _stop) = Cancellable::new(progress);
        self.change(Work::Write, move |store| {
            store.finish_upload(upload, &progress)
        })
        .await
    }

    async fn watch(
        &self,
        repo: &RepoName,
        branch: &BranchName,
        after: Option<CommitId>,
    ) -> Result<BoxStream<'static, Result<Entry>>> {
        let parts = (&self.store, &self.workers, &self.changes);
        let mut follower = Follower::new(parts, repo.clone(), branch.clone(), after);
        // Where it begins is settled now, and a branch that is not there is told at once.
        let first = follower.next().await.map_err(refused)?;
        let first = stream::iter(first.map(Ok));
        let others = stream::try_unfold(follower, |mut follower| async move {
            let entry = follower.following(BETWEEN_LOOKS).await.map_err(refused)?;
            Ok(Some((entry, follower)))
        });
        Ok(first.chain(others).boxed())
    }

    async fn store_stats(&self, repo: Option<&RepoName>) -> Result<StoreStats> {
        let repo = repo.cloned();
        let stats =
            move |store: &Store, progress: &dyn Progress| store.stats(repo.as_ref(), progress);
        self.watched(Work::Long, Arc::new(Silent), stats).await
    }

    async fn verify(&self, options: VerifyOptions, progress: Watcher) -> Result<VerifyReport> {
        let verify = move |store: &Store, progress: &dyn Progress| store.verify(&options, progress);
        self.watched(Work::Long, progress, verify).await
    }
}

/// Work on another thread panicked, or was dropped with the runtime.
fn stopped(_: tokio::task::JoinError) -> ClientError {
    refused(Refusal::Failed {
        what: "a thread stopped unexpectedly".to_owned(),
    })
}

/// A checkpoint on disk as what the store commits. The store passes words on; what failed is kept here as it was.
#[derive(Debug)]
pub struct Committed<'a> {
    checkpoint: &'a Checkpoint,
    files: Vec<PlainFile>,
    failure: Mutex<Option<Failure>>,
}

impl<'a> Committed<'a> {
    /// See `checkpoint` as the store does.
    pub fn new(checkpoint: &'a Checkpoint) -> Self {
        let files = checkpoint.files().iter().map(|file| PlainFile {
            path: file.path.clone(),
            mode: file.mode,
            size: file.size,
        });
        Self {
            checkpoint,
            files: files.collect(),
            failure: Mutex::default(),
        }
    }

    /// Why a commit of this checkpoint failed with `error`.
    pub fn failure(&self, error: StoreError) -> Failure {
        match error {
            StoreError::Checkpoint { .. } => self.noted().take().unwrap_or_else(|| error.into()),
            error => error.into(),
        }
    }

    fn in_words(&self, result: Result<()>) -> std::result::Result<(), String> {
        result.map_err(|error| {
            // The first failure ends the commit; other threads may meet more.
            self.noted().get_or_insert_with(|| Failure::from(&error));
            error.to_string()
        })
    }

    fn noted(&self) -> MutexGuard<'_, Option<Failure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl deltaic_store::Checkpoint for Committed<'_> {
    fn schema(&self) -> &Schema {
        self.checkpoint.schema()
    }

    fn header(&self, file: usize) -> &[u8] {
        self.checkpoint.header(file)
    }

    fn read_data(
        &self,
        file: usize,
        offset: u64,
        out: &mut [u8],
    ) -> std::result::Result<(), String> {
        self.in_words(self.checkpoint.read_data(file, offset, out))
    }

    fn files(&self) -> &[PlainFile] {
        &self.files
    }

    fn read_file(
        &self,
        file: usize,
        offset: u64,
        out: &mut [u8],
    ) -> std::result::Result<(), String> {
        self.in_words(self.checkpoint.read_file(file, offset, out))
    }

    fn check_unchanged(&self) -> std::result::Result<(), String> {
        self.in_words(self.checkpoint.check_unchanged())
    }
}
