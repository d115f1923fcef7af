//! The client's errors: few kinds, each naming its object. They say what is the case; what to do about it is for whoever
//! shows them.

use deltaic_format::refusal::Refusal;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a checkpoint or a replica could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// There is no checkpoint where one was expected.
    #[error("no checkpoint at {}: {what}", path.display())]
    NoCheckpoint {
        /// Where it was looked for.
        path: PathBuf,
        /// What was looked for.
        what: String,
    },
    /// A checkpoint holds something that cannot be committed.
    #[error("{}: {what}", path.display())]
    Checkpoint {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A file changes while it is read.
    #[error("{} {how}", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// How it was noticed.
        how: &'static str,
    },
    /// A folder is no replica and cannot become one.
    #[error("{} is not a replica: {what}", path.display())]
    NotAReplica {
        /// The folder.
        path: PathBuf,
        /// Why.
        what: String,
    },
    /// Another process has the replica open.
    #[error("the replica {} is in use by {holder}", path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
        /// Who holds it, as far as is known.
        holder: String,
    },
    /// Files of a replica are not as the last pull left them; nothing was written.
    #[error("{} is not as the last pull left it: {}", path.display(), Listed(what))]
    Modified {
        /// The folder.
        path: PathBuf,
        /// The tensors and files that differ.
        what: Vec<String>,
    },
    /// A patch does not fit the weights it is for; nothing was written.
    #[error("{object}: {why}")]
    Proof {
        /// The tensor.
        object: String,
        /// What does not fit.
        why: String,
    },
    /// A source sent something other than what was asked for; nothing was written.
    #[error("the source sent bad data for {object}: {what}")]
    Delivery {
        /// What it was for.
        object: String,
        /// What is wrong with it.
        what: String,
    },
    /// The replica's own records, or a version's objects, are damaged.
    #[error("{object} is damaged: {what}")]
    Corrupt {
        /// The object.
        object: String,
        /// What is wrong with it.
        what: String,
    },
    /// The files do not hold what was just written to them.
    #[error("the replica {} is unusable: {} did not read back as written", path.display(), Listed(what))]
    Unusable {
        /// The folder.
        path: PathBuf,
        /// The tensors and files that failed.
        what: Vec<String>,
    },
    /// Something that was asked for cannot be: nothing has the name, or something is in the way.
    #[error("{what}")]
    Invalid {
        /// What it is.
        what: String,
    },
    /// A replica's update has begun to change its files, and stopped; the next pull completes it before anything else.
    #[error("the update of the replica {} is under way, not complete: {source}", path.display())]
    Unfinished {
        /// The folder.
        path: PathBuf,
        /// What stopped it.
        source: Box<ClientError>,
    },
    /// The disk is full; the version held is as before, unless this is why an update is unfinished.
    #[error("no space left for {}", path.display())]
    NoSpace {
        /// The file that did not fit.
        path: PathBuf,
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
    /// The store, here or on a server, does not do what it was asked.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No server can be reached, or the connection was lost more often than is tried again.
    #[error("{endpoint} cannot be reached: {what}")]
    Unreachable {
        /// The server, or several.
        endpoint: String,
        /// What happened, the last time.
        what: String,
    },
    /// Nothing came for too long.
    #[error("{endpoint} has sent nothing for {} s", after.as_secs_f64())]
    Stalled {
        /// The server.
        endpoint: String,
        /// How long.
        after: Duration,
    },
    /// A server answers what no server may.
    #[error("{endpoint} does not keep to the protocol: {what}")]
    Protocol {
        /// The server.
        endpoint: String,
        /// What it did.
        what: String,
    },
    /// The source of versions failed, with its own error.
    #[error(transparent)]
    Source(Box<dyn std::error::Error + Send + Sync>),
}

/// Result of a client operation.
pub type Result<T, E = ClientError> = std::result::Result<T, E>;

impl ClientError {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                Self::NoSpace { path }
            }
            _ => Self::Io { path, source },
        }
    }

    /// The failure of an update of the replica `root` that has begun to change it: what the disk said is not the whole
    /// story then.
    pub(crate) fn under_way(self, root: &Path) -> Self {
        match self {
            Self::NoSpace { .. } | Self::Io { .. } | Self::Changed { .. } => Self::Unfinished {
                path: root.to_owned(),
                source: Box::new(self),
            },
            other => other,
        }
    }

    pub(crate) fn checkpoint(path: &Path, what: impl ToString) -> Self {
        Self::Checkpoint {
            path: path.to_owned(),
            what: what.to_string(),
        }
    }

    pub(crate) fn corrupt(object: impl ToString, what: impl ToString) -> Self {
        Self::Corrupt {
            object: object.to_string(),
            what: what.to_string(),
        }
    }

    pub(crate) fn delivery(object: impl ToString, what: impl ToString) -> Self {
        Self::Delivery {
            object: object.to_string(),
            what: what.to_string(),
        }
    }

    pub(crate) fn proof(object: impl ToString, why: impl ToString) -> Self {
        Self::Proof {
            object: object.to_string(),
            why: why.to_string(),
        }
    }
}

/// Adds the path to errors of the file system.
pub(crate) trait At<T> {
    /// The error, if any, as one about `path`.
    fn at(self, path: &Path) -> Result<T>;
}

impl<T> At<T> for std::io::Result<T> {
    fn at(self, path: &Path) -> Result<T> {
        self.map_err(|source| ClientError::io(path, source))
    }
}

/// The first few of a list in words, and how many more there are.
struct Listed<'a>(&'a [String]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        f.write_str(&self.0[..self.0.len().min(SHOWN)].join(", "))?;
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
