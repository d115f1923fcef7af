//! Where the files of a tree lie in a folder, and what is in their way there.

use crate::error::{At, ClientError, Result};
use deltaic_format::ids::EMPTY_CONTENT;
use deltaic_format::name::TreePath;
use deltaic_format::object::Snapshot;
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Check what the objects of a version cannot say of themselves: that no file lies where another one needs a
/// folder, none is there twice, and tensors without bytes have the id of none.
pub(crate) fn check_tree(want: &Snapshot) -> Result<()> {
    let damaged = |what: &str| {
        let object = format!("the tree of commit {}", want.id.short());
        Err(ClientError::corrupt(object, what))
    };
    let weights = want.schema.files.iter().map(|file| &file.path);
    let all: Vec<&TreePath> = weights
        .chain(want.files().iter().map(|f| &f.path))
        .collect();
    let paths: BTreeSet<&str> = all.iter().map(|path| path.as_str()).collect();
    let folder_of_another = |path: &&str| {
        let mut cuts = path.match_indices('/').map(|(at, _)| &path[..at]);
        cuts.any(|folder| paths.contains(folder))
    };
    if paths.len() != all.len() || paths.iter().any(folder_of_another) {
        return damaged("two of its files cannot lie in one folder");
    }
    let mut contents = want.schema.tensors().zip(&want.tree.tensors);
    if contents.any(|(spec, entry)| spec.byte_len() == 0 && entry.id.0 != EMPTY_CONTENT) {
        return damaged("a tensor without bytes has the id of some");
    }
    Ok(())
}

fn in_the_way<T>(location: &Path, path: &TreePath, what: &str) -> Result<T> {
    let what = format!("{} is in the way of {path}: {what}", location.display());
    Err(ClientError::Invalid { what })
}

const NO_FOLDER: &str = "it is no folder";

/// Where the file `path` of a tree lies in `root`. No part of the way there may be a symlink or a file, so that nothing is
/// ever read or written outside the folder.
pub(crate) fn locate(root: &Path, path: &TreePath) -> Result<PathBuf> {
    let ends = path.as_str().match_indices('/').map(|(at, _)| at);
    for end in ends {
        let location = root.join(&path.as_str()[..end]);
        match fs::symlink_metadata(&location) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return in_the_way(&location, path, NO_FOLDER),
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            Err(error) => return Err(error).at(&location),
        }
    }
    Ok(root.join(path.as_str()))
}

/// Whether a file or symlink lies where `path` of a tree belongs in `root`; an error if that place cannot be had once
/// the files `removed` are gone.
pub(crate) fn is_blocked(
    root: &Path,
    path: &TreePath,
    removed: &BTreeSet<TreePath>,
) -> Result<bool> {
    let text = path.as_str();
    let ends = text.match_indices('/').map(|(at, _)| at);
    for end in ends.chain([text.len()]) {
        let location = root.join(&text[..end]);
        let metadata = match fs::symlink_metadata(&location) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            metadata => metadata.at(&location)?,
        };
        let last = end == text.len();
        match metadata.is_dir() {
            true if last && !holds_only(root, &location, removed)? => {
                return in_the_way(&location, path, "it is a folder");
            }
            true => {}
            false if last => return Ok(true),
            false if is_one_of(removed, &text[..end]) => return Ok(false),
            false => return in_the_way(&location, path, NO_FOLDER),
        }
    }
    Ok(false)
}

fn is_one_of(paths: &BTreeSet<TreePath>, text: &str) -> bool {
    TreePath::new(text).is_ok_and(|path| paths.contains(&path))
}

/// Whether every file in `folder` is one of `removed`, so that it goes away with them.
fn holds_only(root: &Path, folder: &Path, removed: &BTreeSet<TreePath>) -> Result<bool> {
    let mut empty = true;
    for entry in fs::read_dir(folder).at(folder)? {
        let entry = entry.at(folder)?;
        let location = entry.path();
        let within = (location.strip_prefix(root).ok()).and_then(Path::to_str);
        let goes = match entry.file_type().at(&location)?.is_dir() {
            true => holds_only(root, &location, removed)?,
            false => within.is_some_and(|within| is_one_of(removed, within)),
        };
        if !goes {
            return Ok(false);
        }
        empty = false;
    }
    Ok(!empty)
}
