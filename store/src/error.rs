//! The store's errors: few kinds, with the object they are about.

use deltaic_format::FormatError;
use deltaic_format::ids::CommitId;
use deltaic_format::refusal::Refusal;
use std::path::{Path, PathBuf};

/// Why the store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Something that was named is not there.
    #[error("there is no {kind} {name}")]
    NotFound {
        /// `"repository"`, `"branch"`, `"tag"`, `"version"`, `"commit"`, `"store"`, `"file"` or `"tensor"`.
        kind: &'static str,
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
    /// The disk is full; nothing that was visible has changed.
    #[error("no space left on the disk of {}", path.display())]
    NoSpace {
        /// The store's folder.
        path: PathBuf,
    },
    /// Another process has the store open.
    #[error("the store {} is in use by {holder}", path.display())]
    Locked {
        /// The store's folder.
        path: PathBuf,
        /// Who holds it, as far as is known.
        holder: String,
    },
    /// The store has a format that this build does not read.
    #[error("the store {} has format {found}; this build reads format {supported}", path.display())]
    StoreFormat {
        /// The store's folder.
        path: PathBuf,
        /// What its format file says.
        found: String,
        /// What this build reads.
        supported: u32,
    },
    /// The checkpoint that is being committed cannot be read, or changes while it is read.
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
    /// Invalid input: a name, a revision, metadata.
    #[error("{what}")]
    Invalid {
        /// What is wrong with it.
        what: String,
    },
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// The file system failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// RocksDB failed.
    #[error("database: {0}")]
    Database(rocksdb::Error),
}

/// Result of a store operation.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

impl StoreError {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Self::NoSpace {
                path: path.to_owned(),
            },
            _ => Self::Io {
                path: path.to_owned(),
                source,
            },
        }
    }

    pub(crate) fn corrupt(object: impl ToString, what: impl ToString) -> Self {
        Self::Corrupt {
            object: object.to_string(),
            what: what.to_string(),
        }
    }

    pub(crate) fn not_found(kind: &'static str, name: impl ToString) -> Self {
        Self::NotFound {
            kind,
            name: name.to_string(),
        }
    }
}

/// A format error met in the store's own data means that it is damaged.
impl From<FormatError> for StoreError {
    fn from(error: FormatError) -> Self {
        Self::corrupt("stored data", error)
    }
}

/// What of an error is told to whoever asked, in this process or over the wire.
impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::from(&error)
    }
}

/// The same of an error that is kept.
impl From<&StoreError> for Refusal {
    fn from(error: &StoreError) -> Self {
        let words = error.to_string();
        match error {
            StoreError::NotFound { kind, name } => Self::NotFound {
                kind: (*kind).to_owned(),
                name: name.clone(),
            },
            StoreError::Conflict { what } => Self::Conflict { what: what.clone() },
            StoreError::Ambiguous { prefix, candidates } => Self::Ambiguous {
                prefix: prefix.clone(),
                candidates: candidates.clone(),
            },
            StoreError::Corrupt { object, what } => Self::Corrupt {
                object: object.clone(),
                what: what.clone(),
            },
            StoreError::NoSpace { path } => Self::NoSpace {
                place: path.display().to_string(),
            },
            StoreError::Checkpoint { what } => Self::Checkpoint { what: what.clone() },
            StoreError::Upload { what } => Self::Upload { what: what.clone() },
            StoreError::Invalid { what } => Self::Invalid { what: what.clone() },
            StoreError::Interrupted => Self::Interrupted,
            StoreError::Locked { .. } => Self::Unavailable { what: words },
            StoreError::StoreFormat { .. } | StoreError::Io { .. } | StoreError::Database(_) => {
                Self::Failed { what: words }
            }
        }
    }
}
