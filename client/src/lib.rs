//! The two ends of Deltaic that hold weights themselves: checkpoints on disk, and replicas that are moved
//! from version to version in place.
//!
//! A library: it never prints and never reads the environment; callers pass
//! [`Progress`](deltaic_format::progress::Progress) and show [`ClientError`]s. Where to look:
//!
//! | question | module |
//! |---|---|
//! | how is a checkpoint on disk read? | [`checkpoint`] |
//! | how does a folder become and stay a replica? | [`replica`] |
//! | what can be asked of a store or a server? | [`repository`] |
//! | how is a server asked? | [`remote`] |
//! | where do a replica's versions come from? | [`source`] |
//! | how are committed files written out? | [`export`](fn@export) |
//! | how is a checkpoint committed to a server? | [`publish`](mod@publish) |
//! | how is a history copied? | [`transfer`] |
//! | how is all this done without blocking? | [`asynchronous`] |

mod arrival;
pub mod asynchronous;
pub mod checkpoint;
mod contents;
mod disk;
mod error;
mod export;
mod handles;
mod parts;
pub mod publish;
pub mod remote;
pub mod replica;
pub mod repository;
pub mod source;
#[cfg(test)]
mod tests;
pub mod transfer;

pub use checkpoint::Checkpoint;
pub use error::{ClientError, Result};
pub use export::{ExportOutcome, export};
pub use remote::{Remote, RemoteOptions};
pub use replica::{Proof, PullOptions, PullOutcome, ReplicaFolder, Trust};
pub use repository::{Entry, Repository, UploadSource, Watcher};
pub use source::{RepositorySource, Source, Split};
