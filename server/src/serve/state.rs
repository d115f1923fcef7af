//! What the services of one server share.

use super::calls::Calls;
use super::fetch::Chunks;
use super::leases::Registry;
use super::shared::Coalesced;
use super::upload::Uploads;
use super::work::{Work, Workers};
use super::{ServeOptions, Shutdown};
use deltaic_format::ids::CommitId;
use deltaic_format::name::RepoName;
use deltaic_format::object::Snapshot;
use deltaic_format::refusal::Refusal;
use deltaic_store::{Store, StoreError};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// When it may be worth asking again for what there are too many of.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// Tensors of the versions that are kept in memory.
const KEPT_TENSORS: u64 = 200_000;

/// What the services share.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) store: Arc<Store>,
    pub(crate) options: ServeOptions,
    pub(crate) shutdown: Shutdown,
    pub(crate) workers: Workers,
    pub(crate) calls: Calls,
    pub(crate) chunks: Chunks,
    pub(crate) uploads: Uploads,
    pub(crate) leases: Registry,
    snapshots: Snapshots,
    transfers: Arc<Semaphore>,
    watches: Arc<Semaphore>,
}

/// The refusal of what would have taken too long; another time it may not.
pub(crate) fn busy(after: Duration) -> Refusal {
    Refusal::Exhausted {
        what: format!("the server was busy for {} s", after.as_secs()),
        retry_after: Some(RETRY_AFTER),
    }
}

fn semaphore(places: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS)))
}

impl State {
    /// Of a server for `store`.
    pub(crate) fn new(store: Arc<Store>, options: ServeOptions, shutdown: &Shutdown) -> Self {
        let workers = Workers::new();
        let calls = Calls::default();
        let snapshots = Snapshots::new(store.clone(), workers.clone());
        Self {
            chunks: Chunks::new(snapshots.clone(), options.cache_bytes),
            uploads: Uploads::new(options.max_uploads),
            leases: Registry::default(),
            snapshots,
            transfers: semaphore(options.max_transfers),
            watches: semaphore(options.max_watches),
            shutdown: shutdown.clone(),
            store,
            options,
            workers,
            calls,
        }
    }

    /// Do something with the store when it is its turn.
    pub(crate) async fn with_store<T: Send + 'static>(
        &self,
        kind: Work,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let store = self.store.clone();
        self.workers.run(kind, move || work(&store)).await
    }

    /// Change refs, by a commit or without one, when it is one's turn, and say so to those who follow them.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        kind: Work,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let changes = self.options.changes.clone();
        // On the thread, so that it is said also if whoever asked has gone away.
        let change = move |store: &Store| work(store).inspect(|_| changes.made());
        self.with_store(kind, change).await
    }

    /// Change refs without a commit, in time. What has begun is waited for: it is never refused and then done.
    pub(crate) async fn change_in_time<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let settled = Arc::new(AtomicBool::new(false));
        let begins = settled.clone();
        let work = move |store: &Store| match begins.swap(true, Ordering::AcqRel) {
            true => Err(StoreError::Interrupted),
            false => work(store),
        };
        let mut change = pin!(self.change(Work::Refs, work));
        let most = self.options.request_timeout;
        match tokio::time::timeout(most, &mut change).await {
            Ok(changed) => changed,
            Err(_) if settled.swap(true, Ordering::AcqRel) => change.await,
            Err(_) => Err(busy(most)),
        }
    }

    /// Answer at once, or not at all: what waits in line for too long is given up.
    pub(crate) async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<T, Refusal> {
        let most = self.options.request_timeout;
        tokio::time::timeout(most, answer)
            .await
            .unwrap_or_else(|_| Err(busy(most)))
    }

    /// A version that a repository has.
    pub(crate) async fn snapshot(
        &self,
        repo: &RepoName,
        id: CommitId,
    ) -> Result<Arc<Snapshot>, Refusal> {
        self.must_reach(repo, id).await?;
        self.snapshots.get(id).await
    }

    /// Fails unless a repository has a version.
    pub(crate) async fn must_reach(&self, repo: &RepoName, id: CommitId) -> Result<(), Refusal> {
        let repo = repo.clone();
        let reached = move |store: &Store| store.must_reach(&repo, id);
        self.with_store(Work::Short, reached).await
    }

    /// A place among those who are sent something long.
    pub(crate) fn transfer(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        Arc::clone(&self.transfers)
            .try_acquire_owned()
            .map_err(|_| Refusal::Exhausted {
                what: format!(
                    "the server sends {} answers already, as many as it may",
                    self.options.max_transfers
                ),
                retry_after: Some(RETRY_AFTER),
            })
    }

    /// A place among those who follow a branch.
    pub(crate) fn watch(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        Arc::clone(&self.watches)
            .try_acquire_owned()
            .map_err(|_| Refusal::Exhausted {
                what: format!(
                    "{} branches are being followed already, as many as may be",
                    self.options.max_watches
                ),
                retry_after: Some(RETRY_AFTER),
            })
    }
}

/// Versions, read once for all who need them at a time, and kept. Whether whoever asks may have one is not asked here.
#[derive(Debug, Clone)]
pub(crate) struct Snapshots {
    pub(crate) store: Arc<Store>,
    pub(crate) workers: Workers,
    kept: Coalesced<CommitId, Arc<Snapshot>>,
}

impl Snapshots {
    fn new(store: Arc<Store>, workers: Workers) -> Self {
        let weight = |snapshot: &Arc<Snapshot>| snapshot.tree.tensors.len() as u64 + 1;
        Self {
            store,
            workers,
            kept: Coalesced::new(KEPT_TENSORS, weight),
        }
    }

    /// One of them.
    pub(crate) async fn get(&self, id: CommitId) -> Result<Arc<Snapshot>, Refusal> {
        let (workers, store) = (self.workers.clone(), self.store.clone());
        let read = move || async move {
            workers
                .run(Work::Compute, move || store.snapshot(id).map(Arc::new))
                .await
        };
        self.kept.get(id, read).await
    }
}
