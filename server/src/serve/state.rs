//! What the services of one server share.

use super::calls::Calls;
use super::fetch::Chunks;
use super::leases::Registry;
use super::shared::Coalesced;
use super::upload::Uploads;
use super::work::{Work, Workers};
use super::{ServeOptions, Shutdown};
use deltaic_format::ids::CommitId;
use deltaic_format::object::Snapshot;
use deltaic_format::refusal::Refusal;
use deltaic_store::{Store, StoreError};
use std::future::Future;
use std::sync::Arc;
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
    snapshots: Coalesced<CommitId, Arc<Snapshot>>,
    transfers: Arc<Semaphore>,
}

impl State {
    /// Of a server for `store`.
    pub(crate) fn new(store: Arc<Store>, options: ServeOptions, shutdown: &Shutdown) -> Self {
        let workers = Workers::new();
        let calls = Calls::default();
        let weight = |snapshot: &Arc<Snapshot>| snapshot.tree.tensors.len() as u64 + 1;
        Self {
            chunks: Chunks::new(store.clone(), workers.clone(), options.cache_bytes),
            uploads: Uploads::new(options.max_uploads),
            leases: Registry::default(),
            snapshots: Coalesced::new(KEPT_TENSORS, weight),
            transfers: Arc::new(Semaphore::new(
                options.max_transfers.min(Semaphore::MAX_PERMITS),
            )),
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

    /// Change refs when it is one's turn, and say so to those who follow them.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let changes = self.options.changes.clone();
        // On the thread, so that it is said also if whoever asked has gone away.
        let change = move |store: &Store| work(store).inspect(|_| changes.made());
        self.with_store(Work::Write, change).await
    }

    /// Answer at once, or not at all: what waits in line for too long is given up.
    pub(crate) async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<T, Refusal> {
        let most = self.options.request_timeout;
        tokio::time::timeout(most, answer)
            .await
            .unwrap_or_else(|_| {
                Err(Refusal::Unavailable {
                    what: format!("the server was busy for {} s", most.as_secs()),
                })
            })
    }

    /// A version.
    pub(crate) async fn snapshot(&self, id: CommitId) -> Result<Arc<Snapshot>, Refusal> {
        let (workers, store) = (self.workers.clone(), self.store.clone());
        let read = move || async move {
            workers
                .run(Work::Compute, move || store.snapshot(id).map(Arc::new))
                .await
        };
        self.snapshots.get(id, read).await
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
}
