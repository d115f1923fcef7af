//! A server of a real store behind a [`Network`], in this process: links that fail, restarts, and a paused clock.
//!
//! With a paused clock time jumps to the next timer whenever all tasks wait for one, so that patience costs nothing. It does
//! not while a thread for blocking work runs; where such a thread itself waits for the network, as that of a pull does, the
//! clock would stand still for ever: [`Hurry`] makes it go on.

use crate::checkpoints::{NamedTensor, TensorContent, read_folder, write_folder};
use crate::network::{Conditions, FaultAt, Incoming, Network, Through, Way};
use crate::weights::{Density, Update, content, updated};
use deltaic_client::{Checkpoint, ClientError, Remote, RemoteOptions, Repository};
use deltaic_format::Dtype;
use deltaic_format::answers::{CommitOutcome, CommitRequest, VerifyOptions};
use deltaic_format::base::decode_base;
use deltaic_format::fetch::{Chunk, Delivery, FetchRequest, Position, Span};
use deltaic_format::ids::{CommitId, FileId};
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::Snapshot;
use deltaic_format::patch::apply;
use deltaic_format::patch_set::PatchSetReader;
use deltaic_format::progress::Silent;
use deltaic_server::embedded::{Committed, Embedded};
use deltaic_server::serve::{Changes, ServeOptions, Shutdown, serve_connections};
use deltaic_store::Store;
use futures::TryStreamExt;
use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// The repository of these tests.
pub fn policy() -> RepoName {
    RepoName::new("acme/policy").expect("a valid name")
}

/// Its branch.
pub fn main_branch() -> BranchName {
    BranchName::new("main").expect("a valid name")
}

/// A commit to a branch at a time that is always the same.
pub fn request_to(repo: &RepoName, branch: &BranchName, message: &str) -> CommitRequest {
    CommitRequest {
        repo: repo.clone(),
        branch: branch.clone(),
        message: message.to_owned(),
        meta: BTreeMap::from([("step".to_owned(), "7".to_owned())]),
        time_ms: 1_700_000_000_000,
        expect: None,
    }
}

/// Three versions of a model of about 10 MB, each of which has more than a third of its larger tensors rewritten: whole it takes
/// more than eight chunks, and a patch from one to the next several.
pub fn large_model() -> [Vec<NamedTensor>; 3] {
    let mut tensors = vec![
        ("embed".to_owned(), Dtype::BF16, 2_900_000),
        ("head".to_owned(), Dtype::F32, 900_000),
        ("mask".to_owned(), Dtype::U8, 300_000),
    ];
    tensors.extend((0..8).map(|i| (format!("layers.{i}.norm"), Dtype::BF16, 1000 + i)));
    versions(&tensors, Density::Share(0.4))
}

/// Three versions of a model of a few kilobytes.
pub fn small_model() -> [Vec<NamedTensor>; 3] {
    let tensors = [("w", Dtype::BF16, 2000), ("b", Dtype::F32, 300)];
    versions(
        &tensors.map(|(name, dtype, elements)| (name.to_owned(), dtype, elements)),
        Density::Share(0.1),
    )
}

fn versions(tensors: &[(String, Dtype, u64)], density: Density) -> [Vec<NamedTensor>; 3] {
    let of = |version: u64| {
        let tensors = tensors.iter().zip(0..);
        let tensor = |((name, dtype, elements), seed): (&(String, Dtype, u64), u64)| {
            let class = dtype.class_of(name);
            let mut bytes = content(class, *elements, seed);
            for update in 1..=version {
                bytes = updated(class, &bytes, density, Update::Rewrite, 100 * update + seed);
            }
            NamedTensor::flat(name, *dtype, bytes)
        };
        tensors.map(tensor).collect()
    };
    [0, 1, 2].map(of)
}

/// A store in a scratch folder, its server, and the links to it.
#[derive(Debug)]
pub struct Linked {
    dir: TempDir,
    /// The links.
    pub network: Arc<Network>,
    options: ServeOptions,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    store: Arc<Store>,
    shutdown: Shutdown,
    serving: JoinHandle<()>,
}

impl Linked {
    /// An empty store, served over links of these conditions.
    ///
    /// # Panics
    ///
    /// If the store cannot be made.
    pub fn new(conditions: Conditions) -> Self {
        let dir = TempDir::new().expect("a scratch folder can be made");
        Store::init(&dir.path().join("store")).expect("a store can be made");
        let (network, incoming) = Network::new(conditions);
        let mut linked = Self {
            dir,
            network,
            options: ServeOptions::default(),
            running: None,
        };
        linked.start(incoming);
        linked
    }

    /// An empty store behind links that have no delay.
    pub fn direct() -> Self {
        Self::new(Conditions::default())
    }

    /// A path in the scratch folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start(&mut self, incoming: Incoming) {
        let store = Store::open(&self.path("store")).expect("the store can be opened");
        let store = Arc::new(store);
        // A new server has nothing of an old one but the store.
        self.options.changes = Changes::default();
        let shutdown = Shutdown::default();
        let (served, options, ending) =
            (Arc::clone(&store), self.options.clone(), shutdown.clone());
        let serving = tokio::spawn(async move {
            let result = serve_connections(served, options, incoming, ending).await;
            result.expect("the services can be set up");
        });
        self.running = Some(Running {
            store,
            shutdown,
            serving,
        });
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("the server runs")
    }

    /// End the server at once and open the store anew, in a new server. Connections that are made meanwhile wait for it.
    ///
    /// # Panics
    ///
    /// If the store is not let go of, or cannot be opened again.
    pub async fn restart(&mut self) {
        let incoming = self.network.reroute();
        let Running {
            store,
            shutdown,
            serving,
        } = self.running.take().expect("the server runs");
        shutdown.now.cancel();
        serving.await.expect("the server ends");
        let left: Weak<Store> = Arc::downgrade(&store);
        drop(store);
        for _ in 0..100_000 {
            if left.strong_count() == 0 {
                return self.start(incoming);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("the store of a server that has ended is still in use");
    }

    /// Do something through a [`restart`](Self::restart), which comes as soon as all faults that were planned have happened; if
    /// they do before it is done.
    pub async fn through_restart<T>(&mut self, work: impl Future<Output = T>) -> T {
        let done = AtomicBool::new(false);
        let working = async {
            let result = work.await;
            done.store(true, Ordering::SeqCst);
            result
        };
        let restarting = async {
            while self.network.faults_left() > 0 {
                if done.load(Ordering::SeqCst) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            self.restart().await;
        };
        tokio::join!(working, restarting).0
    }

    /// The store itself.
    pub fn store(&self) -> &Arc<Store> {
        &self.running().store
    }

    /// The store as repositories, without any link.
    pub fn local(&self) -> Arc<dyn Repository> {
        let changes = self.options.changes.clone();
        Arc::new(Embedded::told(Arc::clone(self.store()), changes))
    }

    /// A new client, that has no connection yet.
    pub fn remote(&self) -> Arc<dyn Repository> {
        self.remote_with(RemoteOptions::new(["http://server:1"]))
    }

    /// The same with options of its own.
    ///
    /// # Panics
    ///
    /// If they are not valid.
    pub fn remote_with(&self, options: RemoteOptions) -> Arc<dyn Repository> {
        let through = Through(Arc::clone(&self.network));
        Arc::new(Remote::with_connector(options, Arc::new(through)).expect("valid options"))
    }

    /// Write a checkpoint folder of `tensors` named `name`.
    ///
    /// # Panics
    ///
    /// If it cannot be written.
    pub fn checkpoint(&self, name: &str, tensors: Vec<NamedTensor>) -> PathBuf {
        let folder = self.path(name);
        write_folder(&folder, &[("model.safetensors", tensors)]).expect("it can be written");
        // Not the same in two versions, and longer than one part of a file.
        let notes = format!("{name} ").repeat(20_000);
        fs::write(folder.join("notes.txt"), notes).expect("it can be written");
        folder
    }

    /// Commit a checkpoint folder in process, and say so to those who watch.
    ///
    /// # Panics
    ///
    /// If it cannot be committed.
    pub fn commit(&self, request: &CommitRequest, folder: &Path) -> CommitOutcome {
        let checkpoint = Checkpoint::open(folder).expect("it is a checkpoint");
        let outcome = self
            .store()
            .commit(request, &Committed::new(&checkpoint), &Silent)
            .expect("it can be committed");
        self.options.changes.made();
        outcome
    }

    /// A version's objects, as the store has them.
    ///
    /// # Panics
    ///
    /// If they are not there.
    pub fn snapshot(&self, id: CommitId) -> Snapshot {
        self.store().snapshot(id).expect("the version is there")
    }

    /// Where a branch stands, with everything before it, newest first.
    ///
    /// # Panics
    ///
    /// If it is not there.
    pub fn history(&self, repo: &RepoName, branch: &BranchName) -> Vec<CommitId> {
        let head = self.store().branch(repo, branch).expect("it is there");
        let ids = self.store().history(head.commit).map(|entry| {
            let (id, _) = entry.expect("it can be read");
            id
        });
        ids.collect()
    }

    /// Fail unless the version `id` in the store is the checkpoint in `folder`: its tensors byte for byte, other files by their
    /// ids, whose bytes [`assert_healthy`](Self::assert_healthy) reads.
    ///
    /// # Panics
    ///
    /// If it is not.
    pub fn assert_stored(&self, id: CommitId, folder: &Path) {
        let snapshot = self.snapshot(id);
        let committed = read_folder(folder).expect("it can be read");
        let views = snapshot.tensors();
        assert_eq!(views.len(), committed.len());
        for (view, tensor) in views.iter().zip(&committed) {
            assert_eq!(*view.spec, tensor.spec);
            let mut content = Vec::new();
            let read = self
                .store()
                .read_tensor(view.spec.class, view.entry.id, |part| {
                    content.extend_from_slice(part);
                    Ok(())
                });
            read.expect("the content is there");
            assert!(content == tensor.content, "{} differs", view.spec.name);
        }
        let mut names = Vec::new();
        for file in &snapshot.tree.files {
            let content = fs::read(folder.join(file.path.as_str())).expect("it is there");
            assert_eq!(file.id, FileId::of(&content), "{}", file.path);
            names.push(file.path.as_str());
        }
        assert_eq!(names, ["config.json", "notes.txt"]);
    }

    /// Fail unless everything in the store is whole and proven.
    ///
    /// # Panics
    ///
    /// If it is not.
    pub fn assert_healthy(&self) {
        let options = VerifyOptions {
            read_data_percent: Some(100.0),
        };
        let report = self.store().verify(&options, &Silent);
        let report = report.expect("it can be verified");
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }

    /// Let faults happen from now on, and count from 0, once connections of earlier clients have ended.
    pub async fn plan(&self, faults: Vec<FaultAt>) {
        tokio::time::sleep(Duration::from_millis(900)).await;
        self.network.plan(faults);
    }

    /// Let faults happen to a fetch by a new client.
    ///
    /// # Errors
    ///
    /// The fetch's.
    pub async fn fetch(
        &self,
        request: &FetchRequest,
        faults: Vec<FaultAt>,
    ) -> Result<Vec<Chunk>, ClientError> {
        self.plan(faults).await;
        collect(self.remote(), request).await
    }

    /// What goes to the client and to the server, and the connections, since the last plan.
    pub fn traffic(&self) -> (u64, u64, u64) {
        let network = &self.network;
        (
            network.bytes(Way::ToClient),
            network.bytes(Way::ToServer),
            network.connections(),
        )
    }
}

/// All chunks of a fetch.
///
/// # Errors
///
/// The fetch's.
pub async fn collect(
    repository: Arc<dyn Repository>,
    request: &FetchRequest,
) -> Result<Vec<Chunk>, ClientError> {
    let chunks = repository
        .fetch(request.clone(), Position::default())
        .await?;
    chunks.try_collect().await
}

/// What comes of `held`, the contents of a version or of none, by the chunks of an answer that wants `want`.
///
/// # Panics
///
/// If the chunks do not decode, or leave gaps in a tensor that is answered by contents.
pub fn assembled(
    held: Option<&[TensorContent]>,
    want: &Snapshot,
    chunks: &[Chunk],
) -> Vec<Vec<u8>> {
    let specs: Vec<_> = want.schema.tensors().collect();
    let mut contents: Vec<Vec<u8>> = match held {
        Some(held) => held.iter().map(|tensor| tensor.content.clone()).collect(),
        None => specs.iter().map(|_| Vec::new()).collect(),
    };
    assert_eq!(contents.len(), specs.len());
    let mut replaced = BTreeMap::new();
    let place = |span: &Span, width: usize| {
        let first = span.first as usize * width;
        first..first + span.elements as usize * width
    };
    for chunk in chunks {
        match &chunk.delivery {
            Delivery::Patches { members, bytes } => {
                let set = PatchSetReader::new(bytes).expect("a patch set");
                for (member, span) in members.iter().enumerate() {
                    let class = specs[span.tensor].class;
                    let changes = set.member(member).expect("a patch");
                    let part = &mut contents[span.tensor][place(span, class.width())];
                    apply(class, part, &changes).expect("it fits");
                }
            }
            Delivery::Content { span, bytes } => {
                let (class, content) = decode_base(bytes).expect("a base");
                assert_eq!(class, specs[span.tensor].class);
                let whole: &mut Vec<u8> = replaced.entry(span.tensor).or_default();
                assert_eq!(
                    place(span, class.width()),
                    whole.len()..whole.len() + content.len()
                );
                whole.extend(content);
            }
        }
    }
    for (tensor, content) in replaced {
        contents[tensor] = content;
    }
    contents
}

/// Lets a paused clock go on, twenty times as fast as real time, as long as this lives.
#[derive(Debug)]
pub struct Hurry {
    running: JoinHandle<()>,
}

impl Hurry {
    /// How far the clock goes in a millisecond.
    const STEP: Duration = Duration::from_millis(20);

    /// Begin. The thread that ticks is none of the runtime's: the clock still jumps where nothing but timers is waited for.
    pub fn start() -> Self {
        let (tick, mut ticks) = mpsc::channel(1);
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(Duration::from_millis(1));
                // Ticks that find the runtime busy are left out, so that what it is busy with takes no time.
                if let Err(mpsc::error::TrySendError::Closed(())) = tick.try_send(()) {
                    return;
                }
            }
        });
        let running = tokio::spawn(async move {
            while ticks.recv().await.is_some() {
                tokio::time::advance(Self::STEP).await;
            }
        });
        Self { running }
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        self.running.abort();
    }
}
