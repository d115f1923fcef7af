//! What a store, in this process or behind a server, is told and answers: the vocabulary that both share.

use crate::ids::CommitId;
use crate::name::{BranchName, RepoName, TreePath};
use crate::object::TensorSpec;
use crate::refusal::Refusal;
use crate::version::Version;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag {
    /// Its name.
    pub name: BranchName,
    /// What it names, for ever.
    pub commit: CommitId,
    /// When it was made, milliseconds since 1970, UTC.
    pub time_ms: i64,
}

/// Where the caller expects the branch to stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// It has no commit yet.
    Nothing,
    /// At this commit.
    Commit(CommitId),
}

/// What to commit where, and what to say of it. The time is the caller's, so that the same request makes the
/// same commit on the same parent.
#[derive(Debug, Clone)]
pub struct CommitRequest {
    /// The repository; made if it is not there.
    pub repo: RepoName,
    /// The branch; made if the repository is new.
    pub branch: BranchName,
    /// What its maker says.
    pub message: String,
    /// Metadata, such as `step = 1200`.
    pub meta: BTreeMap<String, String>,
    /// Milliseconds since 1970, UTC.
    pub time_ms: i64,
    /// Fail unless the branch stands here.
    pub expect: Option<Expect>,
}

/// A commit that is durable and visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitOutcome {
    /// Its id.
    pub id: CommitId,
    /// Its number.
    pub version: Version,
    /// Elements of all tensors.
    pub elements: u64,
    /// Elements that changed against the first parent; all of them where there is none to compare with.
    pub changed: u64,
    /// Bytes of all files.
    pub full_bytes: u64,
    /// What the changes take as stored, in their smallest coding.
    pub patch_bytes: u64,
    /// What the store grew by: rows and packs.
    pub new_bytes: u64,
}

/// What one tensor of a version took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TensorStats {
    /// Elements that changed against the first parent; all where that has no such tensor.
    pub changed: u64,
    /// What the change takes as stored, in its smallest coding.
    pub patch_bytes: u64,
}

/// What a version took.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VersionStats {
    /// Elements of all tensors.
    pub elements: u64,
    /// Those that changed against the first parent.
    pub changed: u64,
    /// Bytes of all files.
    pub full_bytes: u64,
    /// What the changes take as stored, in their smallest coding.
    pub patch_bytes: u64,
    /// What the store grew by when the version was made; `None` if it was not made here.
    pub new_bytes: Option<u64>,
    /// The same per tensor, in the tree's order.
    pub tensors: Vec<TensorStats>,
}

/// What a store, or one repository of it, holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreStats {
    /// Repositories.
    pub repos: u64,
    /// Branches.
    pub branches: u64,
    /// Commits that branches and tags reach.
    pub commits: u64,
    /// Distinct contents of tensors, and of large files, that those commits have.
    pub contents: u64,
    /// Bytes of all their files, version by version, as if each were stored whole.
    pub full_bytes: u64,
    /// Bytes on disk of the whole store.
    pub store_bytes: u64,
    /// Bytes of the bases of those contents.
    pub base_bytes: u64,
    /// Bytes of the edges between those contents, as stored.
    pub edge_bytes: u64,
    /// Edges between the newest versions' contents and their bases, at most.
    pub longest_chain: u64,
}

/// How a tensor differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorChange {
    /// Only the second version has it.
    Added,
    /// Only the first version has it.
    Removed,
    /// Its class or size changed, so that no patch leads from one to the other.
    Retyped,
    /// Some elements changed.
    Changed,
}

impl TensorChange {
    /// The kind in one word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Retyped => "retyped",
            Self::Changed => "changed",
        }
    }
}

/// One tensor that differs between two versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorDiff {
    /// Its weight file.
    pub path: TreePath,
    /// What it is, in the second version if that has it.
    pub spec: TensorSpec,
    /// How it differs.
    pub change: TensorChange,
    /// Elements that differ; all of them unless it is [`TensorChange::Changed`].
    pub changed: u64,
    /// Elements that moved up by one representable value.
    pub plus_one: u64,
    /// Elements that moved down by one.
    pub minus_one: u64,
    /// What the change takes: the composed patch encoded alone, or the whole content where that is smaller.
    pub patch_bytes: u64,
}

/// What to check beyond structure.
#[derive(Debug, Clone, Copy, Default)]
pub struct VerifyOptions {
    /// Share of the contents that are read and hashed, in percent; the choice depends on their ids alone.
    pub read_data_percent: Option<f64>,
}

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// `"missing"`, `"damaged"` or `"disconnected"`.
    pub kind: Cow<'static, str>,
    /// Which object.
    pub object: String,
    /// What is wrong with it.
    pub what: String,
}

/// What was checked and found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Commits checked.
    pub commits: u64,
    /// Contents checked.
    pub contents: u64,
    /// Edges checked.
    pub edges: u64,
    /// Contents read and hashed.
    pub contents_read: u64,
    /// Bytes of those.
    pub bytes_read: u64,
    /// What is wrong; empty if all is well.
    pub problems: Vec<Problem>,
}

impl VerifyReport {
    /// Whether nothing is wrong.
    pub fn ok(&self) -> bool {
        self.problems.is_empty()
    }
}

impl CommitRequest {
    /// Whether the branch, which stands at `stands`, is where the request expects it.
    ///
    /// # Errors
    ///
    /// As [`check_expected`].
    pub fn check_expected(&self, stands: Option<CommitId>) -> Result<(), Refusal> {
        match self.expect {
            Some(expect) => check_expected((&self.repo, &self.branch), stands, expect),
            None => Ok(()),
        }
    }
}

/// Whether a branch, which stands at `stands`, is where it is expected.
///
/// # Errors
///
/// [`Refusal::Conflict`] in words if not.
pub fn check_expected(
    (repo, branch): (&RepoName, &BranchName),
    stands: Option<CommitId>,
    expect: Expect,
) -> Result<(), Refusal> {
    let at = format!("{repo}@{branch}");
    let what = match (stands, expect) {
        (None, Expect::Nothing) => return Ok(()),
        (Some(stands), Expect::Commit(expected)) if stands == expected => return Ok(()),
        (Some(stands), Expect::Commit(expected)) => format!(
            "{at} stands at {}, not at {} as expected",
            stands.short(),
            expected.short()
        ),
        (Some(stands), Expect::Nothing) => {
            format!("{at} has commits already; it stands at {}", stands.short())
        }
        (None, Expect::Commit(_)) => format!("{at} has no commit yet, which was not expected"),
    };
    Err(Refusal::Conflict { what })
}
