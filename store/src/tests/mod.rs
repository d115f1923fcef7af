//! The store from commit to materialised content, on checkpoints held in memory.

use crate::records::ContentKey;
use crate::{Checkpoint, PlainFile, Store, StoreError};
use deltaic_format::Dtype;
use deltaic_format::answers::{CommitOutcome, CommitRequest, Expect, VerifyOptions};
use deltaic_format::ids::{CommitId, TensorId};
use deltaic_format::name::{BranchName, RepoName, TreePath};
use deltaic_format::object::{FileMode, Schema, Snapshot, TensorSpec, WeightFileSpec};
use deltaic_format::patch::PIECE_ELEMENTS;
use deltaic_format::progress::Silent;
use std::collections::BTreeMap;

mod chains;
mod damage;
mod fetch;
mod reach;
mod refs;
mod slices;
mod stored_sets;
mod uploads;

/// A checkpoint of one weight file and one other file.
#[derive(Clone)]
struct MemoryCheckpoint {
    schema: Schema,
    data: Vec<u8>,
    files: Vec<(PlainFile, Vec<u8>)>,
    listed: Vec<PlainFile>,
    /// Fails the last check, as a file that changed would.
    changes: bool,
}

impl MemoryCheckpoint {
    fn new(tensors: &[(&str, Dtype, Vec<u64>)]) -> Self {
        let specs: Vec<TensorSpec> = tensors
            .iter()
            .map(|(name, dtype, shape)| {
                TensorSpec::new(*name, *dtype, shape.clone()).expect("valid")
            })
            .collect();
        let len: u64 = specs.iter().map(TensorSpec::byte_len).sum();
        let path = TreePath::new("model.safetensors").expect("valid");
        let mut state = 1u64;
        let data = (0..len).map(|_| next(&mut state) as u8).collect();
        Self {
            schema: Schema {
                files: vec![WeightFileSpec {
                    path,
                    tensors: specs,
                }],
            },
            data,
            files: Vec::new(),
            listed: Vec::new(),
            changes: false,
        }
        .with_file("config.json", b"{}".to_vec())
    }

    fn with_file(mut self, path: &str, content: Vec<u8>) -> Self {
        let file = PlainFile {
            path: TreePath::new(path).expect("valid"),
            mode: FileMode::Plain,
            size: content.len() as u64,
        };
        self.files.push((file, content));
        self.files.sort_by(|a, b| a.0.path.cmp(&b.0.path));
        self.listed = self.files.iter().map(|f| f.0.clone()).collect();
        self
    }

    /// Change about one byte in `every`.
    fn step(mut self, seed: u64, every: u64) -> Self {
        let mut state = seed;
        for byte in &mut self.data {
            if next(&mut state).is_multiple_of(every) {
                *byte = byte.wrapping_add(1);
            }
        }
        self
    }

    fn tensor(&self, index: usize) -> &[u8] {
        let specs = &self.schema.files[0].tensors;
        let start: u64 = specs[..index].iter().map(TensorSpec::byte_len).sum();
        &self.data[start as usize..][..specs[index].byte_len() as usize]
    }
}

fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

impl Checkpoint for MemoryCheckpoint {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn header(&self, _file: usize) -> &[u8] {
        b"{\"header\":1}"
    }

    fn read_data(&self, _file: usize, offset: u64, out: &mut [u8]) -> Result<(), String> {
        out.copy_from_slice(&self.data[offset as usize..][..out.len()]);
        Ok(())
    }

    fn files(&self) -> &[PlainFile] {
        &self.listed
    }

    fn read_file(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<(), String> {
        out.copy_from_slice(&self.files[file].1[offset as usize..][..out.len()]);
        Ok(())
    }

    fn check_unchanged(&self) -> Result<(), String> {
        if self.changes {
            return Err("model.safetensors changed while it was read".to_owned());
        }
        Ok(())
    }
}

fn repo() -> RepoName {
    RepoName::new("acme/policy").expect("valid")
}

fn branch(name: &str) -> BranchName {
    BranchName::new(name).expect("valid")
}

fn request(name: &str) -> CommitRequest {
    CommitRequest {
        repo: repo(),
        branch: branch(name),
        message: "step".to_owned(),
        meta: BTreeMap::new(),
        time_ms: 1_700_000_000_000,
        expect: None,
    }
}

fn commit(store: &Store, checkpoint: &MemoryCheckpoint) -> CommitOutcome {
    store
        .commit(&request("main"), checkpoint, &Silent)
        .expect("the commit succeeds")
}

fn check_content(store: &Store, id: CommitId, checkpoint: &MemoryCheckpoint) {
    let snapshot = store.snapshot(id).expect("the commit is there");
    for view in snapshot.tensors() {
        let mut content = Vec::new();
        store
            .read_tensor(view.spec.class, view.entry.id, |piece| {
                content.extend_from_slice(piece);
                Ok(())
            })
            .expect("the tensor reads");
        assert!(
            content == checkpoint.tensor(view.index),
            "{}",
            view.spec.name
        );
    }
}

/// Small, large, scalar, empty, of every width.
fn mixed() -> MemoryCheckpoint {
    MemoryCheckpoint::new(&[
        ("big", Dtype::F8E4M3, vec![PIECE_ELEMENTS + 100_001]),
        ("bf16", Dtype::BF16, vec![300, 500]),
        ("f32", Dtype::F32, vec![70_001]),
        ("f64", Dtype::F64, vec![4097]),
        ("scalar", Dtype::I64, vec![]),
        ("empty", Dtype::F16, vec![0, 7]),
        ("tied", Dtype::BF16, vec![300, 500]),
    ])
}

fn ok(store: &Store) {
    let options = VerifyOptions {
        read_data_percent: Some(100.0),
    };
    let report = store.verify(&options, &Silent).expect("the check runs");
    assert_eq!(report.problems, []);
    assert!(report.contents_read > 0 && report.edges > 0);
}
