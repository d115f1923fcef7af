//! A client against a server that does what a test says, over links that break, with a paused clock.

#![allow(clippy::unwrap_used)]

mod failover;
mod server;
mod slow_lines;
mod slow_sources;

use super::{Remote, RemoteOptions};
use crate::{ClientError, Repository as _, Result, UploadSource};
use bytes::Bytes;
use deltaic_format::Version;
use deltaic_format::answers::CommitOutcome;
use deltaic_format::fetch::{
    Chunk, Delivery, FetchRequest, HeldContents, Position, RequestDigest, Span, WishRun,
};
use deltaic_format::ids::{CommitId, TreeId};
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::{CanonicalObject, Commit, RefRecord, SignedRef};
use deltaic_format::progress::Silent;
use deltaic_format::refusal::Refusal;
use deltaic_format::upload::{ObjectKind, UploadId, UploadItem, UploadPosition, UploadTarget};
use deltaic_format::wire::{self, ResumeToken, proto};
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use server::{Answers, Break, Links, Script, payload, remote, remote_at, start};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};
use tonic_types::{ErrorDetails, StatusExt as _};

/// Chunks of the answer to [`request`].
const CHUNKS: u64 = 12;

fn repo() -> RepoName {
    RepoName::new("acme/policy").unwrap()
}

fn main_branch() -> BranchName {
    BranchName::new("main").unwrap()
}

fn request() -> FetchRequest {
    FetchRequest {
        repo: repo(),
        want: CommitId([1; 32]),
        held: None,
        wishes: vec![WishRun {
            tensors: 0..CHUNKS as usize,
            held: HeldContents::Nothing,
        }],
        slices: BTreeMap::new(),
    }
}

/// The chunk that brings tensor `index`.
fn chunk(index: u64) -> Chunk {
    let span = Span {
        tensor: index as usize,
        first: 0,
        elements: 8,
    };
    let next = Position {
        wish: index + 1,
        element: 0,
        kind: None,
    };
    let bytes = payload(index);
    Chunk {
        delivery: Delivery::Content { span, bytes },
        next,
    }
}

fn chunk_message(index: u64, request: RequestDigest) -> proto::FetchResponse {
    let Chunk { delivery, next } = chunk(index);
    let position = next;
    let token = ResumeToken { request, position };
    let chunk = wire::chunk_to_wire(&delivery, token.to_bytes());
    let what = Some(proto::fetch_response::What::Chunk(chunk));
    proto::FetchResponse { what }
}

fn end(chunks: u64) -> proto::FetchResponse {
    let what = Some(proto::fetch_response::What::End(proto::FetchEnd { chunks }));
    proto::FetchResponse { what }
}

fn begin_of(wire: &proto::FetchRequest) -> u64 {
    match wire.resume.is_empty() {
        true => 0,
        false => ResumeToken::from_bytes(&wire.resume).unwrap().position.wish,
    }
}

/// The rest of an answer after what a request's token names.
fn answer(wire: &proto::FetchRequest) -> Vec<proto::FetchResponse> {
    let digest = FetchRequest::try_from(wire).unwrap().digest();
    let begin = begin_of(wire);
    let chunks = (begin..CHUNKS).map(|index| chunk_message(index, digest));
    chunks.chain([end(CHUNKS - begin)]).collect()
}

fn messages<T: Send + 'static>(messages: Vec<T>) -> Answers<T> {
    stream::iter(messages.into_iter().map(Ok)).boxed()
}

/// Messages that go out one by one.
fn paced<T: Send + 'static>(all: Vec<T>) -> Answers<T> {
    let pause = Duration::from_millis(1);
    let paced = messages(all).then(move |message| async move {
        tokio::time::sleep(pause).await;
        message
    });
    paced.boxed()
}

/// A server that answers fetches, and counts them.
fn fetching() -> (Arc<Links>, Arc<Mutex<Vec<u64>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let begins = asked.clone();
    let fetch = move |wire: proto::FetchRequest| {
        begins.lock().unwrap().push(begin_of(&wire));
        paced(answer(&wire))
    };
    let script = Script {
        fetch: Box::new(fetch),
        ..Script::default()
    };
    (start(script, vec![]), asked)
}

async fn fetch(remote: &Remote) -> Result<Vec<Chunk>> {
    remote
        .fetch(request(), Position::default())
        .await?
        .try_collect()
        .await
}

fn everything() -> Vec<Chunk> {
    (0..CHUNKS).map(chunk).collect()
}

fn refusal(refusal: &Refusal) -> Status {
    let (reason, fields) = wire::refusal_to_reason(refusal);
    let details = ErrorDetails::with_error_info(reason, wire::DOMAIN, fields);
    Status::with_error_details(Code::Internal, "no", details)
}

#[tokio::test(start_paused = true)]
async fn a_fetch_that_is_cut_anywhere_goes_on_without_gap_or_repeat() {
    let (links, _) = fetching();
    fetch(&remote(&links)).await.unwrap();
    let all = links.came.load(Ordering::SeqCst);
    assert!(all > CHUNKS * 300);
    for cut in (0..all).step_by(61) {
        let (links, asked) = fetching();
        *links.breaks.lock().unwrap() = vec![(cut, Break::Cut)];
        let chunks = fetch(&remote(&links)).await.unwrap();
        assert_eq!(chunks, everything(), "cut after {cut} bytes");
        assert!(asked.lock().unwrap().len() <= 2);
        assert!(links.dialled.load(Ordering::SeqCst) <= 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_fetch_that_gets_on_is_never_given_up() {
    let (links, asked) = fetching();
    // Room for the handshake and a chunk or two.
    for (attempts, retry_for) in [(2, 180), (1, 180), (100, 0)] {
        *links.breaks.lock().unwrap() = vec![(1000, Break::Cut); 100];
        let options = RemoteOptions {
            attempts: Some(attempts),
            retry_for: Duration::from_secs(retry_for),
            ..RemoteOptions::new(["http://server"])
        };
        let remote = Remote::with_connector(options, links.clone()).unwrap();
        assert_eq!(fetch(&remote).await.unwrap(), everything());
        assert!(std::mem::take(&mut *asked.lock().unwrap()).len() > 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_that_always_stalls_is_a_stall() {
    let (links, _) = fetching();
    let chunks = remote(&links).fetch(request(), Position::default()).await;
    let before_the_first = links.came.load(Ordering::SeqCst);
    drop(chunks);
    *links.breaks.lock().unwrap() = vec![(before_the_first, Break::Stall); 100];
    let error = fetch(&remote(&links)).await.unwrap_err();
    assert!(matches!(error, ClientError::Stalled { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_always_cuts_is_given_up() {
    let (links, _) = fetching();
    let patience = Duration::from_secs(60);
    for (attempts, retry_for) in [(Some(8), 2 * patience), (None, patience)] {
        *links.breaks.lock().unwrap() = vec![(200, Break::Cut); 100];
        links.dialled.store(0, Ordering::SeqCst);
        let options = RemoteOptions {
            attempts,
            retry_for,
            ..RemoteOptions::new(["http://server"])
        };
        let remote = Remote::with_connector(options, links.clone()).unwrap();
        let began = Instant::now();
        let error = fetch(&remote).await.unwrap_err();
        assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
        let dialled = links.dialled.load(Ordering::SeqCst);
        match attempts {
            Some(attempts) => assert_eq!(dialled, attempts as usize),
            // As long as it says, and not much longer.
            None => assert_eq!(began.elapsed().as_secs(), patience.as_secs()),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stalled_fetch_goes_on_over_another_connection() {
    let (links, asked) = fetching();
    *links.breaks.lock().unwrap() = vec![(2000, Break::Stall)];
    let began = Instant::now();
    assert_eq!(fetch(&remote(&links)).await.unwrap(), everything());
    let took = began.elapsed();
    assert!(
        took >= Duration::from_secs(20) && took < Duration::from_secs(40),
        "{took:?}"
    );
    assert_eq!(asked.lock().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn silence_is_a_typed_error_in_the_end() {
    let script = Script {
        fetch: Box::new(|_| stream::pending().boxed()),
        ..Script::default()
    };
    let links = start(script, vec![]);
    let began = Instant::now();
    let error = fetch(&remote(&links)).await.unwrap_err();
    assert!(matches!(error, ClientError::Stalled { .. }), "{error}");
    assert!(began.elapsed() < Duration::from_secs(300));
}

#[tokio::test(start_paused = true)]
async fn heartbeats_are_life_but_no_progress() {
    let beat = || {
        let progress = proto::Progress::default();
        let what = Some(proto::fetch_response::What::Heartbeat(progress));
        proto::FetchResponse { what }
    };
    let slow = move |beats| {
        move |wire: proto::FetchRequest| {
            let wait = Duration::from_secs(5);
            let heartbeats = stream::repeat_with(beat)
                .take(beats)
                .then(move |beat| async move {
                    tokio::time::sleep(wait).await;
                    Ok(beat)
                });
            heartbeats.chain(messages(answer(&wire))).boxed()
        }
    };
    let script = |beats| Script {
        fetch: Box::new(slow(beats)),
        ..Script::default()
    };
    let links = start(script(100), vec![]);
    assert_eq!(fetch(&remote(&links)).await.unwrap(), everything());
    assert_eq!(links.dialled.load(Ordering::SeqCst), 1);
    let links = start(script(usize::MAX), vec![]);
    let error = fetch(&remote(&links)).await.unwrap_err();
    assert!(matches!(error, ClientError::Stalled { .. }), "{error}");
    // The second answer is not behind because the first one was.
    let answers = Arc::new(AtomicUsize::new(0));
    let (count, stuck, brief) = (answers.clone(), slow(usize::MAX), slow(1));
    let script = Script {
        fetch: Box::new(move |wire| match count.fetch_add(1, Ordering::SeqCst) {
            0 => stuck(wire),
            _ => brief(wire),
        }),
        ..Script::default()
    };
    let links = start(script, vec![]);
    assert_eq!(fetch(&remote(&links)).await.unwrap(), everything());
    assert_eq!(answers.load(Ordering::SeqCst), 2);
}

/// A server behind two endpoints, of which each call gives the next of these answers, and answers in full afterwards: how many
/// chunks come, and what it says then.
fn taking_turns(turns: Vec<(usize, Status)>) -> (Arc<Links>, Arc<Mutex<Vec<u64>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let begins = asked.clone();
    let fetch = move |wire: proto::FetchRequest| {
        let mut begins = begins.lock().unwrap();
        begins.push(begin_of(&wire));
        match turns.get(begins.len() - 1) {
            None => messages(answer(&wire)),
            Some((chunks, status)) => {
                let (some, status) = (answer(&wire).into_iter().take(*chunks), status.clone());
                let failed = stream::once(async { Err(status) });
                messages(some.collect()).chain(failed).boxed()
            }
        }
    };
    let script = Script {
        fetch: Box::new(fetch),
        ..Script::default()
    };
    (start(script, vec![]), asked)
}

#[tokio::test(start_paused = true)]
async fn a_server_that_lags_behind_the_one_before_is_passed_over() {
    let not_found = Refusal::NotFound {
        kind: "commit".into(),
        name: "x".into(),
    };
    let corrupt = Refusal::Corrupt {
        object: "commit".into(),
        what: "no way leads on".into(),
    };
    let invalid = Refusal::Invalid { what: "x".into() };
    let cut = || (3, Status::unavailable("cut"));
    let both = ["http://a", "http://b"];
    for lacks in [not_found.clone(), corrupt, invalid] {
        let lacking = || (0, refusal(&lacks));
        let (links, asked) = taking_turns(vec![cut(), lacking(), lacking()]);
        let chunks = fetch(&remote_at(&links, both)).await.unwrap();
        assert_eq!(chunks, everything());
        assert_eq!(*asked.lock().unwrap(), [0, 3, 3, 3]);
        // It is not tried for ever, nor where there is no other, nor more than once before anyone had it.
        for (turns, endpoints, tries) in [
            (vec![cut()], 2, 5..6),
            (vec![cut()], 1, 2..3),
            (vec![], 2, 1..3),
        ] {
            let turns = turns.into_iter();
            let turns = turns.chain((0..100).map(|_| lacking())).collect();
            let (links, asked) = taking_turns(turns);
            let remote = match endpoints {
                1 => remote(&links),
                _ => remote_at(&links, both),
            };
            let error = fetch(&remote).await.unwrap_err();
            assert!(
                matches!(&error, ClientError::Refused(refusal) if *refusal == lacks),
                "{error}"
            );
            let asked = asked.lock().unwrap().len();
            assert!(tries.contains(&asked), "{asked} of {tries:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_its_end_or_with_damage_is_not_taken_for_whole() {
    let changed = |change: fn(&mut Vec<proto::FetchResponse>)| Script {
        fetch: Box::new(move |wire| {
            let mut all = answer(&wire);
            change(&mut all);
            messages(all)
        }),
        ..Script::default()
    };
    let error = async |change| {
        let links = start(changed(change), vec![]);
        let error = fetch(&remote(&links)).await.unwrap_err();
        assert!(links.dialled.load(Ordering::SeqCst) < 100);
        error
    };
    let cut = error(|all| all.truncate(all.len() - 1)).await;
    assert!(matches!(cut, ClientError::Unreachable { .. }), "{cut}");
    let damaged = error(|all| {
        let last = all.len() - 2;
        if let Some(proto::fetch_response::What::Chunk(chunk)) = &mut all[last.min(3)].what {
            chunk.crc32 ^= 1;
        }
    });
    let damaged = damaged.await;
    assert!(matches!(damaged, ClientError::Protocol { .. }), "{damaged}");
    let repeated = error(|all| all.insert(1, all[0].clone())).await;
    assert!(
        matches!(repeated, ClientError::Protocol { .. }),
        "{repeated}"
    );
    let miscounted = error(|all| *all.last_mut().unwrap() = end(99)).await;
    assert!(
        matches!(miscounted, ClientError::Protocol { .. }),
        "{miscounted}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_at_once_and_a_busy_server_is_asked_again() {
    let calls = Arc::new(AtomicUsize::new(0));
    let serve = |refused: Refusal, calls: &Arc<AtomicUsize>| {
        let calls = calls.clone();
        let repos = move |_| match calls.fetch_add(1, Ordering::SeqCst) {
            0 => Err(refusal(&refused)),
            _ => Ok(proto::ListRepositoriesResponse {
                repos: vec!["acme/policy".into()],
            }),
        };
        let script = Script {
            repos: Box::new(repos),
            ..Script::default()
        };
        start(script, vec![])
    };
    let not_found = Refusal::NotFound {
        kind: "repository".into(),
        name: "acme/policy".into(),
    };
    let error = remote(&serve(not_found.clone(), &calls))
        .repos()
        .await
        .unwrap_err();
    assert!(matches!(error, ClientError::Refused(refusal) if refusal == not_found));
    assert_eq!(calls.swap(0, Ordering::SeqCst), 1);
    let busy = Refusal::Exhausted {
        what: "calls".into(),
        retry_after: Some(Duration::from_secs(2)),
    };
    let began = Instant::now();
    assert_eq!(
        remote(&serve(busy, &calls)).repos().await.unwrap(),
        [repo()]
    );
    assert!(began.elapsed() >= Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_server_of_another_age_is_incompatible() {
    let script = Script {
        protocol: wire::PROTOCOL + 1,
        ..Script::default()
    };
    let links = start(script, vec![]);
    let error = remote(&links).repos().await.unwrap_err();
    assert!(
        matches!(error, ClientError::Refused(Refusal::Incompatible { .. })),
        "{error}"
    );
    assert_eq!(links.dialled.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn another_server_is_asked_where_one_is_down() {
    let script = Script {
        repos: Box::new(|_| Ok(proto::ListRepositoriesResponse { repos: vec![] })),
        ..Script::default()
    };
    let links = start(script, vec!["http://down", "http://gone"]);
    let up = remote_at(&links, ["http://down", "http://up"]);
    assert!(up.repos().await.unwrap().is_empty());
    up.repos().await.unwrap();
    assert_eq!(links.dialled.load(Ordering::SeqCst), 2);
    let down = remote_at(&links, ["http://down", "http://gone"]);
    let error = down.repos().await.unwrap_err().to_string();
    assert!(
        error.starts_with("http://down, http://gone cannot be reached"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_may_have_been_done_is_not_done_again() {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let create = move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        Err(Status::unknown("the line broke"))
    };
    let script = Script {
        create: Box::new(create),
        ..Script::default()
    };
    let remote = remote(&start(script, vec![]));
    let commit = CommitId([1; 32]);
    let error = remote
        .create_branch(&repo(), &main_branch(), commit, 0)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("not known"), "{error}");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_status_that_cannot_be_read_is_an_error() {
    let script = Script {
        bad_status: true,
        ..Script::default()
    };
    let error = remote(&start(script, vec![])).repos().await.unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn nothing_stays_behind_what_is_dropped() {
    let script = Script {
        fetch: Box::new(|wire| {
            messages(answer(&wire)[..3].to_vec())
                .chain(stream::pending())
                .boxed()
        }),
        ..Script::default()
    };
    let links = start(script, vec![]);
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    let remote = remote(&links);
    let mut chunks = remote.fetch(request(), Position::default()).await.unwrap();
    chunks.next().await.unwrap().unwrap();
    assert!(tasks() > before);
    drop(remote);
    chunks.next().await.unwrap().unwrap();
    drop(chunks);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(tasks(), before);
}

/// Commits of a branch, oldest first.
fn history(commits: u64) -> Vec<(CommitId, Bytes)> {
    let mut parents = Vec::new();
    let mut history = Vec::new();
    for version in 0..commits {
        let commit = Commit {
            tree: TreeId([7; 32]),
            parents,
            version: Version(version),
            time_ms: 0,
            message: String::new(),
            meta: BTreeMap::new(),
        };
        let bytes = Bytes::from(commit.to_bytes());
        let id = Commit::id_of(&bytes);
        parents = vec![id];
        history.push((id, bytes));
    }
    history
}

#[tokio::test(start_paused = true)]
async fn a_watch_survives_cuts_without_missing_or_doubling_a_version() {
    let history = history(7);
    let record = RefRecord {
        repo: repo(),
        branch: main_branch(),
        commit: history[0].0,
        version: Version(0),
        time_ms: 0,
        expiry_ms: None,
    };
    let signatures = Vec::new();
    let refs = vec![Bytes::from(SignedRef { record, signatures }.to_bytes())];
    let commits = history.clone();
    let watches = Arc::new(AtomicUsize::new(0));
    let count = watches.clone();
    let watch = move |request: proto::WatchRequest| {
        count.fetch_add(1, Ordering::SeqCst);
        let known = commits
            .iter()
            .position(|(id, _)| id.0[..] == request.after[..])
            .unwrap();
        // Two versions, and then the stream ends.
        let next = commits.iter().skip(known + 1).take(2).map(|(id, commit)| {
            let version = proto::WatchedVersion {
                commit: commit.clone(),
                id: wire::id_bytes(id),
            };
            let version = Some(version);
            proto::WatchResponse { version }
        });
        messages(next.collect())
    };
    let script = Script {
        branches: Box::new(move |_| Ok(proto::ListBranchesResponse { refs: refs.clone() })),
        watch: Box::new(watch),
        ..Script::default()
    };
    let remote = remote(&start(script, vec![]));
    let watch = remote.watch(&repo(), &main_branch(), None).await.unwrap();
    let seen: Vec<_> = watch
        .take(6)
        .map_ok(|(id, _)| id)
        .try_collect()
        .await
        .unwrap();
    let all: Vec<_> = history.iter().skip(1).map(|(id, _)| *id).collect();
    assert_eq!(seen, all);
    assert_eq!(watches.load(Ordering::SeqCst), 3);
}

#[derive(Debug)]
struct Items(u64);

impl UploadSource for Items {
    fn items(
        &self,
        after: Option<UploadPosition>,
    ) -> BoxStream<'static, Result<(UploadPosition, UploadItem)>> {
        let first = after.map_or(0, |at| u64::from_le_bytes(at[..].try_into().unwrap()) + 1);
        let item = |index: u64| {
            let bytes = payload(index);
            let kind = ObjectKind::Tree;
            let position = Bytes::copy_from_slice(&index.to_le_bytes());
            Ok((position, UploadItem::Object { kind, bytes }))
        };
        stream::iter((first..self.0).map(item)).boxed()
    }
}

fn target() -> UploadTarget {
    UploadTarget {
        repo: repo(),
        branch: main_branch(),
        id: UploadId([9; 32]),
        parent: None,
        commit: Some(CommitId([5; 32])),
    }
}

fn outcome() -> CommitOutcome {
    CommitOutcome {
        id: CommitId([5; 32]),
        version: Version(0),
        elements: 1,
        changed: 1,
        full_bytes: 2,
        patch_bytes: 3,
        new_bytes: 4,
    }
}

/// Holds what comes, and hangs up after every third item.
fn receive(
    held: Arc<Mutex<Vec<UploadPosition>>>,
    mut sent: Streaming<proto::UploadRequest>,
) -> Answers<proto::UploadResponse> {
    use proto::upload_request::What as Sent;
    use proto::upload_response::What as Told;
    let (answers, told) = tokio::sync::mpsc::channel(16);
    tokio::spawn(async move {
        let tell = async |what| {
            let what = Some(what);
            let _ = answers.send(Ok(proto::UploadResponse { what })).await;
        };
        let mut here = 0;
        while let Ok(Some(message)) = sent.message().await {
            let items = held.lock().unwrap().len() as u64;
            match message.what.unwrap() {
                Sent::Begin(_) => {
                    let position = held.lock().unwrap().last().cloned().unwrap_or_default();
                    tell(Told::Ready(proto::UploadReady { position, items })).await;
                }
                Sent::Item(item) => {
                    held.lock().unwrap().push(item.position);
                    let items = items + 1;
                    tell(Told::Held(proto::UploadProgress { items })).await;
                    here += 1;
                    if here == 3 {
                        let _ = answers
                            .send(Err(Status::unavailable("the line broke")))
                            .await;
                        return;
                    }
                }
                Sent::Alive(_) => {}
                Sent::Finish(_) => {
                    tell(Told::Outcome((&outcome()).into())).await;
                    return;
                }
            }
        }
    });
    tokio_stream::wrappers::ReceiverStream::new(told).boxed()
}

#[tokio::test(start_paused = true)]
async fn an_upload_goes_on_after_what_is_held() {
    const ITEMS: u64 = 40;
    let held = Arc::new(Mutex::new(Vec::new()));
    let spool = held.clone();
    let script = Script {
        upload: Box::new(move |sent| receive(spool.clone(), sent)),
        ..Script::default()
    };
    let links = start(script, vec![]);
    let source = Arc::new(Items(ITEMS));
    let done = remote(&links)
        .upload(&target(), source, Arc::new(Silent))
        .await
        .unwrap();
    assert_eq!(done, outcome());
    let positions = (0..ITEMS).map(|index| Bytes::copy_from_slice(&index.to_le_bytes()));
    assert!(held.lock().unwrap().iter().cloned().eq(positions));
    assert!(links.dialled.load(Ordering::SeqCst) >= 13);
}

#[tokio::test(start_paused = true)]
async fn an_upload_of_which_nothing_is_held_is_given_up() {
    let ready = || {
        let ready = proto::UploadReady::default();
        let what = Some(proto::upload_response::What::Ready(ready));
        proto::UploadResponse { what }
    };
    let silent = Script {
        upload: Box::new(move |_| messages(vec![ready()]).chain(stream::pending()).boxed()),
        ..Script::default()
    };
    let source = Arc::new(Items(4));
    let remote = remote(&start(silent, vec![]));
    let error = remote
        .upload(&target(), source.clone(), Arc::new(Silent))
        .await
        .unwrap_err();
    assert!(matches!(error, ClientError::Stalled { .. }), "{error}");
    let lying = Script {
        upload: Box::new(move |_| {
            let held = proto::UploadProgress { items: 1000 };
            let what = Some(proto::upload_response::What::Held(held));
            messages(vec![ready(), proto::UploadResponse { what }])
                .chain(stream::pending())
                .boxed()
        }),
        ..Script::default()
    };
    let remote = server::remote(&start(lying, vec![]));
    let error = remote
        .upload(&target(), source, Arc::new(Silent))
        .await
        .unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
}

/// Messages after the first one of an upload.
fn ready_and<S>(then: S) -> Answers<proto::UploadResponse>
where
    S: futures::Stream<Item = Result<proto::UploadResponse, Status>> + Send + 'static,
{
    let ready = proto::UploadReady::default();
    let what = Some(proto::upload_response::What::Ready(ready));
    messages(vec![proto::UploadResponse { what }])
        .chain(then)
        .boxed()
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_does_not_get_on_is_given_up() {
    use proto::upload_response::What as Told;
    let stuck = |told: fn(u64) -> Told| {
        // What is sent is taken, but never held.
        let upload = move |mut sent: Streaming<proto::UploadRequest>| {
            tokio::spawn(async move { while let Ok(Some(_)) = sent.message().await {} });
            let beats = stream::iter(0..).then(move |beat| async move {
                tokio::time::sleep(Duration::from_secs(5)).await;
                let what = Some(told(beat));
                Ok(proto::UploadResponse { what })
            });
            ready_and(beats)
        };
        let script = Script {
            upload: Box::new(upload),
            ..Script::default()
        };
        start(script, vec![])
    };
    let held: fn(u64) -> Told = |_| Told::Held(proto::UploadProgress { items: 0 });
    let proving: fn(u64) -> Told = |_| {
        let phase = "proving".to_owned();
        Told::Progress(proto::Progress {
            phase,
            ..Default::default()
        })
    };
    for told in [held, proving] {
        let error = remote(&stuck(told))
            .upload(&target(), Arc::new(Items(4)), Arc::new(Silent))
            .await
            .unwrap_err();
        assert!(matches!(error, ClientError::Stalled { .. }), "{error}");
    }
    let moving: fn(u64) -> Told = |beat| match beat {
        // Longer than the patience with one that stands still.
        1000 => Told::Outcome((&outcome()).into()),
        done => Told::Progress(proto::Progress {
            phase: "proving".to_owned(),
            done,
            total: None,
        }),
    };
    let done = remote(&stuck(moving))
        .upload(&target(), Arc::new(Items(4)), Arc::new(Silent))
        .await;
    assert_eq!(done.unwrap(), outcome());
}

#[tokio::test(start_paused = true)]
async fn items_that_were_damaged_on_their_way_are_sent_again() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let tries = |most: usize| {
        let (attempts, held) = (attempts.clone(), Arc::new(Mutex::new(Vec::new())));
        let upload = move |mut sent: Streaming<proto::UploadRequest>| {
            let attempt = attempts.fetch_add(1, Ordering::SeqCst);
            if attempt >= most {
                return receive(held.clone(), sent);
            }
            // All has been sent by the time that the damage is found.
            let refused = stream::once(async move {
                let finish = |message: &proto::UploadRequest| {
                    matches!(message.what, Some(proto::upload_request::What::Finish(_)))
                };
                while let Ok(Some(message)) = sent.message().await {
                    if finish(&message) {
                        break;
                    }
                }
                let what = "upload item: it does not have its checksum".to_owned();
                Err(refusal(&Refusal::Damaged { what }))
            });
            ready_and(refused)
        };
        let script = Script {
            upload: Box::new(upload),
            ..Script::default()
        };
        start(script, vec![])
    };
    let send = async |links: Arc<Links>| {
        remote(&links)
            .upload(&target(), Arc::new(Items(2)), Arc::new(Silent))
            .await
    };
    assert_eq!(send(tries(2)).await.unwrap(), outcome());
    attempts.store(0, Ordering::SeqCst);
    let error = send(tries(usize::MAX)).await.unwrap_err();
    assert!(
        matches!(error, ClientError::Refused(Refusal::Damaged { .. })),
        "{error}"
    );
    assert_eq!(attempts.load(Ordering::SeqCst), 3);
}
