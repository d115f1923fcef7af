//! A store with a few versions, served on a port by this process: what hostile peers are let loose on.

use crate::checkpoints::{NamedTensor, write_folder};
use crate::linked::{main_branch, policy, request_to};
use crate::weights::Stream;
use deltaic_client::asynchronous::pull;
use deltaic_client::{
    Checkpoint, ClientError, PullOptions, PullOutcome, Remote, RemoteOptions, ReplicaFolder,
    Repository, Trust,
};
use deltaic_format::Dtype;
use deltaic_format::answers::VerifyOptions;
use deltaic_format::ids::CommitId;
use deltaic_format::object::Snapshot;
use deltaic_format::progress::Silent;
use deltaic_server::embedded::Committed;
use deltaic_server::serve::{ServeOptions, Server, Shutdown};
use deltaic_store::Store;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// A store, its versions, and its server.
#[derive(Debug)]
pub struct Scene {
    dir: TempDir,
    /// The store.
    pub store: Arc<Store>,
    /// Where it is served.
    pub url: String,
    /// The commits of its versions.
    pub versions: Vec<CommitId>,
    shutdown: Shutdown,
    serving: JoinHandle<()>,
}

/// The tensors of a version: two dtypes, tensors of one span and of several, each changed here and there.
fn tensors(version: u64) -> Vec<NamedTensor> {
    let sizes = [
        ("embed", Dtype::BF16, 1_300_000),
        ("layers.0", Dtype::BF16, 500_000),
        ("layers.1", Dtype::BF16, 500_000),
        ("norm", Dtype::F32, 200_000),
        ("bias", Dtype::F32, 4_000),
    ];
    let tensor = |((name, dtype, len), seed): ((&str, Dtype, usize), u64)| {
        let mut content = Stream::new(seed).bytes(len, 0x3fff_3fff_3fff_3fff);
        let step = 997 + 2 * version as usize;
        content
            .iter_mut()
            .step_by(step)
            .for_each(|byte| *byte ^= version as u8);
        NamedTensor::flat(name, dtype, content)
    };
    sizes.into_iter().zip(0..).map(tensor).collect()
}

impl Scene {
    /// A store with so many versions, served with `options`.
    ///
    /// # Panics
    ///
    /// If that cannot be.
    pub async fn new(versions: u64, options: ServeOptions) -> Self {
        let dir = TempDir::new().expect("a scratch folder can be made");
        let (store, _) = Store::init(&dir.path().join("store")).expect("a store can be made");
        let store = Arc::new(store);
        let options = ServeOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            ..options
        };
        let server = Server::bind(Arc::clone(&store), options).await;
        let server = server.expect("there is a free port");
        let url = format!("http://{}", server.address());
        let shutdown = Shutdown::default();
        let ending = shutdown.clone();
        let serving = tokio::spawn(async move {
            server.run(ending).await.expect("it serves");
        });
        let mut scene = Self {
            dir,
            store,
            url,
            versions: Vec::new(),
            shutdown,
            serving,
        };
        for version in 0..versions {
            scene.commit(tensors(version));
        }
        scene
    }

    /// Commit one more version.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub fn commit(&mut self, tensors: Vec<NamedTensor>) {
        let version = self.versions.len();
        let folder = self.folder(version);
        write_folder(&folder, &[("model.safetensors", tensors)]).expect("it can be written");
        let notes = format!("version {version} ").repeat(10_000);
        fs::write(folder.join("notes.txt"), notes).expect("it can be written");
        let checkpoint = Checkpoint::open(&folder).expect("it is a checkpoint");
        let request = request_to(&policy(), &main_branch(), "a step");
        let outcome = self
            .store
            .commit(&request, &Committed::new(&checkpoint), &Silent);
        self.versions.push(outcome.expect("it is committed").id);
    }

    /// A path in the scratch folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What was committed as a version.
    pub fn folder(&self, version: usize) -> PathBuf {
        self.path(&format!("v{version}"))
    }

    /// A version, straight from the store.
    ///
    /// # Panics
    ///
    /// If it is not there.
    pub fn snapshot(&self, version: usize) -> Snapshot {
        let snapshot = self.store.snapshot(self.versions[version]);
        snapshot.expect("the version is there")
    }

    /// A client that has little patience.
    ///
    /// # Panics
    ///
    /// If `url` is none.
    pub fn impatient(url: &str) -> Arc<dyn Repository> {
        let options = RemoteOptions {
            attempts: Some(3),
            first_pause: Duration::from_millis(5),
            longest_pause: Duration::from_millis(20),
            watch_attempts: Some(2),
            stall_timeout: Duration::from_millis(700),
            progress_timeout: Duration::from_millis(700),
            ..RemoteOptions::new([url])
        };
        Arc::new(Remote::new(options).expect("it is a URL"))
    }

    /// Pull a version from `url` into the replica `name`.
    ///
    /// # Errors
    ///
    /// The pull's.
    pub async fn pull(
        &self,
        url: &str,
        name: &str,
        commit: CommitId,
        trust: Trust,
    ) -> Result<PullOutcome, ClientError> {
        let remote = Self::impatient(url);
        let want = remote.snapshot(&policy(), commit).await?;
        let folder = ReplicaFolder::open_or_create(self.path(name), &Silent)?;
        let options = PullOptions {
            trust,
            ..PullOptions::default()
        };
        let pulled = pull(folder, remote, policy(), want, options, Arc::new(Silent));
        Ok(pulled.await?.1)
    }

    /// Fail unless branches and contents are what the versions that were committed made them.
    ///
    /// # Panics
    ///
    /// If not.
    pub fn assert_untouched(&self) {
        let repos = self.store.repos().expect("they can be listed");
        assert_eq!(repos, [policy()]);
        let branches = self.store.branches(&policy()).expect("they can be listed");
        let heads: Vec<_> = branches
            .iter()
            .map(|branch| (branch.branch.clone(), branch.commit))
            .collect();
        let newest = *self.versions.last().expect("there are versions");
        assert_eq!(heads, [(main_branch(), newest)]);
        let options = VerifyOptions {
            read_data_percent: Some(100.0),
        };
        let report = self
            .store
            .verify(&options, &Silent)
            .expect("it can be verified");
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert_eq!(report.commits, self.versions.len() as u64);
    }

    /// Bytes of all spools, and their number.
    pub fn spools(&self) -> (u64, usize) {
        let entries = fs::read_dir(self.path("store/uploads"));
        let sizes = (entries.into_iter().flatten().flatten())
            .filter_map(|entry| Some(entry.metadata().ok()?.len()));
        sizes.fold((0, 0), |(bytes, files), size| (bytes + size, files + 1))
    }

    /// End the server.
    ///
    /// # Panics
    ///
    /// If it had failed.
    pub async fn end(self) {
        self.shutdown.now.cancel();
        self.serving.await.expect("it ends");
    }
}
