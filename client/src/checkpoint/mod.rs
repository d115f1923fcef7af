//! A checkpoint on disk: what a commit reads, and what a pull reuses as a seed.
//!
//! A folder of safetensors shards with any other files around them, a snapshot in a Hugging Face cache
//! (whose files are symlinks), or a single safetensors file. Everything is read in bounded parts.

mod index;
mod walk;

use crate::error::{At, ClientError, Result};
use crate::handles::Handles;
use crate::parts::read_exact_at;
use deltaic_format::name::TreePath;
use deltaic_format::object::{FileMode, Schema, WeightFileSpec};
use deltaic_format::safetensors::{LENGTH_PREFIX, header_len, parse_header};
use std::path::{Path, PathBuf};
use walk::FoundFile;

/// Ending of a weight file's name.
const WEIGHT_FILE: &str = ".safetensors";

/// A file of a checkpoint that is no weight file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainFile {
    /// Where it lies in the checkpoint.
    pub path: TreePath,
    /// Whether it may be executed.
    pub mode: FileMode,
    /// Its length in bytes.
    pub size: u64,
}

/// The files of a checkpoint as they were when it was opened; may be read from several threads.
#[derive(Debug)]
pub struct Checkpoint {
    root: PathBuf,
    schema: Schema,
    headers: Vec<Vec<u8>>,
    files: Vec<PlainFile>,
    /// The weight files in the order of the schema, then the others in the order of `files`.
    found: Vec<FoundFile>,
    handles: Handles,
}

impl Checkpoint {
    /// Find the checkpoint at `path`, a folder or a `.safetensors` file, and read its headers.
    ///
    /// Left out are `.git`, folders that are Deltaic stores, and at the top `.deltaic` and `.cache/huggingface`, which
    /// tools keep for themselves.
    ///
    /// # Errors
    ///
    /// If there is no weight file; if something in the folder is neither file nor folder, leaves it, or has a name
    /// that no tree can hold; if a safetensors file is malformed or an index names what is not there.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let found = walk::find_files(path)?;
        let (weights, others): (Vec<_>, Vec<_>) =
            (found.into_iter()).partition(|file| file.path.as_str().ends_with(WEIGHT_FILE));
        if weights.is_empty() {
            return Err(ClientError::NoCheckpoint {
                path: path.to_owned(),
                what: "it has no *.safetensors file".into(),
            });
        }
        let mut schema = Schema::default();
        let mut headers = Vec::with_capacity(weights.len());
        for file in &weights {
            let (spec, header) = read_weight_file(file)?;
            schema.files.push(spec);
            headers.push(header);
        }
        for file in &others {
            if index::is_index(&file.path) {
                index::check(file, &schema)?;
            }
        }
        let files = others.iter().map(|file| PlainFile {
            path: file.path.clone(),
            mode: file.mode,
            size: file.identity.len,
        });
        Ok(Self {
            root: path.to_owned(),
            schema,
            headers,
            files: files.collect(),
            found: weights.into_iter().chain(others).collect(),
            handles: Handles::default(),
        })
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// What tells these files from any others, and from themselves once they are changed: their places, lengths, times and
    /// inodes, hashed.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("deltaic 2026-11-30 checkpoint files v1");
        for file in &self.found {
            file.hash_identity(&mut hasher);
        }
        *hasher.finalize().as_bytes()
    }

    /// Names, dtypes, shapes and file layout of the tensors.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The verbatim safetensors header of weight file `file` (its place in the schema), without the length before it.
    ///
    /// # Panics
    ///
    /// If there is no such file.
    pub fn header(&self, file: usize) -> &[u8] {
        &self.headers[file]
    }

    /// Fill `out` from the data of weight file `file`; `offset` counts bytes from the first tensor's first.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, shrank, or is not the one that was opened.
    ///
    /// # Panics
    ///
    /// If there is no such file.
    pub fn read_data(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        let data = LENGTH_PREFIX + self.headers[file].len() as u64;
        self.read(file, data + offset, out)
    }

    /// All other files, ascending by path.
    pub fn files(&self) -> &[PlainFile] {
        &self.files
    }

    /// Fill `out` from file `file` (its place in [`files`](Self::files)) at byte `offset`.
    ///
    /// # Errors
    ///
    /// As [`read_data`](Self::read_data).
    ///
    /// # Panics
    ///
    /// If there is no such file.
    pub fn read_file(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        self.read(self.headers.len() + file, offset, out)
    }

    /// Fail if a file has changed since the checkpoint was opened, as its length, time and inode say.
    ///
    /// # Errors
    ///
    /// Names the file.
    pub fn check_unchanged(&self) -> Result<()> {
        self.found.iter().try_for_each(FoundFile::check_unchanged)
    }

    /// Length of all files together, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.found.iter().map(|file| file.identity.len).sum()
    }

    fn read(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        let found = &self.found[file];
        let handle = self.handles.get(file, || found.open())?;
        read_exact_at(&handle, &found.location, offset, out)
    }
}

/// A weight file's tensors, and its header as it stands.
fn read_weight_file(file: &FoundFile) -> Result<(WeightFileSpec, Vec<u8>)> {
    let location = &file.location;
    let malformed = |error| ClientError::checkpoint(location, error);
    let handle = file.open()?;
    let len = file.identity.len;
    let mut prefix = [0; LENGTH_PREFIX as usize];
    if len < LENGTH_PREFIX {
        return Err(ClientError::checkpoint(
            location,
            format!("{len} bytes are too few for a safetensors file"),
        ));
    }
    read_exact_at(&handle, location, 0, &mut prefix)?;
    let header_len = header_len(prefix, len).map_err(malformed)?;
    let mut header = vec![0; header_len as usize];
    read_exact_at(&handle, location, LENGTH_PREFIX, &mut header)?;
    let layout = parse_header(&header, len - LENGTH_PREFIX - header_len).map_err(malformed)?;
    let spec = WeightFileSpec {
        path: file.path.clone(),
        tensors: layout.tensors,
    };
    Ok((spec, header))
}

impl FoundFile {
    /// Open the file and check that it is still the one that was found.
    fn open(&self) -> Result<std::fs::File> {
        let file = std::fs::File::open(&self.location).at(&self.location)?;
        let metadata = file.metadata().at(&self.location)?;
        self.check_identity(&metadata)?;
        Ok(file)
    }
}
