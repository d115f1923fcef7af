//! Why a store, in this process or behind a server, does not do what it was asked: what of an error crosses the wire.

use crate::ids::CommitId;
use std::time::Duration;

/// Why something that was asked for was not done. Nothing that was visible has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Something that was named is not there.
    #[error("there is no {kind} {name}")]
    NotFound {
        /// `"repository"`, `"branch"`, `"tag"`, `"version"`, `"commit"`, `"file"`, `"tensor"`, `"lease"`.
        kind: String,
        /// Its name.
        name: String,
    },
    /// A ref is not where the caller expected it, or a name is taken.
    #[error("{what}")]
    Conflict {
        /// What collided.
        what: String,
    },
    /// A short commit id that fits several commits.
    #[error("commit id {prefix} is ambiguous: {}", candidates.iter().map(CommitId::short).collect::<Vec<_>>().join(", "))]
    Ambiguous {
        /// What was given.
        prefix: String,
        /// What it fits.
        candidates: Vec<CommitId>,
    },
    /// Stored data is damaged.
    #[error("{object} is damaged: {what}")]
    Corrupt {
        /// Kind and id of the object.
        object: String,
        /// What is wrong.
        what: String,
    },
    /// The disk of the store is full.
    #[error("no space left on the disk of {place}")]
    NoSpace {
        /// The store.
        place: String,
    },
    /// What is being committed cannot be read, or changes meanwhile.
    #[error("{what}")]
    Checkpoint {
        /// What is wrong, naming the file.
        what: String,
    },
    /// What was uploaded is not what it claims to be.
    #[error("the upload was refused: {what}")]
    Upload {
        /// The object and what is wrong with it.
        what: String,
    },
    /// What was sent changed on its way; what came before it is held.
    #[error("it arrived damaged: {what}")]
    Damaged {
        /// What is wrong with it.
        what: String,
    },
    /// Invalid input: a name, a revision, metadata, a request.
    #[error("{what}")]
    Invalid {
        /// What is wrong with it.
        what: String,
    },
    /// A limit of the server is reached.
    #[error("{what}")]
    Exhausted {
        /// Which limit.
        what: String,
        /// When it may be worth trying again; `None` if the same request never fits.
        retry_after: Option<Duration>,
    },
    /// The store or server cannot be used now.
    #[error("{what}")]
    Unavailable {
        /// Why.
        what: String,
    },
    /// The two ends speak no common version of the protocol.
    #[error("{what}")]
    Incompatible {
        /// Which versions each speaks.
        what: String,
    },
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// Anything else.
    #[error("{what}")]
    Failed {
        /// What failed.
        what: String,
    },
}
