//! Seeds: checkpoints on this machine whose contents are reused where their hash is the wanted one.

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::parts::{check_cancelled, parts};
use deltaic_format::name::TreePath;
use deltaic_format::object::TensorSpec;
use deltaic_format::progress::Progress;
use std::collections::HashMap;
use std::path::PathBuf;

/// A tensor or file of a seed.
#[derive(Debug, Clone, Copy)]
struct SeedContent {
    checkpoint: usize,
    file: usize,
    /// Where a tensor begins in the data of its weight file; `None` for a file that is no weight file.
    offset: Option<u64>,
    len: u64,
    hashed: bool,
}

/// Everything that the seeds hold, hashed when it is first considered.
#[derive(Debug, Default)]
pub(super) struct Seeds {
    checkpoints: Vec<Checkpoint>,
    contents: Vec<SeedContent>,
    /// Contents by length and by what they are called.
    by_label: HashMap<(u64, String), Vec<usize>>,
    by_len: HashMap<u64, Vec<usize>>,
    by_id: HashMap<[u8; 32], usize>,
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
    /// Open the checkpoints at `paths`.
    pub(super) fn open(paths: &[PathBuf]) -> Result<Self> {
        let mut seeds = Self::default();
        for (number, path) in paths.iter().enumerate() {
            let checkpoint = Checkpoint::open(path)?;
            for (file, spec) in checkpoint.schema().files.iter().enumerate() {
                let mut offset = 0;
                for tensor in &spec.tensors {
                    let (at, len) = (Some(offset), tensor.byte_len());
                    seeds.add(number, file, at, len, tensor_label(tensor));
                    offset += len;
                }
            }
            for (file, plain) in checkpoint.files().iter().enumerate() {
                seeds.add(number, file, None, plain.size, file_label(&plain.path));
            }
            seeds.checkpoints.push(checkpoint);
        }
        Ok(seeds)
    }

    fn add(
        &mut self,
        checkpoint: usize,
        file: usize,
        offset: Option<u64>,
        len: u64,
        label: String,
    ) {
        let number = self.contents.len();
        self.contents.push(SeedContent {
            checkpoint,
            file,
            offset,
            len,
            hashed: false,
        });
        self.by_label.entry((len, label)).or_default().push(number);
        self.by_len.entry(len).or_default().push(number);
    }

    /// The content of `len` bytes with hash `id`: looked for among those called `label`, then among all of that length.
    pub(super) fn find(
        &mut self,
        id: &[u8; 32],
        len: u64,
        label: String,
        progress: &dyn Progress,
    ) -> Result<Option<usize>> {
        let named = self.by_label.get(&(len, label)).into_iter().flatten();
        let candidates: Vec<usize> = named
            .chain(self.by_len.get(&len).into_iter().flatten())
            .copied()
            .collect();
        for candidate in candidates {
            if self.by_id.contains_key(id) {
                break;
            }
            if !std::mem::replace(&mut self.contents[candidate].hashed, true) {
                let hash = self.hash(candidate, progress)?;
                self.by_id.insert(hash, candidate);
            }
        }
        Ok(self.by_id.get(id).copied())
    }

    /// Fill `out` from byte `offset` of content `content`.
    pub(super) fn read(&self, content: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        let SeedContent {
            checkpoint,
            file,
            offset: begin,
            ..
        } = self.contents[content];
        let checkpoint = &self.checkpoints[checkpoint];
        match begin {
            Some(begin) => checkpoint.read_data(file, begin + offset, out),
            None => checkpoint.read_file(file, offset, out),
        }
    }

    fn hash(&mut self, content: usize, progress: &dyn Progress) -> Result<[u8; 32]> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut hasher = blake3::Hasher::new();
        for range in parts(0..self.contents[content].len) {
            check_cancelled(progress)?;
            buffer.resize((range.end - range.start) as usize, 0);
            self.read(content, range.start, &mut buffer)?;
            hasher.update(&buffer);
            progress.advance(buffer.len() as u64);
        }
        self.buffer = buffer;
        Ok(*hasher.finalize().as_bytes())
    }
}
