//! The repositories of a store or server for commands, which do one thing after the other: each call waits for its end,
//! unless the user stops it.

use crate::interrupt::Interrupt;
use deltaic_client::{ClientError, Entry, Repository, RepositorySource, Result, Watcher};
use deltaic_format::Version;
use deltaic_format::answers::{
    CommitOutcome, CommitRequest, StoreStats, Tag, TensorDiff, VerifyOptions, VerifyReport,
    VersionStats,
};
use deltaic_format::fetch::{FetchPlan, FetchRequest};
use deltaic_format::ids::CommitId;
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::{Commit, RefRecord, Snapshot};
use deltaic_format::revision::Selector;
use futures::StreamExt;
use futures::stream::BoxStream;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// How long an operation that looks after the user's wish to stop itself is given to end in order.
const ORDERLY_END: Duration = Duration::from_secs(2);

/// The repositories of a store or server. Errors of all calls are those of [`Repository`]'s, or
/// [`ClientError::Interrupted`] as soon as the user asks to stop.
#[derive(Clone)]
pub struct Repositories {
    repository: Arc<dyn Repository>,
    runtime: Handle,
    interrupt: Interrupt,
    watcher: Watcher,
}

impl fmt::Debug for Repositories {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Repositories")
            .field(&self.repository)
            .finish()
    }
}

impl Repositories {
    /// Those of `repository`, whose calls run on `runtime` until `interrupt`; long ones tell `watcher` how they go.
    pub fn new(
        repository: Arc<dyn Repository>,
        runtime: Handle,
        interrupt: Interrupt,
        watcher: Watcher,
    ) -> Self {
        Self {
            repository,
            runtime,
            interrupt,
            watcher,
        }
    }

    /// What is behind it.
    pub fn shared(&self) -> Arc<dyn Repository> {
        self.repository.clone()
    }

    /// Who hears how long calls go.
    pub fn watcher(&self) -> Watcher {
        self.watcher.clone()
    }

    /// A repository as what replicas and exports take versions from.
    pub fn source(&self, repo: &RepoName) -> RepositorySource {
        let runtime = self.runtime.clone();
        RepositorySource::new(self.shared(), repo.clone(), runtime, self.watcher())
    }

    /// Wait for `future`; it is given up as soon as the user asks to stop.
    ///
    /// # Errors
    ///
    /// Its own, or that the user stopped it.
    pub fn wait<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                result = future => result,
                () = self.interrupt.wait() => Err(ClientError::Interrupted),
            }
        })
    }

    /// Wait for the end of `future`, which ends by itself when its watcher says that the user wants to stop, so that
    /// what it has done by then is known; one that does not is given up.
    ///
    /// # Errors
    ///
    /// As of [`wait`](Self::wait).
    pub fn wait_for_end<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime.block_on(async {
            let mut future = pin!(future);
            tokio::select! {
                biased;
                result = &mut future => result,
                () = self.interrupt.wait() => match timeout(ORDERLY_END, future).await {
                    Ok(result) => result,
                    Err(_) => Err(ClientError::Interrupted),
                },
            }
        })
    }

    /// Wait for the next item of a stream; `None` at its end.
    ///
    /// # Errors
    ///
    /// As of [`wait`](Self::wait).
    pub fn next<T>(&self, stream: &mut BoxStream<'static, Result<T>>) -> Result<Option<T>> {
        self.wait(async { stream.next().await.transpose() })
    }

    /// All repositories, by name.
    ///
    /// # Errors
    ///
    /// See [`Repositories`].
    pub fn repos(&self) -> Result<Vec<RepoName>> {
        self.wait(self.repository.repos())
    }

    /// The branches of a repository, by name.
    ///
    /// # Errors
    ///
    /// See [`Repositories`].
    pub fn branches(&self, repo: &RepoName) -> Result<Vec<RefRecord>> {
        self.wait(self.repository.branches(repo))
    }

    /// A branch, if the repository has it.
    ///
    /// # Errors
    ///
    /// See [`Repositories`].
    pub fn branch(&self, repo: &RepoName, name: &BranchName) -> Result<Option<RefRecord>> {
        let mut branches = self.branches(repo)?.into_iter();
        Ok(branches.find(|record| record.branch == *name))
    }

    /// The tags of a repository, by name.
    ///
    /// # Errors
    ///
    /// See [`Repositories`].
    pub fn tags(&self, repo: &RepoName) -> Result<Vec<Tag>> {
        self.wait(self.repository.tags(repo))
    }

    /// Make a branch that stands at a commit.
    ///
    /// # Errors
    ///
    /// See [`Repositories`].
    pub fn create_branch(
        &self,
        repo: &RepoName,
        name: &BranchName,
        commit: CommitId,
        time_ms: i64,
    ) -> Result<RefRecord> {
        self.wait(self.repository.create_branch(repo, name, commit, time_ms))
    }

    /// Delete a branch, which must stand at `expected` if that is given.
    ///
    /// # Errors
    ///
    /// See [`Repositories`].
    pub fn delete_branch(
        &self,
        repo: &RepoName,
        name: &BranchName,
        expected: Option<CommitId>,
    ) -> Result<RefRecord> {
        self.wait(self.repository.delete_branch(repo, name, expected))
    }

    /// The versions that no ref would reach any more without a branch.
    ///
    /// # Errors
    ///
    /// See [`Repositories`].
    pub fn unreached_without(&self, repo: &RepoName, name: &BranchName) -> Result<Vec<Version>> {
        self.wait(self.repository.unreached_without(repo, name))
    }

    /// Name a commit for ever.
    ///
    /// # Errors
    ///
    /// See [`Repositories`].
    pub fn create_tag(
        &self,
        repo: &RepoName,
        name: &BranchName,
        commit: CommitId,
        time_ms: i64,
    ) -> Result<Tag> {
        self.wait(self.repository.create_tag(repo, name, commit, time_ms))
    }

    /// Delete a tag.
    ///
    /// # Errors
    ///
    /// See [`Repositories`].
    pub fn delete_tag(&self, repo: &RepoName, name: &BranchName) -> Result<Tag> {
        self.wait(self.repository.delete_tag(repo, name))
    }

    /// The commit that a revision means.
    ///
    /// # Errors
    ///
    /// See [`Repositories`].
    pub fn resolve(&self, repo: &RepoName, selector: &Selector) -> Result<CommitId> {
        self.wait(self.repository.resolve(repo, selector))
    }

    /// A commit with its tree and schema.
    ///
    /// # Errors
    ///
    /// See [`Repositories`].
    pub fn snapshot(&self, repo: &RepoName, id: CommitId) -> Result<Snapshot> {
        self.wait(self.repository.snapshot(repo, id))
    }

    /// A commit.
    ///
    /// # Errors
    ///
    /// See [`Repositories`].
    pub fn commit(&self, repo: &RepoName, id: CommitId) -> Result<Commit> {
        match self.history(repo, id, Some(1)).next() {
            Some(entry) => Ok(entry?.1),
            // A history begins with its head.
            None => Ok(self.snapshot(repo, id)?.commit),
        }
    }

    /// A commit and its first parents, newest first, at most `limit` of them. What cannot be read is the last item.
    pub fn history(&self, repo: &RepoName, head: CommitId, limit: Option<u64>) -> History<'_> {
        History {
            repositories: self,
            stream: match self.wait(self.repository.history(repo, head, limit)) {
                Ok(stream) => Ok(Some(stream)),
                Err(error) => Err(Some(error)),
            },
        }
    }

    /// What a version took against its first parent.
    ///
    /// # Errors
    ///
    /// See [`Repositories`].
    pub fn version_stats(&self, repo: &RepoName, version: &Snapshot) -> Result<VersionStats> {
        self.wait(self.repository.version_stats(repo, version))
    }

    /// The tensors that differ between two versions.
    ///
    /// # Errors
    ///
    /// See [`Repositories`].
    pub fn diff(&self, repo: &RepoName, from: &Snapshot, to: &Snapshot) -> Result<Vec<TensorDiff>> {
        self.wait_for_end(self.repository.diff(repo, from, to, self.watcher()))
    }

    /// Commit the tree of `target` as the next version of a branch.
    ///
    /// # Errors
    ///
    /// See [`Repositories`].
    pub fn revert(&self, request: &CommitRequest, target: CommitId) -> Result<CommitOutcome> {
        self.wait_for_end(self.repository.revert(request, target, self.watcher()))
    }

    /// What a fetch would take, to the byte.
    ///
    /// # Errors
    ///
    /// See [`Repositories`].
    pub fn plan_exactly(&self, request: &FetchRequest) -> Result<FetchPlan> {
        self.wait_for_end(self.repository.plan(request, true, self.watcher()))
    }

    /// The commits of a branch after `after`, then each new one as it is made.
    ///
    /// # Errors
    ///
    /// See [`Repositories`].
    pub fn watch(
        &self,
        repo: &RepoName,
        branch: &BranchName,
        after: Option<CommitId>,
    ) -> Result<BoxStream<'static, Result<Entry>>> {
        self.wait(self.repository.watch(repo, branch, after))
    }

    /// Sizes of all, or of one repository.
    ///
    /// # Errors
    ///
    /// See [`Repositories`].
    pub fn stats(&self, repo: Option<&RepoName>) -> Result<StoreStats> {
        self.wait(self.repository.store_stats(repo))
    }

    /// Check all that branches and tags reach.
    ///
    /// # Errors
    ///
    /// See [`Repositories`].
    pub fn verify(&self, options: VerifyOptions) -> Result<VerifyReport> {
        self.wait_for_end(self.repository.verify(options, self.watcher()))
    }
}

/// A history that is being read.
pub struct History<'a> {
    repositories: &'a Repositories,
    /// Its rest, or why there is none, until that is told.
    stream: Result<Option<BoxStream<'static, Result<Entry>>>, Option<ClientError>>,
}

impl Iterator for History<'_> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.stream {
            Err(error) => error.take().map(Err),
            Ok(rest) => {
                let next = self.repositories.next(rest.as_mut()?).transpose();
                if !matches!(next, Some(Ok(_))) {
                    *rest = None;
                }
                next
            }
        }
    }
}
