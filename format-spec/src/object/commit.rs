//! Commit: a tree, its parents, its version number and what its maker said.

use super::{CanonicalObject, MAX_STRING};
use crate::bytes::{ByteReader, put_string, put_varint};
use crate::error::{FormatError, Result};
use crate::ids::{CommitId, TreeId};
use crate::version::Version;
use std::collections::BTreeMap;

const WHAT: &str = "commit";
const MAX_PARENTS: u64 = 64;
const MAX_META: u64 = 1 << 12;
const MAX_MESSAGE: u64 = 1 << 20;

/// One version of a repository; immutable.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Commit {
    /// Its content.
    pub tree: TreeId,
    /// The commits it follows; the first is the one it is numbered and diffed against.
    pub parents: Vec<CommitId>,
    /// The first parent's version + 1, or 0.
    pub version: Version,
    /// Milliseconds since 1970, UTC, fixed by whoever made it.
    pub time_ms: i64,
    /// What its maker said.
    pub message: String,
    /// Metadata, such as `step = 1200`.
    pub meta: BTreeMap<String, String>,
}

impl Commit {
    /// Check that the metadata and message fit the format, before anything is written.
    ///
    /// # Errors
    ///
    /// If one is too long, or there are too many.
    pub fn check_texts(message: &str, meta: &BTreeMap<String, String>) -> Result<()> {
        if message.len() as u64 > MAX_MESSAGE {
            return Err(FormatError::invalid(
                WHAT,
                "the message is longer than 1 MiB",
            ));
        }
        let long = |text: &String| text.len() as u64 > MAX_STRING;
        if meta.len() as u64 > MAX_META
            || meta.iter().any(|(k, v)| long(k) || long(v) || k.is_empty())
        {
            return Err(FormatError::invalid(
                WHAT,
                "metadata of more than 4,096 entries, with an empty key, or longer than 4,096 bytes",
            ));
        }
        Ok(())
    }
}

impl CanonicalObject for Commit {
    const WHAT: &'static str = WHAT;
    const CONTEXT: &'static str = "deltaic 2026-11-30 commit v1";
    type Id = CommitId;

    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.tree.0);
        put_varint(out, self.parents.len() as u64);
        self.parents.iter().for_each(|parent| out.extend(parent.0));
        put_varint(out, self.version.0);
        out.extend(self.time_ms.to_le_bytes());
        put_string(out, &self.message);
        put_varint(out, self.meta.len() as u64);
        for (key, value) in &self.meta {
            put_string(out, key);
            put_string(out, value);
        }
    }

    fn get(reader: &mut ByteReader<'_>) -> Result<Self> {
        let tree = TreeId(reader.array()?);
        let count = reader.count("number of parents", MAX_PARENTS, 32)?;
        let mut parents = Vec::with_capacity(count);
        for _ in 0..count {
            parents.push(CommitId(reader.array()?));
        }
        let version = Version(reader.varint()?);
        if parents.is_empty() != (version == Version(0)) {
            return Err(FormatError::invalid(
                WHAT,
                "version 0 is the one without parents",
            ));
        }
        let time_ms = reader.i64()?;
        let message = reader.string("message", MAX_MESSAGE)?;
        let mut meta = BTreeMap::new();
        for _ in 0..reader.count("number of metadata entries", MAX_META, 2)? {
            let key = reader.string("metadata key", MAX_STRING)?;
            let value = reader.string("metadata value", MAX_STRING)?;
            if meta.last_key_value().is_some_and(|(last, _)| *last >= key) {
                return Err(FormatError::invalid(WHAT, "metadata keys are not in order"));
            }
            meta.insert(key, value);
        }
        Ok(Self {
            tree,
            parents,
            version,
            time_ms,
            message,
            meta,
        })
    }

    fn id_from(hash: [u8; 32]) -> CommitId {
        CommitId(hash)
    }
}
