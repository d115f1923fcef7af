//! Objects in parts: the commit, schema and tree of a version, which may take many megabytes.

use super::proto::GetSnapshotResponse;
use super::proto::get_snapshot_response::Part;
use crate::error::{FormatError, Result};
use crate::ids::CommitId;
use crate::object::{CanonicalObject, Commit, Schema, Snapshot, Tree};
use bytes::Bytes;
use std::sync::Arc;

/// Bytes of a part.
pub const PART_BYTES: usize = 1 << 20;

/// No schema or tree is longer: one of a million tensors with long names.
const MAX_OBJECT_BYTES: usize = 512 << 20;

/// The objects of a version, cut in parts.
pub fn snapshot_parts(snapshot: &Snapshot) -> impl Iterator<Item = GetSnapshotResponse> {
    let cut = |object: Vec<u8>, part: fn(Bytes) -> Part| {
        let object = Bytes::from(object);
        let starts = (0..object.len()).step_by(PART_BYTES);
        starts.map(move |at| GetSnapshotResponse {
            part: Some(part(object.slice(at..(at + PART_BYTES).min(object.len())))),
        })
    };
    cut(snapshot.commit.to_bytes(), Part::Commit)
        .chain(cut(snapshot.schema.to_bytes(), Part::Schema))
        .chain(cut(snapshot.tree.to_bytes(), Part::Tree))
}

/// Parts of a version's objects as they come, put together.
#[derive(Debug, Default)]
pub struct SnapshotParts {
    commit: Vec<u8>,
    schema: Vec<u8>,
    tree: Vec<u8>,
}

impl SnapshotParts {
    /// Take a part.
    ///
    /// # Errors
    ///
    /// If there are more bytes than an object has, or none.
    pub fn add(&mut self, response: &GetSnapshotResponse) -> Result<()> {
        let (object, part) = match &response.part {
            Some(Part::Commit(part)) => (&mut self.commit, part),
            Some(Part::Schema(part)) => (&mut self.schema, part),
            Some(Part::Tree(part)) => (&mut self.tree, part),
            None => return Ok(()),
        };
        add_part("version", object, part)
    }

    /// The version that has the id `id`, if that is what came.
    ///
    /// # Errors
    ///
    /// If an object does not hash to its id, or they do not fit together.
    pub fn finish(self, id: CommitId) -> Result<Snapshot> {
        let not = |what| FormatError::invalid(what, "it does not hash to its id");
        if Commit::id_of(&self.commit) != id {
            return Err(not("commit"));
        }
        let commit = Commit::from_bytes(&self.commit)?;
        if Tree::id_of(&self.tree) != commit.tree {
            return Err(not("tree"));
        }
        let tree = Tree::from_bytes(&self.tree)?;
        if Schema::id_of(&self.schema) != tree.schema {
            return Err(not("schema"));
        }
        let schema = Schema::from_bytes(&self.schema)?;
        Snapshot::new(id, commit, tree, Arc::new(schema))
    }
}

/// Add a part to an object, which has a cap.
fn add_part(what: &'static str, object: &mut Vec<u8>, part: &[u8]) -> Result<()> {
    if part.is_empty() {
        return Err(FormatError::invalid(what, "an empty part"));
    }
    if object.len() + part.len() > MAX_OBJECT_BYTES {
        return Err(FormatError::Limit {
            what,
            field: "length",
            found: (object.len() + part.len()) as u64,
            limit: MAX_OBJECT_BYTES as u64,
        });
    }
    object.extend_from_slice(part);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_neither_empty_nor_without_end() {
        let mut parts = SnapshotParts::default();
        let part = |part| GetSnapshotResponse { part };
        for kind in [Part::Commit, Part::Schema, Part::Tree] {
            let some = part(Some(kind(Bytes::from_static(b"some"))));
            parts.add(&some).expect("there is room");
            let empty = part(Some(kind(Bytes::new())));
            parts.add(&empty).expect_err("nothing came");
        }
        parts.add(&part(None)).expect("it means nothing here");
        assert_eq!(&parts.tree[..], b"some");
        let mut full = vec![0; MAX_OBJECT_BYTES];
        add_part("version", &mut full, b"x").expect_err("too long");
    }
}
