//! Snapshot: a commit with its tree and schema, which together say what every file of a version is.

use super::{
    Commit, FileEntry, Schema, TensorEntry, TensorSpec, Tree, WeightFileEntry, WeightFileSpec,
};
use crate::error::{FormatError, Result};
use crate::ids::CommitId;
use crate::name::TreePath;
use std::collections::HashMap;
use std::sync::Arc;

/// A commit with its tree and schema; the last two are known to agree.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The commit's id.
    pub id: CommitId,
    /// The commit.
    pub commit: Commit,
    /// Its tree.
    pub tree: Tree,
    /// The tree's schema.
    pub schema: Arc<Schema>,
}

/// One tensor of a snapshot.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Its place among all tensors of the tree.
    pub index: usize,
    /// Number of its weight file.
    pub file: usize,
    /// Path of its weight file.
    pub path: &'a TreePath,
    /// Where its bytes begin in the file.
    pub offset: u64,
    /// Name, dtype, shape.
    pub spec: &'a TensorSpec,
    /// Its content.
    pub entry: &'a TensorEntry,
}

impl Snapshot {
    /// Put a commit, its tree and the tree's schema together.
    ///
    /// # Errors
    ///
    /// If tree and schema do not have the same numbers of files and tensors, or no folder can hold all
    /// their files.
    pub fn new(id: CommitId, commit: Commit, tree: Tree, schema: Arc<Schema>) -> Result<Self> {
        check_agreement(&tree, &schema)?;
        Ok(Self {
            id,
            commit,
            tree,
            schema,
        })
    }

    /// All tensors, in the tree's order.
    pub fn tensors(&self) -> Vec<TensorView<'_>> {
        let mut views = Vec::with_capacity(self.tree.tensors.len());
        for (file, (spec, weight_file)) in self.weight_files().enumerate() {
            let mut offset = weight_file.data_offset();
            for tensor in &spec.tensors {
                let index = views.len();
                views.push(TensorView {
                    index,
                    file,
                    path: &spec.path,
                    offset,
                    spec: tensor,
                    entry: &self.tree.tensors[index],
                });
                offset += tensor.byte_len();
            }
        }
        views
    }

    /// All weight files: what the schema and what the tree says of each.
    pub fn weight_files(&self) -> impl Iterator<Item = (&WeightFileSpec, &WeightFileEntry)> {
        self.schema.files.iter().zip(&self.tree.weight_files)
    }

    /// All other files.
    pub fn files(&self) -> &[FileEntry] {
        &self.tree.files
    }

    /// Tensors by weight file and name.
    pub fn tensors_by_name(&self) -> HashMap<(&str, &str), TensorView<'_>> {
        self.tensors()
            .into_iter()
            .map(|t| ((t.path.as_str(), t.spec.name.as_str()), t))
            .collect()
    }

    /// Length of all files together, in bytes.
    pub fn full_bytes(&self) -> u64 {
        let weights = self
            .weight_files()
            .map(|(spec, entry)| entry.data_offset() + spec.data_len());
        weights.sum::<u64>() + self.files().iter().map(|f| f.size).sum::<u64>()
    }

    /// Number of elements of all tensors together.
    pub fn elements(&self) -> u64 {
        self.schema.tensors().map(TensorSpec::elements).sum()
    }
}

/// Whether `tree` can be a tree of `schema`.
///
/// # Errors
///
/// If they do not have the same numbers of files and tensors, or no folder can hold all their files.
pub fn check_agreement(tree: &Tree, schema: &Schema) -> Result<()> {
    if schema.tensor_count() != tree.tensors.len() || schema.files.len() != tree.weight_files.len()
    {
        let why = "it does not have the tensors of its schema";
        return Err(FormatError::invalid("tree", why));
    }
    let weights = schema.files.iter().map(|f| f.path.as_str());
    let others = tree.files.iter().map(|f| f.path.as_str());
    check_paths(weights.chain(others).collect())
}

/// All paths are distinct and none is a folder of another, so that a folder can hold them all.
fn check_paths(mut paths: Vec<&str>) -> Result<()> {
    // Part by part, a folder is followed by what lies in it.
    paths.sort_unstable_by(|a, b| a.split('/').cmp(b.split('/')));
    for pair in paths.windows(2) {
        let rest = pair[1].strip_prefix(pair[0]);
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
            let why = format!("{} stands there twice, or as file and folder", pair[0]);
            return Err(FormatError::invalid("tree", why));
        }
    }
    Ok(())
}

impl WeightFileEntry {
    /// Where the tensors' data begins in the file.
    pub fn data_offset(&self) -> u64 {
        crate::safetensors::LENGTH_PREFIX + self.header_len
    }
}

#[cfg(test)]
mod tests {
    use super::check_paths;

    #[test]
    fn paths_that_no_folder_can_hold_together_are_refused() {
        assert!(check_paths(vec!["a/b", "a-b", "a/c", "b"]).is_ok());
        assert!(check_paths(vec!["a", "a-b", "a/b"]).is_err());
        assert!(check_paths(vec!["x", "y", "x"]).is_err());
    }
}
