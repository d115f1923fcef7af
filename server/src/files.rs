//! What differs between two versions besides their tensors: other files, and the headers of weight files.

use deltaic_format::ElementClass;
use deltaic_format::ids::FileId;
use deltaic_format::name::TreePath;
use deltaic_format::object::{FileMode, Snapshot, TensorSpec, WeightFileSpec};
use serde::Serialize;
use std::collections::BTreeMap;

/// How a file differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileChange {
    /// Only the second version has it.
    Added,
    /// Only the first version has it.
    Removed,
    /// Its content differs, or whether it may be executed; of a weight file, its header beyond the tensors' list.
    Changed,
}

impl FileChange {
    /// The kind in one word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Changed => "changed",
        }
    }
}

/// A file that differs between two versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedFile {
    /// Where it lies in the tree.
    pub path: String,
    /// How it differs.
    pub change: FileChange,
    /// Its bytes, in the second version if that has it.
    pub size: u64,
}

/// What of a file is no tensor.
#[derive(Clone, Copy)]
struct Rest<'a> {
    id: FileId,
    mode: FileMode,
    size: u64,
    /// The tensors, if it is a weight file.
    weights: Option<&'a WeightFileSpec>,
}

impl Rest<'_> {
    /// Whether tensors tell all that there is to say of a file that only one of two versions has.
    fn is_told_by_tensors(&self) -> bool {
        self.weights.is_some_and(|spec| !spec.tensors.is_empty())
    }

    /// Whether `other` is the same, apart from what tensors tell.
    fn is_like(&self, other: &Self) -> bool {
        if (self.id, self.mode) == (other.id, other.mode) {
            return true;
        }
        match (self.weights, other.weights) {
            // Tensors that came, went or changed their type have changed the header with them. A tensor that only got
            // another shape is told of nowhere else.
            (Some(a), Some(b)) => kinds(a) != kinds(b),
            _ => false,
        }
    }
}

/// What makes tensors of two versions comparable element by element.
fn kinds(spec: &WeightFileSpec) -> BTreeMap<&str, (ElementClass, u64)> {
    let kind = |tensor: &TensorSpec| (tensor.class, tensor.elements());
    let tensors = spec.tensors.iter();
    tensors
        .map(|tensor| (tensor.name.as_str(), kind(tensor)))
        .collect()
}

fn rests(snapshot: &Snapshot) -> BTreeMap<&TreePath, Rest<'_>> {
    let weights = snapshot.weight_files().map(|(spec, entry)| {
        let rest = Rest {
            id: entry.header,
            mode: FileMode::Plain,
            size: entry.data_offset() + spec.data_len(),
            weights: Some(spec),
        };
        (&spec.path, rest)
    });
    let others = snapshot.files().iter().map(|file| {
        let rest = Rest {
            id: file.id,
            mode: file.mode,
            size: file.size,
            weights: None,
        };
        (&file.path, rest)
    });
    weights.chain(others).collect()
}

/// The files that differ between two versions in more than tensors, by path. Where there is no first version, all that
/// are no weight files were added.
pub fn changed_files(from: Option<&Snapshot>, to: &Snapshot) -> Vec<ChangedFile> {
    let (old, new) = (from.map(rests).unwrap_or_default(), rests(to));
    let mut changed = BTreeMap::new();
    for (&path, rest) in &new {
        let change = match old.get(path) {
            Some(before) if rest.is_like(before) => continue,
            Some(_) => FileChange::Changed,
            None if rest.is_told_by_tensors() => continue,
            None => FileChange::Added,
        };
        changed.insert(path, (change, rest.size));
    }
    for (&path, rest) in &old {
        if !new.contains_key(path) && !rest.is_told_by_tensors() {
            changed.insert(path, (FileChange::Removed, rest.size));
        }
    }
    let changed = changed.into_iter();
    changed
        .map(|(path, (change, size))| ChangedFile {
            path: path.to_string(),
            change,
            size,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltaic_format::Version;
    use deltaic_format::ids::{CommitId, SchemaId, TreeId};
    use deltaic_format::object::{
        CanonicalObject, Commit, FileEntry, Schema, Tree, WeightFileEntry,
    };
    use std::sync::Arc;

    /// A version with an empty weight file whose header is `header`, and files of (path, content, mode).
    fn version(header: &str, files: &[(&str, &str, FileMode)]) -> Snapshot {
        let path = |text: &str| TreePath::new(text).expect("a valid path");
        let schema = Schema {
            files: vec![WeightFileSpec {
                path: path("w.safetensors"),
                tensors: Vec::new(),
            }],
        };
        let files = files.iter().map(|(name, content, mode)| FileEntry {
            path: path(name),
            mode: *mode,
            size: content.len() as u64,
            id: FileId::of(content.as_bytes()),
        });
        let tree = Tree {
            schema: SchemaId(schema.id().0),
            weight_files: vec![WeightFileEntry {
                header: FileId::of(header.as_bytes()),
                header_len: header.len() as u64,
            }],
            tensors: Vec::new(),
            files: files.collect(),
        };
        let commit = Commit {
            tree: TreeId(tree.id().0),
            parents: Vec::new(),
            version: Version(0),
            time_ms: 0,
            message: String::new(),
            meta: BTreeMap::new(),
        };
        let id = CommitId(commit.id().0);
        Snapshot::new(id, commit, tree, Arc::new(schema)).expect("its parts agree")
    }

    #[test]
    fn every_kind_of_difference_is_seen() {
        use FileMode::{Executable, Plain};
        let old = version(
            "{}",
            &[
                ("a", "1", Plain),
                ("b", "1", Plain),
                ("c", "1", Plain),
                ("d", "1", Plain),
            ],
        );
        let new = version(
            "{ }",
            &[
                ("a", "22", Plain),
                ("b", "1", Executable),
                ("c", "1", Plain),
                ("e", "333", Plain),
            ],
        );
        let found = changed_files(Some(&old), &new);
        let found: Vec<_> = found
            .iter()
            .map(|file| (file.path.as_str(), file.change.name(), file.size))
            .collect();
        assert_eq!(
            found,
            [
                ("a", "changed", 2),
                ("b", "changed", 1),
                ("d", "removed", 1),
                ("e", "added", 3),
                ("w.safetensors", "changed", 11),
            ]
        );
        assert!(changed_files(Some(&new), &new).is_empty());
        assert_eq!(changed_files(None, &old).len(), 5);
    }
}
