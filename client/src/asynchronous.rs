//! Pulls and exports for callers that do not block: the work goes on in a thread for blocking work.

use crate::error::{ClientError, Result};
use crate::export::{ExportOutcome, export as export_now};
use crate::replica::{PullOptions, PullOutcome, ReplicaFolder};
use crate::repository::{Repository, Watcher};
use crate::source::RepositorySource;
use deltaic_format::name::{RepoName, TreePath};
use deltaic_format::object::Snapshot;
use deltaic_format::progress::Progress;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Make `folder` hold `want`, as [`ReplicaFolder::pull`] does, and give it back.
///
/// Dropping the future makes the work stop at its next check: the version that was held stays, unless writing has begun,
/// which then goes on to its end. The folder is locked until it has stopped.
///
/// # Errors
///
/// As [`ReplicaFolder::pull`].
pub async fn pull(
    mut folder: ReplicaFolder,
    repository: Arc<dyn Repository>,
    repo: RepoName,
    want: Snapshot,
    options: PullOptions,
    progress: Watcher,
) -> Result<(ReplicaFolder, PullOutcome)> {
    let (progress, _stop) = stoppable(progress);
    let source = RepositorySource::new(repository, repo, Handle::current(), Arc::clone(&progress));
    blocking(move || {
        let outcome = folder.pull(&source, &want, &options, &*progress)?;
        Ok((folder, outcome))
    })
    .await
}

/// Write the files of `want`, or those at or below `only`, to `folder`, as [`export`](fn@crate::export) does.
///
/// Dropping the future makes the work stop at its next check, and nothing is left of it.
///
/// # Errors
///
/// As [`export`](fn@crate::export).
pub async fn export(
    repository: Arc<dyn Repository>,
    repo: RepoName,
    want: Snapshot,
    only: Option<TreePath>,
    folder: PathBuf,
    progress: Watcher,
) -> Result<ExportOutcome> {
    let (progress, _stop) = stoppable(progress);
    let source = RepositorySource::new(repository, repo, Handle::current(), Arc::clone(&progress));
    blocking(move || export_now(&source, &want, only.as_ref(), &folder, &*progress)).await
}

/// Do `work` in a thread for blocking work.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is being shut down, and the work was not begun.
            Err(_) => Err(ClientError::Interrupted),
        },
    }
}

/// A watcher's progress, which also wants to stop once its guard is dropped.
struct Stoppable {
    watcher: Watcher,
    stop: CancellationToken,
}

pub(crate) fn stoppable(watcher: Watcher) -> (Watcher, DropGuard) {
    let stop = CancellationToken::new();
    let guard = stop.clone().drop_guard();
    (Arc::new(Stoppable { watcher, stop }), guard)
}

impl Progress for Stoppable {
    fn phase(&self, name: &'static str, total: Option<u64>) {
        self.watcher.phase(name, total);
    }

    fn advance(&self, bytes: u64) {
        self.watcher.advance(bytes);
    }

    fn cancelled(&self) -> bool {
        self.stop.is_cancelled() || self.watcher.cancelled()
    }
}
