//! `model.safetensors.index.json` and its like: what they name must be there.

use super::walk::FoundFile;
use crate::error::{ClientError, Result};
use crate::parts::read_exact_at;
use deltaic_format::name::TreePath;
use deltaic_format::object::Schema;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap, HashSet};

const INDEX: &str = ".safetensors.index.json";

/// Far more than the index of any model: 2²⁴ tensors of 64-byte names.
const MAX_INDEX_LEN: u64 = 1 << 30;

#[derive(Deserialize)]
struct Index {
    /// Tensor name to the name of its file, beside the index.
    #[serde(default)]
    weight_map: BTreeMap<String, String>,
}

/// Whether a file of this name is an index.
pub(super) fn is_index(path: &TreePath) -> bool {
    path.as_str().ends_with(INDEX)
}

/// Check that every file and tensor which the index names is there.
pub(super) fn check(file: &FoundFile, schema: &Schema) -> Result<()> {
    let fail = |what: String| Err(ClientError::checkpoint(&file.location, what));
    if file.identity.len > MAX_INDEX_LEN {
        return fail("an index of more than 1 GiB".into());
    }
    let mut json = vec![0; file.identity.len as usize];
    read_exact_at(&file.open()?, &file.location, 0, &mut json)?;
    let index: Index = match serde_json::from_slice(&json) {
        Ok(index) => index,
        Err(error) => return fail(format!("not a safetensors index: {error}")),
    };
    let folder = match file.path.as_str().rsplit_once('/') {
        Some((folder, _)) => format!("{folder}/"),
        None => String::new(),
    };
    let files: HashMap<String, HashSet<&str>> = (schema.files.iter())
        .map(|f| {
            (
                f.path.to_string(),
                f.tensors.iter().map(|t| t.name.as_str()).collect(),
            )
        })
        .collect();
    for (tensor, name) in &index.weight_map {
        match files.get(&format!("{folder}{name}")) {
            None => return fail(format!("it names the file {name:?}, which is missing")),
            Some(tensors) if !tensors.contains(tensor.as_str()) => {
                return fail(format!(
                    "it places the tensor {tensor:?} in {name:?}, which has no such tensor"
                ));
            }
            Some(_) => {}
        }
    }
    Ok(())
}
