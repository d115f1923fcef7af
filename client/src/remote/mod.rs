//! A server's repositories, as a [`Repository`]: over gRPC, through cuts, stalls, restarts and failover.
//!
//! Every read, and an upload, is tried again when the connection is lost, and goes on where it was cut off. What changes a ref
//! otherwise is tried again only while the server cannot have done it. Nothing that a server sends is trusted: ids and
//! checksums are checked, sizes bounded, order and completeness kept track of. Where to look:
//!
//! | question | module |
//! |---|---|
//! | how is a server reached, and which of several? | `connections`, `connection`, `endpoints`, `line` |
//! | what does a failure mean, and is it tried again? | `status`, `known`, `silence`, `retry` |
//! | how does an answer go on after a cut? | `stream`, `fetch`, `history`, `upload` |
//! | what is asked? | `versions`, `admin` |

mod admin;
mod connection;
mod connections;
mod endpoints;
mod fetch;
mod history;
mod known;
mod line;
mod options;
mod relay;
mod retry;
mod silence;
mod status;
mod stream;
#[cfg(test)]
mod tests;
mod upload;
mod versions;

pub use line::{Dial, Link, Tcp};
pub use options::RemoteOptions;

use crate::error::Result;
use crate::repository::{Entry, Repository, UploadSource, Watcher};
use crate::source::Split;
use async_trait::async_trait;
use bytes::Bytes;
use connections::Connections;
use deltaic_format::Version;
use deltaic_format::answers::{
    CommitOutcome, CommitRequest, StoreStats, Tag, TensorDiff, VerifyOptions, VerifyReport,
    VersionStats,
};
use deltaic_format::fetch::{Chunk, FetchPlan, FetchRequest, Position};
use deltaic_format::ids::{CommitId, FileId};
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::{RefRecord, Snapshot};
use deltaic_format::revision::Selector;
use deltaic_format::upload::UploadTarget;
use futures::stream::BoxStream;
use std::sync::Arc;

/// The clients of the services, made from `format-spec/proto`.
#[allow(
    missing_docs,
    unused_qualifications,
    clippy::all,
    clippy::unwrap_used,
    rustdoc::broken_intra_doc_links,
    reason = "made from the proto files, which say what the calls mean"
)]
#[doc(hidden)]
pub mod rpc {
    tonic::include_proto!("deltaic.v1");
}

/// Repositories on a server, or on one of several that serve the same.
///
/// Cheap to clone; clones share their connections, which are made when they are first needed and closed with the last clone and
/// the last answer that uses them. Needs a tokio runtime with time and I/O.
#[derive(Debug, Clone)]
pub struct Remote {
    connections: Arc<Connections>,
}

impl Remote {
    /// The repositories of these servers. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// If there is no endpoint, or one is not of the form `http://HOST:PORT`.
    pub fn new(options: RemoteOptions) -> Result<Self> {
        Self::with_connector(options, Arc::new(Tcp))
    }

    /// The same over links of the caller's own.
    ///
    /// # Errors
    ///
    /// As for [`Remote::new`].
    pub fn with_connector(options: RemoteOptions, dial: Arc<dyn Dial>) -> Result<Self> {
        let connections = Arc::new(Connections::new(options, dial)?);
        Ok(Self { connections })
    }

    /// The servers' endpoints.
    pub fn endpoints(&self) -> &[String] {
        &self.connections.options().endpoints
    }
}

#[async_trait]
impl Repository for Remote {
    async fn repos(&self) -> Result<Vec<RepoName>> {
        self.repo_names().await
    }

    async fn branches(&self, repo: &RepoName) -> Result<Vec<RefRecord>> {
        self.branch_records(repo).await
    }

    async fn tags(&self, repo: &RepoName) -> Result<Vec<Tag>> {
        self.tag_list(repo).await
    }

    async fn create_branch(
        &self,
        repo: &RepoName,
        name: &BranchName,
        commit: CommitId,
        time_ms: i64,
    ) -> Result<RefRecord> {
        self.make_branch(repo, name, commit, time_ms).await
    }

    async fn delete_branch(
        &self,
        repo: &RepoName,
        name: &BranchName,
        expected: Option<CommitId>,
    ) -> Result<RefRecord> {
        self.remove_branch(repo, name, expected).await
    }

    async fn unreached_without(&self, repo: &RepoName, name: &BranchName) -> Result<Vec<Version>> {
        self.unreached(repo, name).await
    }

    async fn create_tag(
        &self,
        repo: &RepoName,
        name: &BranchName,
        commit: CommitId,
        time_ms: i64,
    ) -> Result<Tag> {
        self.make_tag(repo, name, commit, time_ms).await
    }

    async fn delete_tag(&self, repo: &RepoName, name: &BranchName) -> Result<Tag> {
        self.remove_tag(repo, name).await
    }

    async fn resolve(&self, repo: &RepoName, selector: &Selector) -> Result<CommitId> {
        self.commit_of(repo, selector).await
    }

    async fn snapshot(&self, repo: &RepoName, id: CommitId) -> Result<Snapshot> {
        self.snapshot_of(repo, id).await
    }

    async fn history(
        &self,
        repo: &RepoName,
        head: CommitId,
        limit: Option<u64>,
    ) -> Result<BoxStream<'static, Result<Entry>>> {
        self.history_of(repo, head, limit).await
    }

    async fn version_stats(&self, repo: &RepoName, version: &Snapshot) -> Result<VersionStats> {
        self.stats_of(repo, version).await
    }

    async fn diff(
        &self,
        repo: &RepoName,
        from: &Snapshot,
        to: &Snapshot,
        progress: Watcher,
    ) -> Result<Vec<TensorDiff>> {
        self.differences(repo, (from, to), &progress).await
    }

    async fn revert(
        &self,
        request: &CommitRequest,
        target: CommitId,
        progress: Watcher,
    ) -> Result<CommitOutcome> {
        self.revert_to(request, target, &progress).await
    }

    async fn plan(
        &self,
        request: &FetchRequest,
        exactly: bool,
        progress: Watcher,
    ) -> Result<FetchPlan> {
        self.plan_of(request, exactly, &progress).await
    }

    async fn fetch(
        &self,
        request: FetchRequest,
        from: Position,
    ) -> Result<BoxStream<'static, Result<Chunk>>> {
        self.fetch_chunks(&request, from).await
    }

    fn split(&self) -> Split {
        let options = self.connections.options();
        Split {
            at_a_time: options.connections,
            bytes: options.part_bytes,
        }
    }

    async fn file(
        &self,
        repo: &RepoName,
        version: CommitId,
        id: FileId,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        self.file_parts(repo, version, id).await
    }

    async fn upload(
        &self,
        target: &UploadTarget,
        source: Arc<dyn UploadSource>,
        progress: Watcher,
    ) -> Result<CommitOutcome> {
        self.send(target, source, progress).await
    }

    async fn watch(
        &self,
        repo: &RepoName,
        branch: &BranchName,
        after: Option<CommitId>,
    ) -> Result<BoxStream<'static, Result<Entry>>> {
        self.watch_branch(repo, branch, after).await
    }

    async fn store_stats(&self, repo: Option<&RepoName>) -> Result<StoreStats> {
        self.sizes(repo).await
    }

    async fn verify(&self, options: VerifyOptions, progress: Watcher) -> Result<VerifyReport> {
        self.check(options, &progress).await
    }
}
