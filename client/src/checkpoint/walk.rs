//! Finding a checkpoint's files without ever leaving it.

use crate::error::{At, ClientError, Result};
use deltaic_format::name::TreePath;
use deltaic_format::object::FileMode;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file that was found, and what tells it from another one in its place.
#[derive(Debug, Clone)]
pub(super) struct FoundFile {
    /// Where it lies in the tree.
    pub path: TreePath,
    /// Where its bytes lie, symlinks resolved.
    pub location: PathBuf,
    pub mode: FileMode,
    pub identity: Identity,
}

/// What changes when a file is written or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub len: u64,
    modified: (i64, i64),
    inode: (u64, u64),
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self {
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            inode: (metadata.dev(), metadata.ino()),
        }
    }
}

impl FoundFile {
    fn new(path: TreePath, location: PathBuf, metadata: &Metadata) -> Self {
        let mode = match metadata.mode() & 0o111 {
            0 => FileMode::Plain,
            _ => FileMode::Executable,
        };
        Self {
            path,
            location,
            mode,
            identity: Identity::of(metadata),
        }
    }

    /// Add to `hasher` what tells the file from another one, and from itself once it is changed.
    pub(super) fn hash_identity(&self, hasher: &mut blake3::Hasher) {
        let text = self.path.as_str().as_bytes();
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text);
        hasher.update(&[self.mode as u8]);
        let Identity {
            len,
            modified,
            inode,
        } = self.identity;
        for number in [len, inode.0, inode.1] {
            hasher.update(&number.to_le_bytes());
        }
        for number in [modified.0, modified.1] {
            hasher.update(&number.to_le_bytes());
        }
    }

    /// Fail if `metadata` is not that of the file which was found.
    pub(super) fn check_identity(&self, metadata: &Metadata) -> Result<()> {
        if Identity::of(metadata) == self.identity {
            return Ok(());
        }
        Err(ClientError::Changed {
            path: self.location.clone(),
            how: "changed since it was opened",
        })
    }

    /// Fail if another file, or other content, is there now.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        let metadata = fs::symlink_metadata(&self.location).at(&self.location)?;
        self.check_identity(&metadata)
    }
}

/// All files of the checkpoint at `path`, ascending by their path in the tree.
pub(super) fn find_files(path: &Path) -> Result<Vec<FoundFile>> {
    let missing = || ClientError::NoCheckpoint {
        path: path.to_owned(),
        what: "there is nothing of this name".into(),
    };
    let metadata = match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(missing()),
        metadata => metadata.at(path)?,
    };
    let root = fs::canonicalize(path).at(path)?;
    if metadata.is_file() {
        let name = path.file_name().ok_or_else(missing)?;
        let found = FoundFile::new(tree_path(path, Path::new(name))?, root, &metadata);
        return Ok(vec![found]);
    }
    if !metadata.is_dir() {
        return Err(not_a_file(path));
    }
    let mut walk = Walk {
        bounds: hugging_face_repository(&root).unwrap_or(&root).to_owned(),
        found: Vec::new(),
    };
    walk.folder(&root, Path::new(""))?;
    walk.found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(walk.found)
}

struct Walk {
    /// What symlinks may point into: the folder, or the cache's copy of the repository that it is a snapshot of.
    bounds: PathBuf,
    found: Vec<FoundFile>,
}

impl Walk {
    /// Collect the files in `folder`, whose path in the tree is `within`.
    fn folder(&mut self, folder: &Path, within: &Path) -> Result<()> {
        for entry in fs::read_dir(folder).at(folder)? {
            let entry = entry.at(folder)?;
            let (location, within) = (entry.path(), within.join(entry.file_name()));
            if is_skipped(&entry.file_name(), &within) {
                continue;
            }
            let kind = entry.file_type().at(&location)?;
            if kind.is_dir() {
                if !is_store(&location) {
                    self.folder(&location, &within)?;
                }
            } else if kind.is_symlink() {
                let target = self.follow(&location)?;
                self.file(&location, target, &within)?;
            } else {
                self.file(&location.clone(), location, &within)?;
            }
        }
        Ok(())
    }

    /// Collect the file `location`, whose bytes lie at `target`.
    fn file(&mut self, location: &Path, target: PathBuf, within: &Path) -> Result<()> {
        let metadata = fs::symlink_metadata(&target).at(location)?;
        if !metadata.is_file() {
            return Err(not_a_file(location));
        }
        let path = tree_path(location, within)?;
        self.found.push(FoundFile::new(path, target, &metadata));
        Ok(())
    }

    /// What the symlink `location` points at, if that lies within bounds and is no folder.
    fn follow(&self, location: &Path) -> Result<PathBuf> {
        let target = fs::canonicalize(location).map_err(|error| {
            ClientError::checkpoint(location, format!("a symlink that leads nowhere ({error})"))
        })?;
        if !target.starts_with(&self.bounds) {
            let what = format!("a symlink to {}, which leaves the folder", target.display());
            return Err(ClientError::checkpoint(location, what));
        }
        if target.is_dir() {
            return Err(ClientError::checkpoint(location, "a symlink to a folder"));
        }
        Ok(target)
    }
}

/// Whether an entry belongs to a tool and not to the checkpoint.
fn is_skipped(name: &OsStr, within: &Path) -> bool {
    name == ".git" || within == Path::new(".deltaic") || within == Path::new(".cache/huggingface")
}

/// Whether `folder` is a Deltaic store, which may lie in the checkpoint that is committed to it.
fn is_store(folder: &Path) -> bool {
    /// How the store's own `FORMAT` begins.
    const FORMAT: &[u8] = b"deltaic store format ";
    let mut begin = [0; FORMAT.len()];
    let file = File::open(folder.join("FORMAT"));
    file.is_ok_and(|mut file| file.read_exact(&mut begin).is_ok() && begin == FORMAT)
}

/// The `models--…` folder of a Hugging Face cache that `root` is (part of) a snapshot in.
fn hugging_face_repository(root: &Path) -> Option<&Path> {
    root.ancestors().skip(2).find(|ancestor| {
        let named =
            (ancestor.file_name()).is_some_and(|n| n.as_encoded_bytes().starts_with(b"models--"));
        let mut rest = root.strip_prefix(ancestor).into_iter().flat_map(Path::iter);
        named && rest.next() == Some(OsStr::new("snapshots"))
    })
}

/// The path in the tree of the file at `location`.
fn tree_path(location: &Path, within: &Path) -> Result<TreePath> {
    let text = within
        .to_str()
        .ok_or_else(|| ClientError::checkpoint(location, "its name is not UTF-8"))?;
    TreePath::new(text).map_err(|error| ClientError::checkpoint(location, error))
}

fn not_a_file(location: &Path) -> ClientError {
    ClientError::checkpoint(location, "neither a file nor a folder")
}
