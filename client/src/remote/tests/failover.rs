//! Several servers: those that go away, fail, are full or lag behind, and those that are asked instead.

use super::server::{Links, Script, remote_at, start_all};
use super::{answer, everything, fetch, history, main_branch, messages, refusal, repo, request};
use crate::{ClientError, Remote, RemoteOptions, Repository as _};
use bytes::Bytes;
use deltaic_format::Version;
use deltaic_format::fetch::Position;
use deltaic_format::ids::CommitId;
use deltaic_format::object::{CanonicalObject, Commit, Schema, Snapshot, Tree};
use deltaic_format::refusal::Refusal;
use deltaic_format::revision::Selector;
use deltaic_format::wire::{self, proto};
use futures::stream;
use futures::{StreamExt as _, TryStreamExt as _};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tonic::Status;

const A: &str = "http://a";
const B: &str = "http://b";

type Repos = proto::ListRepositoriesResponse;

fn not_found(id: CommitId) -> Refusal {
    Refusal::NotFound {
        kind: "commit".into(),
        name: id.short(),
    }
}

/// A version without anything in it.
fn snapshot() -> Snapshot {
    let schema = Schema { files: Vec::new() };
    let tree = Tree {
        schema: schema.id(),
        weight_files: Vec::new(),
        tensors: Vec::new(),
        files: Vec::new(),
    };
    let commit = Commit {
        tree: tree.id(),
        parents: Vec::new(),
        version: Version(0),
        time_ms: 0,
        message: String::new(),
        meta: BTreeMap::new(),
    };
    Snapshot::new(commit.id(), commit, tree, Arc::new(schema)).unwrap()
}

/// Has that version.
fn having(snapshot: &Snapshot) -> Script {
    let (id, snapshot) = (snapshot.id, snapshot.clone());
    let found = move |_| {
        let commit = wire::id_bytes(&id);
        let progress = None;
        messages(vec![proto::ResolveResponse { commit, progress }])
    };
    let parts = move |request: proto::GetSnapshotRequest| {
        assert_eq!(request.commit, wire::id_bytes(&id));
        messages(wire::snapshot_parts(&snapshot).collect())
    };
    Script {
        resolve: Box::new(found),
        snapshot: Box::new(parts),
        ..Script::default()
    }
}

/// Has nothing, and counts who asked for it.
fn lacking(id: CommitId, asked: &Arc<AtomicUsize>) -> Script {
    fn no<T>(id: CommitId, asked: &AtomicUsize) -> super::Answers<T>
    where
        T: Send + 'static,
    {
        asked.fetch_add(1, Ordering::SeqCst);
        let status = refusal(&not_found(id));
        stream::once(async { Err(status) }).boxed()
    }
    let [parts, versions, chunks] = [(); 3].map(|()| asked.clone());
    Script {
        snapshot: Box::new(move |_| no(id, &parts)),
        watch: Box::new(move |_| no(id, &versions)),
        fetch: Box::new(move |_| no(id, &chunks)),
        ..Script::default()
    }
}

/// Let a server go away, and come back after a while.
fn goes_away(links: &Arc<Links>, endpoint: &'static str, back: Option<Duration>) {
    links.down.lock().unwrap().push(endpoint);
    links.silent.lock().unwrap().push(endpoint);
    let links = links.clone();
    if let Some(back) = back {
        tokio::spawn(async move {
            sleep(back).await;
            links.down.lock().unwrap().clear();
            links.silent.lock().unwrap().clear();
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_version_that_one_server_named_is_waited_for_where_another_lags_behind() {
    let snapshot = snapshot();
    let asked = Arc::new(AtomicUsize::new(0));
    let start = || {
        start_all(vec![
            (A, having(&snapshot)),
            (B, lacking(snapshot.id, &asked)),
        ])
    };
    let newest = Selector::branch(main_branch());
    for back in [Some(Duration::from_secs(90)), None] {
        let links = start();
        let remote = remote_at(&links, [A, B]);
        let id = remote.resolve(&repo(), &newest).await.unwrap();
        goes_away(&links, A, back);
        asked.store(0, Ordering::SeqCst);
        let got = remote.snapshot(&repo(), id).await;
        match back {
            Some(_) => assert_eq!(got.unwrap().id, id),
            // The version may well exist.
            None => {
                let error = got.unwrap_err();
                assert!(
                    matches!(&error, ClientError::Unreachable { endpoint, .. } if endpoint == A),
                    "{error}"
                );
            }
        }
        assert!(asked.load(Ordering::SeqCst) > 2);
    }
    // Whoever knows it from elsewhere is told soon, wherever the other server is.
    for down in [vec![], vec![A]] {
        let unknown = lacking(snapshot.id, &asked);
        let links = start_all(vec![(A, unknown), (B, lacking(snapshot.id, &asked))]);
        *links.down.lock().unwrap() = down;
        asked.store(0, Ordering::SeqCst);
        let remote = remote_at(&links, [A, B]);
        let began = Instant::now();
        let error = remote.snapshot(&repo(), snapshot.id).await.unwrap_err();
        assert!(
            matches!(error, ClientError::Refused(Refusal::NotFound { .. })),
            "{error}"
        );
        assert!(began.elapsed() < Duration::from_secs(2));
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_waits_for_the_server_that_has_what_it_follows() {
    let history = history(3);
    let after = history[0].0;
    let commits = history.clone();
    let looks = Arc::new(AtomicUsize::new(0));
    // The first look sees nothing new.
    let watch = {
        let looks = looks.clone();
        move |_| {
            let seen = match looks.fetch_add(1, Ordering::SeqCst) {
                0 => vec![proto::WatchResponse { version: None }],
                _ => {
                    let version = |(id, commit): &(CommitId, Bytes)| proto::WatchedVersion {
                        commit: commit.clone(),
                        id: wire::id_bytes(id),
                    };
                    let version = |commit| proto::WatchResponse {
                        version: Some(version(commit)),
                    };
                    commits.iter().skip(1).map(version).collect()
                }
            };
            messages(seen).chain(stream::pending()).boxed()
        }
    };
    let asked = Arc::new(AtomicUsize::new(0));
    let script = Script {
        watch: Box::new(watch),
        ..Script::default()
    };
    let links = start_all(vec![(A, script), (B, lacking(after, &asked))]);
    let remote = remote_at(&links, [A, B]);
    let (repo, branch) = (repo(), main_branch());
    let watching = remote.watch(&repo, &branch, Some(after)).await.unwrap();
    goes_away(&links, A, Some(Duration::from_secs(3600)));
    let seen: Vec<_> = watching
        .take(2)
        .map_ok(|(id, _)| id)
        .try_collect()
        .await
        .unwrap();
    assert_eq!(seen, [history[1].0, history[2].0]);
    assert!(asked.load(Ordering::SeqCst) > 10);
    // One that begins while the server is away, as one that goes on after its client was started again.
    goes_away(&links, A, Some(Duration::from_secs(60)));
    let remote = remote_at(&links, [A, B]);
    let mut watching = remote.watch(&repo, &branch, Some(after)).await.unwrap();
    let first = watching.next().await.unwrap().unwrap();
    assert_eq!(first.0, history[1].0);
}

fn repos_or(status: Option<Status>, asked: &Arc<AtomicUsize>) -> Script {
    let asked = asked.clone();
    let repos = move |_| {
        asked.fetch_add(1, Ordering::SeqCst);
        match &status {
            Some(status) => Err(status.clone()),
            None => Ok(Repos { repos: vec![] }),
        }
    };
    Script {
        repos: Box::new(repos),
        ..Script::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_whatever_it_is_asked_is_left() {
    let busy = || Refusal::Exhausted {
        what: "calls".into(),
        retry_after: Some(Duration::from_secs(50)),
    };
    let corrupt = Refusal::Corrupt {
        object: "refs".into(),
        what: "x".into(),
    };
    for status in [
        Status::unknown("the line broke"),
        Status::internal("failed to decode: x"),
        refusal(&busy()),
        refusal(&corrupt),
    ] {
        let (at_a, at_b) = (Arc::default(), Arc::default());
        let failing = repos_or(Some(status), &at_a);
        let links = start_all(vec![(A, failing), (B, repos_or(None, &at_b))]);
        let remote = remote_at(&links, [A, B]);
        let began = Instant::now();
        remote.repos().await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(1));
        // It stays left, also when it has rested.
        sleep(Duration::from_secs(60)).await;
        remote.repos().await.unwrap();
        assert_eq!(*links.dials.lock().unwrap(), [A, B]);
        assert_eq!(at_a.load(Ordering::SeqCst), 1);
        assert_eq!(at_b.load(Ordering::SeqCst), 2);
    }
    // Where all are busy there is none to go to.
    let (asked, full) = (Arc::default(), || Some(refusal(&busy())));
    let links = start_all(vec![
        (A, repos_or(full(), &asked)),
        (B, repos_or(full(), &asked)),
    ]);
    let began = Instant::now();
    remote_at(&links, [A, B]).repos().await.unwrap_err();
    assert!(began.elapsed() > Duration::from_secs(50));
    assert!(asked.load(Ordering::SeqCst) < 10);
}

#[tokio::test(start_paused = true)]
async fn a_fetch_that_gets_nowhere_goes_on_elsewhere() {
    let begins = Arc::new(Mutex::new(Vec::new()));
    let fetching = |chunks: usize, name: &'static str| {
        let begins = begins.clone();
        let fetch = move |wire: proto::FetchRequest| {
            begins.lock().unwrap().push((name, super::begin_of(&wire)));
            let cut = stream::once(async { Err(Status::unavailable("cut")) });
            // No chunk after the first ones.
            let chunks = chunks.saturating_sub(super::begin_of(&wire) as usize);
            let some = answer(&wire).into_iter().take(chunks).collect();
            messages(some).chain(cut).boxed()
        };
        Script {
            fetch: Box::new(fetch),
            ..Script::default()
        }
    };
    let links = start_all(vec![(A, fetching(3, "a")), (B, fetching(99, "b"))]);
    let chunks = fetch(&remote_at(&links, [A, B])).await.unwrap();
    assert_eq!(chunks, everything());
    // It is the line that broke where something came before.
    assert_eq!(*begins.lock().unwrap(), [("a", 0), ("a", 3), ("b", 3)]);
}

#[tokio::test(start_paused = true)]
async fn no_call_goes_to_a_server_that_was_left() {
    let chunks = |wire: proto::FetchRequest| messages(answer(&wire));
    let (at_a, at_b) = (Arc::default(), Arc::default());
    let serving = |asked| Script {
        fetch: Box::new(chunks),
        ..repos_or(None, asked)
    };
    let links = start_all(vec![(A, serving(&at_a)), (B, serving(&at_b))]);
    let options = RemoteOptions {
        connections: 3,
        ..RemoteOptions::new([A, B])
    };
    let remote = Remote::with_connector(options, links.clone()).unwrap();
    // Three lines to the first one, which nothing uses any more.
    let fetches = (0..3).map(|_| remote.fetch(request(), Position::default()));
    let fetches = futures::future::try_join_all(fetches).await.unwrap();
    drop(fetches);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(*links.dials.lock().unwrap(), [A, A, A]);
    goes_away(&links, A, Some(Duration::from_secs(40)));
    let began = Instant::now();
    remote.repos().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(40), "only one stalls");
    for _ in 0..6 {
        sleep(Duration::from_secs(10)).await;
        remote.repos().await.unwrap();
    }
    assert_eq!(*links.dials.lock().unwrap(), [A, A, A, B]);
    assert_eq!(at_a.load(Ordering::SeqCst), 1, "the one that stalled");
    assert_eq!(at_b.load(Ordering::SeqCst), 7);
}

#[tokio::test(start_paused = true)]
async fn lines_to_two_servers_are_not_used_in_turns() {
    let endless = |wire: proto::FetchRequest| {
        let some = answer(&wire).into_iter().take(3).collect();
        messages(some).chain(stream::pending()).boxed()
    };
    let (at_a, at_b) = (Arc::default(), Arc::default());
    let first = Script {
        fetch: Box::new(endless),
        ..repos_or(None, &at_a)
    };
    let links = start_all(vec![(A, first), (B, repos_or(None, &at_b))]);
    let remote = remote_at(&links, [A, B]);
    let used = remote.fetch(request(), Position::default()).await.unwrap();
    // Nobody can connect to it anew.
    links.down.lock().unwrap().push(A);
    remote.repos().await.unwrap();
    drop(used);
    links.down.lock().unwrap().clear();
    for _ in 0..6 {
        sleep(Duration::from_secs(10)).await;
        remote.repos().await.unwrap();
    }
    assert_eq!(*links.dials.lock().unwrap(), [A, A, B]);
    assert_eq!(at_a.load(Ordering::SeqCst), 0);
    assert_eq!(at_b.load(Ordering::SeqCst), 7);
}
