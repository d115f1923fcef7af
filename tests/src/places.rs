//! Where the workspace, its data and its scratch folders lie.

use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests
        .parent()
        .expect("the tests crate lies in the workspace")
        .to_owned()
}

/// The golden vectors of the formats.
pub fn vectors() -> PathBuf {
    workspace().join("format-spec/vectors")
}

/// The small real checkpoints that belong to the repository.
pub fn data() -> PathBuf {
    workspace().join("tests/data")
}

/// The large real checkpoints, which lie beside the workspace where they are there at all.
pub fn shared_data() -> Option<PathBuf> {
    Some(workspace().parent()?.join("shared/data")).filter(|folder| folder.is_dir())
}

/// A folder for what tests unpack once and keep, below the folder that cargo builds into.
pub fn kept(name: &str) -> PathBuf {
    let executable = std::env::current_exe().expect("a running program has a path");
    let target = executable
        .ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").is_file())
        .map_or_else(|| workspace().join("target"), Path::to_owned);
    target.join("tmp").join(name)
}
