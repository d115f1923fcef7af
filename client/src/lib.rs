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
//! | where do versions come from? | [`source`] |
//! | how are committed files written out? | [`export`](fn@export) |

mod arrival;
pub mod checkpoint;
mod disk;
mod error;
mod export;
mod handles;
mod parts;
pub mod replica;
pub mod source;
#[cfg(test)]
mod tests;

pub use checkpoint::Checkpoint;
pub use error::{ClientError, Result};
pub use export::{ExportOutcome, export};
pub use replica::{Proof, PullOptions, PullOutcome, ReplicaFolder};
pub use source::Source;
