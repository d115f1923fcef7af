//! Versions wherever they are kept: one interface for a store in this process and for a server.

use crate::error::Result;
use crate::source::Split;
use async_trait::async_trait;
use bytes::Bytes;
use deltaic_format::Version;
use deltaic_format::answers::{
    CommitOutcome, CommitRequest, StoreStats, Tag, TensorDiff, VerifyOptions, VerifyReport,
    VersionStats,
};
use deltaic_format::fetch::{Chunk, FetchPlan, FetchRequest, Position};
use deltaic_format::ids::{CommitId, FileId};
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::{Commit, RefRecord, Snapshot};
use deltaic_format::progress::Progress;
use deltaic_format::revision::Selector;
use deltaic_format::upload::{UploadItem, UploadPosition, UploadTarget};
use futures::stream::BoxStream;
use std::fmt;
use std::sync::Arc;

/// Told how a long operation goes, and asked whether to stop.
pub type Watcher = Arc<dyn Progress>;

/// A commit with its id.
pub type Entry = (CommitId, Commit);

/// Access to repositories, in a store of this process or on a server; each call names the one that it is about.
///
/// Every future and stream may be dropped at any time: what was asked for is then given up, and nothing half-done is
/// visible. Errors are [`ClientError::Refused`](crate::ClientError::Refused) where the store says no, the same whether it is
/// here or far away; a server adds those of the way to it.
#[async_trait]
pub trait Repository: fmt::Debug + Send + Sync {
    /// All repositories, by name.
    async fn repos(&self) -> Result<Vec<RepoName>>;

    /// The branches of a repository, by name.
    async fn branches(&self, repo: &RepoName) -> Result<Vec<RefRecord>>;

    /// The tags of a repository, by name.
    async fn tags(&self, repo: &RepoName) -> Result<Vec<Tag>>;

    /// Make a branch that stands at a commit.
    async fn create_branch(
        &self,
        repo: &RepoName,
        name: &BranchName,
        commit: CommitId,
        time_ms: i64,
    ) -> Result<RefRecord>;

    /// Delete a branch, which must stand at `expected` if that is given; its name can go on later where it ended.
    async fn delete_branch(
        &self,
        repo: &RepoName,
        name: &BranchName,
        expected: Option<CommitId>,
    ) -> Result<RefRecord>;

    /// The versions that no ref would reach any more without a branch.
    async fn unreached_without(&self, repo: &RepoName, name: &BranchName) -> Result<Vec<Version>>;

    /// Name a commit for ever.
    async fn create_tag(
        &self,
        repo: &RepoName,
        name: &BranchName,
        commit: CommitId,
        time_ms: i64,
    ) -> Result<Tag>;

    /// Delete a tag.
    async fn delete_tag(&self, repo: &RepoName, name: &BranchName) -> Result<Tag>;

    /// The commit that a revision means.
    async fn resolve(&self, repo: &RepoName, selector: &Selector) -> Result<CommitId>;

    /// A commit with its tree and schema.
    async fn snapshot(&self, repo: &RepoName, id: CommitId) -> Result<Snapshot>;

    /// A commit and its first parents, newest first, at most `limit` of them.
    async fn history(
        &self,
        repo: &RepoName,
        head: CommitId,
        limit: Option<u64>,
    ) -> Result<BoxStream<'static, Result<Entry>>>;

    /// What a version took against its first parent.
    async fn version_stats(&self, repo: &RepoName, version: &Snapshot) -> Result<VersionStats>;

    /// The tensors that differ between two versions, in the second one's order, removed ones last.
    async fn diff(
        &self,
        repo: &RepoName,
        from: &Snapshot,
        to: &Snapshot,
        progress: Watcher,
    ) -> Result<Vec<TensorDiff>>;

    /// Commit the tree of `target` as the next version of a branch.
    async fn revert(
        &self,
        request: &CommitRequest,
        target: CommitId,
        progress: Watcher,
    ) -> Result<CommitOutcome>;

    /// What a fetch would take; with `exactly`, its patches are composed and encoded to know their bytes.
    async fn plan(
        &self,
        request: &FetchRequest,
        exactly: bool,
        progress: Watcher,
    ) -> Result<FetchPlan>;

    /// "Give me N, I hold M": everything that turns what the request says is held into what it wants, in the order that
    /// [`deltaic_format::fetch`] fixes, from `from` on: the default, or the `next` of a chunk that came. Ends without an
    /// error only if all of it came.
    async fn fetch(
        &self,
        request: FetchRequest,
        from: Position,
    ) -> Result<BoxStream<'static, Result<Chunk>>>;

    /// How large fetches are best asked for.
    fn split(&self) -> Split {
        Split::NONE
    }

    /// The bytes of a file of a version, a safetensors header or one that is no weight file, in bounded parts. Whoever
    /// takes them checks their hash.
    async fn file(
        &self,
        repo: &RepoName,
        version: CommitId,
        id: FileId,
    ) -> Result<BoxStream<'static, Result<Bytes>>>;

    /// Make a version of what `source` sends. Doing it again, also after a lost answer, is success with the same
    /// outcome.
    async fn upload(
        &self,
        target: &UploadTarget,
        source: Arc<dyn UploadSource>,
        progress: Watcher,
    ) -> Result<CommitOutcome>;

    /// The commits of a branch after `after`, which it has, oldest first, and then each new one as it is made; without
    /// `after` only those made from now on. None is left out and none comes twice. The stream ends only with an error.
    async fn watch(
        &self,
        repo: &RepoName,
        branch: &BranchName,
        after: Option<CommitId>,
    ) -> Result<BoxStream<'static, Result<Entry>>>;

    /// Sizes of the whole store, or of one repository.
    async fn store_stats(&self, repo: Option<&RepoName>) -> Result<StoreStats>;

    /// Check all that branches and tags reach.
    async fn verify(&self, options: VerifyOptions, progress: Watcher) -> Result<VerifyReport>;
}

/// Where the items of an upload come from: always the same ones in the same order.
pub trait UploadSource: fmt::Debug + Send + Sync {
    /// The commit that the items make, once it is known: then a receiver that has it need not be sent anything.
    fn commit(&self) -> Option<CommitId> {
        None
    }

    /// The items after the one at a position that this source gave, or all of them; each with its own position.
    fn items(
        &self,
        after: Option<UploadPosition>,
    ) -> BoxStream<'static, Result<(UploadPosition, UploadItem)>>;
}
