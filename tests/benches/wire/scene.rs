//! What is served: a large made-up model of two versions, and the real policy.

use deltaic_format::answers::CommitRequest;
use deltaic_format::fetch::FetchRequest;
use deltaic_format::ids::CommitId;
use deltaic_format::name::{RepoName, TreePath};
use deltaic_format::object::{Schema, Snapshot, TensorSpec, WeightFileSpec};
use deltaic_format::progress::Silent;
use deltaic_format::revision::default_branch;
use deltaic_format::{Dtype, ElementClass};
use deltaic_server::embedded::Committed;
use deltaic_server::serve::{ServeOptions, Server, Shutdown};
use deltaic_store::{Checkpoint, PlainFile, Store};
use deltaic_tests::weights::{self, Density, Update};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// Tensors of the made-up model, and elements of each: 1.07 GB.
pub(crate) const TENSORS: usize = 128;
const ELEMENTS: usize = 1 << 22;

/// Each tensor is the pattern rotated by so many elements more than the one before it.
const ROTATION: usize = 32_717;

/// The repository of either model.
pub(crate) fn repo() -> RepoName {
    RepoName::new("bench/model").expect("the name is valid")
}

/// A made-up checkpoint of bf16 tensors, never in memory whole.
struct MadeUp {
    schema: Schema,
    pattern: Vec<u8>,
}

impl MadeUp {
    fn new(pattern: Vec<u8>) -> Self {
        let spec = |i| TensorSpec::new(format!("layers.{i}.weight"), Dtype::BF16, shape());
        let file = WeightFileSpec {
            path: TreePath::new("model.safetensors").expect("the path is valid"),
            tensors: (0..TENSORS)
                .map(|i| spec(i).expect("the tensor is valid"))
                .collect(),
        };
        Self {
            schema: Schema { files: vec![file] },
            pattern,
        }
    }
}

fn shape() -> Vec<u64> {
    vec![2048, (ELEMENTS / 2048) as u64]
}

impl Checkpoint for MadeUp {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn header(&self, _file: usize) -> &[u8] {
        b"{}"
    }

    fn read_data(&self, _file: usize, offset: u64, out: &mut [u8]) -> Result<(), String> {
        let len = self.pattern.len();
        let (mut at, mut rest) = (offset as usize, out);
        while !rest.is_empty() {
            let (tensor, within) = (at / len, at % len);
            let from = (within + 2 * ROTATION * tensor) % len;
            let take = rest.len().min(len - from).min(len - within);
            let (filled, after) = rest.split_at_mut(take);
            filled.copy_from_slice(&self.pattern[from..from + take]);
            (at, rest) = (at + take, after);
        }
        Ok(())
    }

    fn files(&self) -> &[PlainFile] {
        &[]
    }

    fn read_file(&self, _file: usize, _offset: u64, _out: &mut [u8]) -> Result<(), String> {
        Err("there are no other files".to_owned())
    }

    fn check_unchanged(&self) -> Result<(), String> {
        Ok(())
    }
}

/// A store in a scratch folder, with its versions.
pub(crate) struct Scene {
    pub(crate) folder: TempDir,
    pub(crate) versions: Vec<CommitId>,
}

impl Scene {
    fn new(versions: impl FnOnce(&Store) -> Vec<CommitId>) -> Self {
        let folder = TempDir::new().expect("a scratch folder can be made");
        let (store, _) = Store::init(&folder.path().join("store")).expect("a store can be made");
        let versions = versions(&store);
        Self { folder, versions }
    }

    /// A gigabyte of weights, and the same after a step that changed a fifth of them.
    pub(crate) fn large() -> Self {
        let pattern = weights::bf16_weights(ELEMENTS as u64, 1);
        let (class, density) = (ElementClass::BF16, Density::Share(0.2));
        let next = weights::updated(class, &pattern, density, Update::Step, 2);
        Self::new(|store| {
            let commit = |pattern| commit(store, &MadeUp::new(pattern));
            [pattern, next].map(commit).to_vec()
        })
    }

    /// Checkpoint folders.
    pub(crate) fn of_folders(folders: &[PathBuf]) -> Self {
        Self::new(|store| {
            let commit = |folder: &PathBuf| {
                let opened = deltaic_client::Checkpoint::open(folder).expect("a checkpoint");
                commit(store, &Committed::new(&opened))
            };
            folders.iter().map(commit).collect()
        })
    }

    /// Where the store lies.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// The store, open in this process.
    pub(crate) fn open(&self) -> Arc<Store> {
        Arc::new(open(&self.path()))
    }
}

fn commit(store: &Store, checkpoint: &dyn Checkpoint) -> CommitId {
    let request = CommitRequest {
        repo: repo(),
        branch: default_branch(),
        message: String::new(),
        meta: BTreeMap::new(),
        time_ms: 0,
        expect: None,
    };
    let outcome = store.commit(&request, checkpoint, &Silent);
    outcome.expect("it can be committed").id
}

fn open(path: &Path) -> Store {
    Store::open(path).expect("the store can be opened")
}

/// Everything of version `to` for someone who holds `from`, or nothing.
pub(crate) fn request(store: &Store, from: Option<CommitId>, to: CommitId) -> FetchRequest {
    let snapshot = |id| store.snapshot(id).expect("the version is there");
    let from: Option<Snapshot> = from.map(snapshot);
    FetchRequest::all(repo(), &snapshot(to), from.as_ref())
}

/// A server of `store` in this process, on a port that is free; ends when dropped.
pub(crate) struct InProcess {
    pub(crate) url: String,
    shutdown: Shutdown,
}

impl InProcess {
    pub(crate) async fn start(store: &Arc<Store>) -> Self {
        let options = ServeOptions {
            listen: ([127, 0, 0, 1], 0).into(),
            ..ServeOptions::default()
        };
        let server = Server::bind(store.clone(), options).await;
        let server = server.expect("a port is free");
        let shutdown = Shutdown::default();
        let url = format!("http://{}", server.address());
        tokio::spawn(server.run(shutdown.clone()));
        Self { url, shutdown }
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.shutdown.drain.cancel();
        self.shutdown.now.cancel();
    }
}
