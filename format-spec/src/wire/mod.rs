//! The wire types (`proto/deltaic/v1`): messages of the services, and how they become the vocabulary of this crate.
//!
//! What comes in a message is checked as it is turned into a value; the other way round nothing can fail.

mod fetch;
mod objects;
mod refusal;
mod statistics;
mod upload;

pub use fetch::{ResumeToken, chunk_from_wire, chunk_to_wire, file_part, file_part_from_wire};
pub use objects::{PART_BYTES, SnapshotParts, snapshot_parts};
pub use refusal::{DOMAIN, refusal_from_reason, refusal_to_reason};
pub use statistics::{diff_from_wire, diffs_to_wire};
pub use upload::{item_from_wire, item_to_wire};

use crate::error::{FormatError, Result};
use crate::ids::{CommitId, FileId};
use bytes::Bytes;

/// The messages as they are encoded, made from `proto/`.
#[allow(
    missing_docs,
    clippy::all,
    rustdoc::broken_intra_doc_links,
    reason = "made from the proto files, which say what the fields mean"
)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/deltaic.v1.rs"));
}

/// The services' descriptors, for reflection: an encoded `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/deltaic.v1.bin"));

/// The protocol that this build speaks; it grows when a message means something that may not be ignored.
pub const PROTOCOL: u32 = 1;

/// The oldest protocol that this build still speaks.
pub const OLDEST_PROTOCOL: u32 = 1;

/// Largest message that either side sends or takes, in bytes: a delivery of one span of 8-byte elements that have all
/// changed, or a request that lists a content for each of 100,000 tensors, with room to spare.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// An id of 32 bytes.
fn id(what: &'static str, bytes: &[u8]) -> Result<[u8; 32]> {
    bytes.try_into().map_err(|_| {
        FormatError::invalid(
            what,
            format!("an id has 32 bytes, {} were sent", bytes.len()),
        )
    })
}

/// A commit id in a message.
///
/// # Errors
///
/// If it has another length.
pub fn commit_id(bytes: &[u8]) -> Result<CommitId> {
    Ok(CommitId(id("commit id", bytes)?))
}

/// A commit id that may be left out.
///
/// # Errors
///
/// If it has another length.
pub fn optional_commit_id(bytes: &[u8]) -> Result<Option<CommitId>> {
    (!bytes.is_empty()).then(|| commit_id(bytes)).transpose()
}

/// A file id in a message.
///
/// # Errors
///
/// If it has another length.
pub fn file_id(bytes: &[u8]) -> Result<FileId> {
    Ok(FileId(id("file id", bytes)?))
}

/// An id as a field.
pub fn id_bytes(id: &impl AsRef<[u8; 32]>) -> Bytes {
    Bytes::copy_from_slice(id.as_ref())
}
