//! What is sent to make a version elsewhere: the vocabulary of uploads.
//!
//! An upload is a row of items in an order of the sender's choice, each with a [`UploadPosition`] that lets the sender go
//! on after it. Once all are there, the receiver makes the version that they describe on top of the parent that they start
//! from, and it is the one that the sender's commit names, or it is refused.

use crate::fetch::Delivery;
use crate::ids::{CommitId, FileId};
use crate::name::{BranchName, RepoName};
use bytes::Bytes;

/// Where an upload goes on, in the sender's own terms.
pub type UploadPosition = Bytes;

/// Bytes of an [`UploadPosition`] at most.
pub const MAX_POSITION_BYTES: usize = 128;

/// Names what is uploaded: the same for the same items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UploadId(pub [u8; 32]);

/// What an upload is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadTarget {
    /// The repository; made if it is not there.
    pub repo: RepoName,
    /// The branch; made if the repository is new.
    pub branch: BranchName,
    /// Names what is uploaded.
    pub id: UploadId,
    /// The commit that all deliveries start from, which the branch stands at; `None` if it has none.
    pub parent: Option<CommitId>,
    /// What the commit will be, if that is known before it is sent.
    pub commit: Option<CommitId>,
}

impl UploadTarget {
    /// Whether `other` is for the same items to the same place, whether or not the commit is known yet.
    pub fn is_same_upload(&self, other: &Self) -> bool {
        let key = |target: &Self| (target.id, target.parent);
        key(self) == key(other) && self.repo == other.repo && self.branch == other.branch
    }
}

/// The kind of an object that travels in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// A schema.
    Schema,
    /// A tree.
    Tree,
    /// A commit.
    Commit,
}

/// One part of what is uploaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UploadItem {
    /// The next bytes of an object's canonical bytes.
    Object {
        /// Which.
        kind: ObjectKind,
        /// The bytes.
        bytes: Bytes,
    },
    /// Bytes of a file: a weight file's header, or one that is no weight file. Files that the parent has need not be sent.
    File {
        /// Which.
        file: FileId,
        /// Where they begin in it.
        offset: u64,
        /// The bytes.
        bytes: Bytes,
    },
    /// Patches from the parent's contents, or contents. A tensor of which nothing is sent is the parent's, or that
    /// of another tensor that is sent.
    Delivery(Delivery),
}

impl UploadItem {
    /// Bytes that travel.
    pub fn len(&self) -> u64 {
        match self {
            Self::Object { bytes, .. } | Self::File { bytes, .. } => bytes.len() as u64,
            Self::Delivery(delivery) => delivery.len(),
        }
    }

    /// Whether nothing travels.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
