//! Replicas fed by a repository: tasks on a runtime on one side, a thread that blocks on the other.

use super::model::{Answer, History, example_trees};
use super::spans::single_spans;
use super::{assert_holds, error_of, pull, pull_with};
use crate::source::{Ask, Source};
use crate::{
    ClientError, Entry, PullOptions, ReplicaFolder, Repository, RepositorySource, Result, Split,
    Trust, UploadSource, Watcher, asynchronous,
};
use async_trait::async_trait;
use bytes::Bytes;
use deltaic_format::Version;
use deltaic_format::answers::{
    CommitOutcome, CommitRequest, StoreStats, Tag, TensorDiff, VerifyOptions, VerifyReport,
    VersionStats,
};
use deltaic_format::fetch::{
    AnswerKind, Chunk, Delivery, FetchPlan, FetchRequest, Position, Span, TensorWish,
    wishes_between,
};
use deltaic_format::ids::{CommitId, FileId};
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::{RefRecord, Snapshot};
use deltaic_format::progress::{Progress, Silent};
use deltaic_format::refusal::Refusal;
use deltaic_format::revision::Selector;
use deltaic_format::upload::UploadTarget;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use tempfile::tempdir;
use tokio::runtime::Runtime;

/// How the streams of fetches end.
#[derive(Clone, Copy, PartialEq)]
enum End {
    /// When all is sent.
    Complete,
    /// With an error, after the first chunk.
    Refused,
    /// Never, after the first chunk.
    Stalled,
}

/// A repository of a history in memory.
struct Served {
    history: Mutex<History>,
    end: End,
    /// A version that is held elsewhere, and not known here.
    unknown: Option<CommitId>,
    split: Split,
    requests: Mutex<Vec<FetchRequest>>,
    /// Told when a fetch begins, and when its stream is dropped.
    events: Mutex<Sender<&'static str>>,
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a repository in memory")
    }
}

/// Tells when it is dropped.
struct Told(Sender<&'static str>);

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.0.send("dropped");
    }
}

impl Served {
    fn new(history: History, end: End) -> (Self, Receiver<&'static str>) {
        let (events, told) = channel();
        let served = Self {
            history: Mutex::new(history),
            end,
            unknown: None,
            split: Split::NONE,
            requests: Mutex::default(),
            events: Mutex::new(events),
        };
        (served, told)
    }

    fn find(history: &History, id: CommitId) -> Result<Snapshot> {
        let found = history.versions.iter().find(|v| v.snapshot.id == id);
        Ok(found.ok_or_else(|| unknown(id))?.snapshot.clone())
    }

    fn check(&self, request: &FetchRequest) -> Result<()> {
        self.requests.lock().unwrap().push(request.clone());
        match request.held {
            Some(held) if self.unknown == Some(held) => Err(unknown(held)),
            _ => Ok(()),
        }
    }

    fn chunks(&self, request: &FetchRequest) -> Result<Vec<Result<Chunk>>> {
        let history = self.history.lock().unwrap();
        let want = Self::find(&history, request.want)?;
        let held = request
            .held
            .map(|id| Self::find(&history, id))
            .transpose()?;
        let wishes = request.wishes(&want, held.as_ref()).unwrap();
        let ask = Ask {
            want: &want,
            held: held.as_ref(),
            wishes: &wishes,
        };
        let mut deliveries = Vec::new();
        history.fetch(&ask, &mut |delivery| {
            deliveries.extend(single_spans(delivery));
            Ok(())
        })?;
        Ok(in_order(&want, &wishes, deliveries))
    }
}

/// Deliveries of one span each as the chunks of an answer.
fn in_order(
    want: &Snapshot,
    wishes: &[TensorWish],
    mut deliveries: Vec<Delivery>,
) -> Vec<Result<Chunk>> {
    let views = want.tensors();
    let mut order: Vec<usize> = wishes.iter().map(|wish| wish.tensor).collect();
    order.sort_by_key(|&tensor| (views[tensor].spec.class.number(), tensor));
    let place = |tensor| order.iter().position(|&wished| wished == tensor).unwrap() as u64;
    let span = |delivery: &Delivery| match delivery {
        Delivery::Patches { members, .. } => members[0],
        Delivery::Content { span, .. } => *span,
    };
    deliveries.sort_by_key(|delivery| {
        let Span { tensor, first, .. } = span(delivery);
        (place(tensor), first)
    });
    let chunk = |delivery: Delivery| {
        let at = span(&delivery);
        let kind = match delivery {
            Delivery::Patches { .. } => AnswerKind::Patches,
            Delivery::Content { .. } => AnswerKind::Content,
        };
        let wish = place(at.tensor);
        let next = match at.end() == views[at.tensor].spec.elements() {
            true => Position {
                wish: wish + 1,
                ..Position::default()
            },
            false => Position {
                wish,
                element: at.end(),
                kind: Some(kind),
            },
        };
        Ok(Chunk { delivery, next })
    };
    deliveries.into_iter().map(chunk).collect()
}

fn unknown(id: CommitId) -> ClientError {
    Refusal::NotFound {
        kind: "commit".into(),
        name: id.to_string(),
    }
    .into()
}

fn refused<T>() -> Result<T> {
    Err(Refusal::Failed {
        what: "not in this test".into(),
    }
    .into())
}

#[async_trait]
impl Repository for Served {
    async fn repos(&self) -> Result<Vec<RepoName>> {
        refused()
    }

    async fn branches(&self, _: &RepoName) -> Result<Vec<RefRecord>> {
        refused()
    }

    async fn tags(&self, _: &RepoName) -> Result<Vec<Tag>> {
        refused()
    }

    async fn create_branch(
        &self,
        _: &RepoName,
        _: &BranchName,
        _: CommitId,
        _: i64,
    ) -> Result<RefRecord> {
        refused()
    }

    async fn delete_branch(
        &self,
        _: &RepoName,
        _: &BranchName,
        _: Option<CommitId>,
    ) -> Result<RefRecord> {
        refused()
    }

    async fn unreached_without(&self, _: &RepoName, _: &BranchName) -> Result<Vec<Version>> {
        refused()
    }

    async fn create_tag(&self, _: &RepoName, _: &BranchName, _: CommitId, _: i64) -> Result<Tag> {
        refused()
    }

    async fn delete_tag(&self, _: &RepoName, _: &BranchName) -> Result<Tag> {
        refused()
    }

    async fn resolve(&self, _: &RepoName, _: &Selector) -> Result<CommitId> {
        refused()
    }

    async fn snapshot(&self, _: &RepoName, id: CommitId) -> Result<Snapshot> {
        Self::find(&self.history.lock().unwrap(), id)
    }

    async fn history(
        &self,
        _: &RepoName,
        _: CommitId,
        _: Option<u64>,
    ) -> Result<BoxStream<'static, Result<Entry>>> {
        refused()
    }

    async fn version_stats(&self, _: &RepoName, _: &Snapshot) -> Result<VersionStats> {
        refused()
    }

    async fn diff(
        &self,
        _: &RepoName,
        _: &Snapshot,
        _: &Snapshot,
        _: Watcher,
    ) -> Result<Vec<TensorDiff>> {
        refused()
    }

    async fn revert(&self, _: &CommitRequest, _: CommitId, _: Watcher) -> Result<CommitOutcome> {
        refused()
    }

    async fn plan(&self, request: &FetchRequest, exactly: bool, _: Watcher) -> Result<FetchPlan> {
        assert!(!exactly);
        self.check(request)?;
        Ok(FetchPlan::default())
    }

    fn split(&self) -> Split {
        self.split
    }

    async fn fetch(
        &self,
        request: FetchRequest,
        from: Position,
    ) -> Result<BoxStream<'static, Result<Chunk>>> {
        assert_eq!(from, Position::default());
        self.check(&request)?;
        let events = self.events.lock().unwrap().clone();
        events.send("fetching").unwrap();
        let mut chunks = self.chunks(&request)?;
        if self.end != End::Complete {
            chunks.truncate(1);
        }
        if self.end == End::Refused {
            chunks.push(refused());
        }
        let chunks = stream::iter(chunks);
        let chunks = match self.end {
            End::Stalled => chunks.chain(stream::pending()).boxed(),
            _ => chunks.boxed(),
        };
        let told = Told(events);
        Ok(chunks
            .map(move |chunk| {
                let _ = &told;
                chunk
            })
            .boxed())
    }

    async fn file(
        &self,
        _: &RepoName,
        version: CommitId,
        id: FileId,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        let mut parts = Vec::new();
        let history = self.history.lock().unwrap();
        history.file(version, id, 0, &mut |part| {
            parts.push(Ok(Bytes::copy_from_slice(part)));
            Ok(())
        })?;
        Ok(stream::iter(parts).boxed())
    }

    async fn upload(
        &self,
        _: &UploadTarget,
        _: Arc<dyn UploadSource>,
        _: Watcher,
    ) -> Result<CommitOutcome> {
        refused()
    }

    async fn watch(
        &self,
        _: &RepoName,
        _: &BranchName,
        _: Option<CommitId>,
    ) -> Result<BoxStream<'static, Result<Entry>>> {
        refused()
    }

    async fn store_stats(&self, _: Option<&RepoName>) -> Result<StoreStats> {
        refused()
    }

    async fn verify(&self, _: VerifyOptions, _: Watcher) -> Result<VerifyReport> {
        refused()
    }
}

fn repo() -> RepoName {
    RepoName::new("acme/policy").unwrap()
}

fn silent() -> Watcher {
    Arc::new(Silent)
}

/// Open the replica at `folder` and move it to `want` without blocking.
async fn pull_from(
    folder: &Path,
    served: &Arc<Served>,
    want: Snapshot,
    progress: Watcher,
) -> Result<crate::PullOutcome> {
    let replica = ReplicaFolder::open_or_create(folder, &Silent)?;
    let repository = Arc::clone(served) as Arc<dyn Repository>;
    let options = PullOptions::default();
    let pulled = asynchronous::pull(replica, repository, repo(), want, options, progress).await;
    pulled.map(|(_, outcome)| outcome)
}

#[test]
fn a_repository_feeds_replicas_and_exports() {
    let runtime = Runtime::new().unwrap();
    let model = History::example();
    let (served, _told) = Served::new(History::example(), End::Complete);
    let served = Arc::new(served);
    let folder = tempdir().unwrap();
    for version in [0, 1, 3, 0] {
        let want = model.versions[version].snapshot.clone();
        let outcome = runtime.block_on(pull_from(folder.path(), &served, want, silent()));
        assert_eq!(outcome.unwrap().to, Version(version as u64));
        assert_holds(folder.path(), &model.versions[version]);
    }
    // From a thread that is none of the runtime's, along the edges.
    let source = RepositorySource::new(served.clone(), repo(), runtime.handle().clone(), silent());
    let options = PullOptions {
        trust: Trust::Edges,
        ..PullOptions::default()
    };
    let want = &model.versions[2].snapshot;
    let mut replica = ReplicaFolder::open_or_create(folder.path(), &Silent).unwrap();
    let outcome = replica.pull(&source, want, &options, &Silent).unwrap();
    assert_eq!((outcome.patched, outcome.trust), (6, Trust::Edges));
    assert_holds(folder.path(), &model.versions[2]);

    let folder = tempdir().unwrap();
    let path = folder.path().to_owned();
    let exported = asynchronous::export(served, repo(), want.clone(), None, path, silent());
    assert_eq!(runtime.block_on(exported).unwrap().files, 5);
    assert_holds(folder.path(), &model.versions[2]);
}

#[test]
fn a_fetch_in_parts_brings_the_same() {
    let runtime = Runtime::new().unwrap();
    let model = History::example();
    let (mut served, _told) = Served::new(History::example(), End::Complete);
    served.split = Split {
        at_a_time: 3,
        bytes: 1,
    };
    served.unknown = Some(model.versions[2].snapshot.id);
    let served = Arc::new(served);
    let folder = tempdir().unwrap();
    for version in [0, 1, 2, 3, 0] {
        served.requests.lock().unwrap().clear();
        let want = model.versions[version].snapshot.clone();
        let outcome = runtime.block_on(pull_from(folder.path(), &served, want, silent()));
        outcome.unwrap();
        assert_holds(folder.path(), &model.versions[version]);
        let requests = served.requests.lock().unwrap();
        assert!(requests.len() > 2, "v{version}: {requests:?}");
    }
}

/// What it prevents: a replica that no other server can go on with.
#[test]
fn a_held_version_that_is_unknown_is_asked_for_by_its_contents() {
    let runtime = Runtime::new().unwrap();
    let model = History::example();
    let (mut served, _told) = Served::new(History::example(), End::Complete);
    served.unknown = Some(model.versions[0].snapshot.id);
    let served = Arc::new(served);
    let folder = tempdir().unwrap();
    pull(folder.path(), &model, 0).unwrap();
    let want = model.versions[1].snapshot.clone();
    let outcome = runtime.block_on(pull_from(folder.path(), &served, want, silent()));
    assert_eq!(outcome.unwrap().patched, 5);
    assert_holds(folder.path(), &model.versions[1]);
    let requests = served.requests.lock().unwrap();
    let held: Vec<bool> = requests.iter().map(|r| r.held.is_some()).collect();
    // To plan, then to fetch.
    assert_eq!(held, [true, false, true, false]);
}

#[test]
fn what_a_repository_refuses_reaches_the_caller_and_changes_nothing() {
    let runtime = Runtime::new().unwrap();
    let model = History::example();
    let (served, told) = Served::new(History::example(), End::Refused);
    let served = Arc::new(served);
    let folder = tempdir().unwrap();
    pull(folder.path(), &model, 0).unwrap();
    let want = model.versions[1].snapshot.clone();
    let error = error_of(runtime.block_on(pull_from(folder.path(), &served, want, silent())));
    assert!(
        matches!(&error, ClientError::Refused(Refusal::Failed { .. })),
        "{error}"
    );
    assert_holds(folder.path(), &model.versions[0]);
    assert_eq!(
        told.iter().take(2).collect::<Vec<_>>(),
        ["fetching", "dropped"]
    );
}

/// What it prevents: tasks that go on filling a channel that nobody empties.
#[test]
fn a_receiver_that_fails_ends_the_stream() {
    let runtime = Runtime::new().unwrap();
    let model = History::example();
    let (served, told) = Served::new(History::example(), End::Stalled);
    let source =
        RepositorySource::new(Arc::new(served), repo(), runtime.handle().clone(), silent());
    let want = &model.versions[0].snapshot;
    let wishes = wishes_between(None, want);
    let wishes: Vec<_> = wishes.into_iter().filter(|wish| wish.tensor > 0).collect();
    let ask = Ask {
        want,
        held: None,
        wishes: &wishes,
    };
    let error = error_of(source.fetch(&ask, &mut |_| Err(ClientError::Source("full".into()))));
    assert!(matches!(error, ClientError::Source(_)), "{error}");
    assert_eq!(
        told.iter().take(2).collect::<Vec<_>>(),
        ["fetching", "dropped"]
    );
}

/// Wants to stop once it is told to.
#[derive(Default)]
struct Stop(AtomicBool);

impl Progress for Stop {
    fn phase(&self, _name: &'static str, _total: Option<u64>) {}

    fn advance(&self, _bytes: u64) {}

    fn cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn whoever_waits_for_a_silent_repository_can_stop() {
    let runtime = Runtime::new().unwrap();
    let model = History::example();
    let (served, told) = Served::new(History::example(), End::Stalled);
    let served = Arc::new(served);
    let folder = tempdir().unwrap();
    pull(folder.path(), &model, 0).unwrap();
    let want = model.versions[1].snapshot.clone();
    let stop = Arc::new(Stop::default());
    let asked = Arc::clone(&stop);
    let pulled = std::thread::scope(|scope| {
        let pull = scope.spawn(|| runtime.block_on(pull_from(folder.path(), &served, want, asked)));
        assert_eq!(told.recv(), Ok("fetching"));
        stop.0.store(true, Ordering::Relaxed);
        pull.join().unwrap()
    });
    assert!(matches!(error_of(pulled), ClientError::Interrupted));
    assert_eq!(told.recv(), Ok("dropped"));
    assert_holds(folder.path(), &model.versions[0]);
}

#[test]
fn a_pull_whose_future_is_dropped_stops_and_keeps_the_old_version() {
    let runtime = Runtime::new().unwrap();
    let model = History::new(&example_trees(3000));
    let (served, told) = Served::new(History::new(&example_trees(3000)), End::Stalled);
    served.history.lock().unwrap().answer.set(Answer::Contents);
    let served = Arc::new(served);
    let folder = tempdir().unwrap();
    pull(folder.path(), &model, 0).unwrap();
    let want = model.versions[1].snapshot.clone();
    let path = folder.path().to_owned();
    let task = runtime.spawn(async move { pull_from(&path, &served, want, silent()).await });
    assert_eq!(told.recv(), Ok("fetching"));
    task.abort();
    assert_eq!(told.recv(), Ok("dropped"));
    // The thread lets go of the folder a moment later.
    let reopened = std::iter::repeat_with(|| {
        std::thread::yield_now();
        ReplicaFolder::open_or_create(folder.path(), &Silent)
    });
    let replica = reopened.flatten().next().unwrap();
    assert_eq!(replica.held().unwrap().id, model.versions[0].snapshot.id);
    drop(replica);
    assert_holds(folder.path(), &model.versions[0]);
    pull_with(folder.path(), &model, 1, &PullOptions::default()).unwrap();
    assert_holds(folder.path(), &model.versions[1]);
}
