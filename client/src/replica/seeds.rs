//! Seeds: checkpoints on this machine whose contents are reused where their hash is the wanted one.
//!
//! A seed only ever saves work, so one that cannot be read is skipped, with its reason, and what it would have given
//! comes from elsewhere.

use crate::checkpoint::Checkpoint;
use crate::error::{ClientError, Result};
use crate::parts::{check_cancelled, parts};
use deltaic_format::name::TreePath;
use deltaic_format::object::TensorSpec;
use deltaic_format::progress::Progress;
use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;

/// A tensor or file of a seed.
#[derive(Debug, Clone, Copy)]
struct SeedContent {
    seed: usize,
    file: usize,
    /// Where a tensor begins in the data of its weight file; `None` for a file that is no weight file.
    offset: Option<u64>,
    len: u64,
    hashed: bool,
}

/// Everything that the seeds hold, hashed when it is first considered.
#[derive(Debug, Default)]
pub(super) struct Seeds {
    /// Where each is, and its checkpoint as long as it can be read.
    seeds: Vec<(PathBuf, Option<Checkpoint>)>,
    contents: Vec<SeedContent>,
    /// Contents by length and by what they are called.
    by_label: HashMap<(u64, String), Vec<usize>>,
    /// Contents by length that nobody has considered for their length alone yet.
    by_len: HashMap<u64, VecDeque<usize>>,
    by_id: HashMap<[u8; 32], usize>,
    skipped: Vec<String>,
    buffer: Vec<u8>,
}

/// What tensors of the same name, dtype and shape have in common.
pub(super) fn tensor_label(spec: &TensorSpec) -> String {
    format!("{} {} {:?}", spec.dtype, spec.name, spec.shape)
}

/// What files of the same name have in common.
pub(super) fn file_label(path: &TreePath) -> String {
    format!("file {path}")
}

impl Seeds {
    /// Open the checkpoints at `paths`, as far as they are any.
    pub(super) fn open(paths: &[PathBuf]) -> Self {
        let mut seeds = Self::default();
        for (number, path) in paths.iter().enumerate() {
            match Checkpoint::open(path) {
                Ok(checkpoint) => {
                    seeds.add_checkpoint(number, &checkpoint);
                    seeds.seeds.push((path.clone(), Some(checkpoint)));
                }
                Err(error) => {
                    seeds.seeds.push((path.clone(), None));
                    seeds.skipped.push(error.to_string());
                }
            }
        }
        seeds
    }

    /// Whether nothing can be found in them.
    pub(super) fn is_empty(&self) -> bool {
        self.contents.is_empty()
    }

    /// Why seeds were skipped, in words that name them.
    pub(super) fn into_skipped(self) -> Vec<String> {
        self.skipped
    }

    fn add_checkpoint(&mut self, number: usize, checkpoint: &Checkpoint) {
        for (file, spec) in checkpoint.schema().files.iter().enumerate() {
            let mut offset = 0;
            for tensor in &spec.tensors {
                let (at, len) = (Some(offset), tensor.byte_len());
                self.add(number, file, at, len, tensor_label(tensor));
                offset += len;
            }
        }
        for (file, plain) in checkpoint.files().iter().enumerate() {
            self.add(number, file, None, plain.size, file_label(&plain.path));
        }
    }

    fn add(&mut self, seed: usize, file: usize, offset: Option<u64>, len: u64, label: String) {
        let number = self.contents.len();
        self.contents.push(SeedContent {
            seed,
            file,
            offset,
            len,
            hashed: false,
        });
        self.by_label.entry((len, label)).or_default().push(number);
        self.by_len.entry(len).or_default().push_back(number);
    }

    /// The content of `len` bytes with hash `id`: looked for among those called `label`, then among all of that length.
    pub(super) fn find(
        &mut self,
        id: &[u8; 32],
        len: u64,
        label: String,
        progress: &dyn Progress,
    ) -> Result<Option<usize>> {
        let named = self.by_label.remove(&(len, label)).unwrap_or_default();
        for candidate in named {
            self.hash(candidate, progress)?;
        }
        while !self.by_id.contains_key(id)
            && let Some(candidate) = self.by_len.get_mut(&len).and_then(VecDeque::pop_front)
        {
            self.hash(candidate, progress)?;
        }
        Ok(self.by_id.get(id).copied())
    }

    /// Fill `out` from byte `offset` of content `content`.
    pub(super) fn read(&self, content: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        let SeedContent {
            seed,
            file,
            offset: begin,
            ..
        } = self.contents[content];
        let (path, checkpoint) = &self.seeds[seed];
        let Some(checkpoint) = checkpoint else {
            return Err(ClientError::NoCheckpoint {
                path: path.clone(),
                what: "it is skipped".into(),
            });
        };
        match begin {
            Some(begin) => checkpoint.read_data(file, begin + offset, out),
            None => checkpoint.read_file(file, offset, out),
        }
    }

    /// Take nothing more from the seed that `content` is in, because of `error`.
    pub(super) fn skip(&mut self, content: usize, error: &ClientError) {
        let seed = self.contents[content].seed;
        let (path, checkpoint) = &mut self.seeds[seed];
        if checkpoint.take().is_some() {
            self.skipped.push(format!("{}: {error}", path.display()));
        }
        let contents = &self.contents;
        self.by_id.retain(|_, found| contents[*found].seed != seed);
    }

    /// Hash a content, unless that was done or its seed is skipped.
    fn hash(&mut self, content: usize, progress: &dyn Progress) -> Result<()> {
        let SeedContent { seed, len, .. } = self.contents[content];
        let hashed = std::mem::replace(&mut self.contents[content].hashed, true);
        if hashed || self.seeds[seed].1.is_none() {
            return Ok(());
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut hasher = blake3::Hasher::new();
        for range in parts(0..len) {
            check_cancelled(progress)?;
            buffer.resize((range.end - range.start) as usize, 0);
            if let Err(error) = self.read(content, range.start, &mut buffer) {
                self.skip(content, &error);
                return Ok(());
            }
            hasher.update(&buffer);
            progress.advance(buffer.len() as u64);
        }
        self.buffer = buffer;
        let hash = *hasher.finalize().as_bytes();
        self.by_id.insert(hash, content);
        Ok(())
    }
}
