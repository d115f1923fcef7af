//! A served store as clients see it: the same as in process, whoever else asks, up to its end.

use super::upload::Claimed;
use super::*;
use crate::demo::model::ModelPlan;
use crate::demo::trainer::Trainer;
use crate::embedded::{Committed, Embedded};
use deltaic_client::{
    Checkpoint, ClientError, Remote, RemoteOptions, Repository, Watcher, transfer,
};
use deltaic_format::answers::{CommitOutcome, CommitRequest, VerifyOptions};
use deltaic_format::fetch::{Chunk, FetchRequest, Position};
use deltaic_format::ids::{CommitId, FileId};
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::progress::Silent;
use deltaic_format::refusal::Refusal;
use deltaic_format::upload::{UploadId, UploadTarget};
use futures::{FutureExt, StreamExt, TryStreamExt};
use std::collections::BTreeMap;
use std::future::Future;
use tempfile::TempDir;
use tokio::task::JoinHandle;

mod others;
mod uploads;

/// Nothing here takes as long as that.
const TOO_LONG: Duration = Duration::from_secs(60);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TOO_LONG, future)
        .await
        .expect("it comes soon")
}

fn repo() -> RepoName {
    RepoName::new("acme/policy").expect("valid")
}

fn main_branch() -> BranchName {
    BranchName::new("main").expect("valid")
}

/// A store in a scratch folder, and a model in training.
struct Scratch {
    dir: TempDir,
    store: Arc<Store>,
    trainer: Trainer,
    commits: Vec<CommitId>,
}

impl Scratch {
    fn new(versions: usize) -> Self {
        let dir = TempDir::new().expect("a scratch folder");
        let (store, _) = Store::init(&dir.path().join("store")).expect("a new store");
        let trainer = Trainer::new(ModelPlan::about(200_000), 7).expect("a valid plan");
        let mut scratch = Self {
            dir,
            store: Arc::new(store),
            trainer,
            commits: Vec::new(),
        };
        for _ in 0..versions {
            scratch.commit();
        }
        scratch
    }

    fn commit(&mut self) -> CommitOutcome {
        let folder = self.dir.path().join("checkpoint");
        self.trainer.step();
        self.trainer.save(&folder).expect("it can be written");
        // A file of several pieces, no multiple of anything.
        let notes: Vec<u8> = (0..5_000_001_u32).map(|at| (at / 7) as u8).collect();
        std::fs::write(folder.join("notes.bin"), notes).expect("it can be written");
        let checkpoint = Checkpoint::open(&folder).expect("a checkpoint");
        let request = CommitRequest {
            repo: repo(),
            branch: main_branch(),
            message: "a step".to_owned(),
            meta: BTreeMap::new(),
            time_ms: 1_000 + self.commits.len() as i64,
            expect: None,
        };
        let outcome = self
            .store
            .commit(&request, &Committed::new(&checkpoint), &Silent);
        let outcome = outcome.expect("it can be committed");
        self.commits.push(outcome.id);
        outcome
    }

    fn follower(&self, changes: &Changes, after: Option<CommitId>) -> Follower {
        let parts = (&self.store, &Workers::new(), changes);
        Follower::new(parts, repo(), main_branch(), after)
    }
}

/// A server on a free port, and a client of it.
struct Served {
    shutdown: Shutdown,
    running: JoinHandle<Result<()>>,
    remote: Remote,
}

async fn served(store: &Arc<Store>, options: ServeOptions) -> Served {
    let options = ServeOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        ..options
    };
    let server = Server::bind(store.clone(), options)
        .await
        .expect("a free port");
    let url = format!("http://{}", server.address());
    let shutdown = Shutdown::default();
    let running = tokio::spawn(server.run(shutdown.clone()));
    let options = RemoteOptions {
        attempts: Some(2),
        watch_attempts: Some(1),
        ..RemoteOptions::new([url])
    };
    Served {
        shutdown,
        running,
        remote: Remote::new(options).expect("a valid URL"),
    }
}

fn silent() -> Watcher {
    Arc::new(Silent)
}

#[tokio::test]
async fn a_follower_leaves_none_out_and_none_comes_twice() {
    let mut scratch = Scratch::new(3);
    let changes = Changes::default();
    let mut follower = scratch.follower(&changes, Some(scratch.commits[0]));
    let mut newest = scratch.follower(&changes, None);
    assert!(newest.next().await.expect("the branch is there").is_none());
    for version in 1..3 {
        let next = follower.next().await.expect("it leads on");
        let (id, commit) = next.expect("there is one");
        assert_eq!(
            (id, commit.version.0),
            (scratch.commits[version], version as u64)
        );
    }
    assert!(follower.next().await.expect("it leads on").is_none());
    // Given up while it waits, it misses nothing.
    assert!(follower.following(TOO_LONG).now_or_never().is_none());
    for _ in 0..2 {
        scratch.commit();
    }
    changes.made();
    for follower in [&mut follower, &mut newest] {
        for version in 3..5 {
            let next = soon(follower.following(TOO_LONG))
                .await
                .expect("it leads on");
            assert_eq!(next.0, scratch.commits[version]);
        }
        assert!(follower.next().await.expect("it leads on").is_none());
    }
    scratch
        .store
        .delete_branch(&repo(), &main_branch(), None)
        .expect("it is there");
    changes.made();
    let gone = soon(follower.following(TOO_LONG)).await;
    assert!(matches!(gone, Err(Refusal::NotFound { .. })), "{gone:?}");
}

#[tokio::test]
async fn what_does_not_lead_to_the_branch_cannot_be_followed() {
    let scratch = Scratch::new(3);
    let back = BranchName::new("back").expect("valid");
    (scratch
        .store
        .create_branch(&repo(), &back, scratch.commits[1], 5))
    .expect("it is free");
    let changes = Changes::default();
    let parts = (&scratch.store, &Workers::new(), &changes);
    let mut ahead = Follower::new(parts, repo(), back.clone(), Some(scratch.commits[2]));
    assert!(matches!(ahead.next().await, Err(Refusal::Conflict { .. })));
    let unknown = Some(CommitId([9; 32]));
    let mut unknown = Follower::new(parts, repo(), back, unknown);
    assert!(matches!(
        unknown.next().await,
        Err(Refusal::NotFound { .. })
    ));
    let nowhere = BranchName::new("nowhere").expect("valid");
    let mut nowhere = Follower::new(parts, repo(), nowhere, None);
    assert!(matches!(
        nowhere.next().await,
        Err(Refusal::NotFound { .. })
    ));
}

async fn chunks(of: &dyn Repository, request: &FetchRequest, from: Position) -> Vec<Chunk> {
    let chunks = of
        .fetch(request.clone(), from)
        .await
        .expect("it can be answered");
    chunks.try_collect().await.expect("it is complete")
}

#[tokio::test]
async fn a_server_answers_as_the_store_does() {
    let scratch = Scratch::new(3);
    let Served { remote, .. } = served(&scratch.store, ServeOptions::default()).await;
    let local = Embedded::new(scratch.store.clone());
    assert_eq!(remote.repos().await.expect("told"), vec![repo()]);
    assert_eq!(
        remote.branches(&repo()).await.expect("told"),
        local.branches(&repo()).await.expect("told")
    );
    let (old, new) = (scratch.commits[0], scratch.commits[2]);
    let repo_name = repo();
    let snapshot = |id| remote.snapshot(&repo_name, id);
    let (old, new) = soon(futures::future::join(snapshot(old), snapshot(new))).await;
    let (old, new) = (old.expect("told"), new.expect("told"));
    assert_eq!(
        new.tree,
        local.snapshot(&repo(), new.id).await.expect("told").tree
    );
    let log = remote.history(&repo(), new.id, None).await.expect("told");
    let log: Vec<_> = log.map(|entry| entry.expect("told").0).collect().await;
    assert_eq!(
        log,
        scratch.commits.iter().rev().copied().collect::<Vec<_>>()
    );
    assert_eq!(
        remote.version_stats(&repo(), &new).await.expect("told"),
        local.version_stats(&repo(), &new).await.expect("told")
    );
    assert_eq!(
        remote
            .diff(&repo(), &old, &new, silent())
            .await
            .expect("told"),
        local
            .diff(&repo(), &old, &new, silent())
            .await
            .expect("told")
    );
    for request in [
        FetchRequest::all(repo(), &new, Some(&old)),
        FetchRequest::all(repo(), &old, Some(&new)),
        FetchRequest::all(repo(), &new, None),
    ] {
        for exactly in [false, true] {
            assert_eq!(
                remote
                    .plan(&request, exactly, silent())
                    .await
                    .expect("told"),
                local.plan(&request, exactly, silent()).await.expect("told")
            );
        }
        let all = chunks(&local, &request, Position::default()).await;
        assert!(!all.is_empty());
        // Twice, the second time from what was kept.
        for _ in 0..2 {
            assert_eq!(chunks(&remote, &request, Position::default()).await, all);
        }
        for (at, chunk) in all.iter().enumerate() {
            assert_eq!(chunks(&remote, &request, chunk.next).await, all[at + 1..]);
        }
    }
    for file in new.files() {
        let parts = remote
            .file(&repo(), new.id, file.id)
            .await
            .expect("it is there");
        let parts: Vec<_> = parts.try_collect().await.expect("it is complete");
        let bytes = parts.concat();
        assert_eq!(
            (bytes.len() as u64, FileId::of(&bytes)),
            (file.size, file.id)
        );
    }
    let options = VerifyOptions {
        read_data_percent: Some(100.0),
    };
    let report = remote.verify(options, silent()).await.expect("told");
    assert_eq!(report, local.verify(options, silent()).await.expect("told"));
    assert_eq!(
        remote.store_stats(None).await.expect("told").commits,
        local.store_stats(None).await.expect("told").commits
    );
}

#[tokio::test]
async fn versions_come_by_upload_and_are_followed() {
    let scratch = Scratch::new(2);
    let other = Scratch::new(0);
    let Served { remote, .. } = served(&other.store, ServeOptions::default()).await;
    let (here, there): (Arc<dyn Repository>, Arc<dyn Repository>) = (
        Arc::new(Embedded::new(scratch.store.clone())),
        Arc::new(remote),
    );
    let copy = |here: &Arc<dyn Repository>, there: &Arc<dyn Repository>| {
        let (here, there) = (here.clone(), there.clone());
        async move { transfer::copy_branch(here, there, &repo(), &main_branch(), silent()).await }
    };
    let copied = soon(copy(&here, &there)).await.expect("it is copied");
    assert_eq!((copied.versions, copied.head), (2, scratch.commits[1]));
    let mut followed = there
        .watch(&repo(), &main_branch(), Some(scratch.commits[0]))
        .await
        .expect("it is there");
    let first = soon(followed.next())
        .await
        .expect("it goes on")
        .expect("told");
    assert_eq!(first.0, scratch.commits[1]);
    let mut scratch = scratch;
    scratch.commit();
    soon(copy(&here, &there)).await.expect("it is copied");
    let next = soon(followed.next())
        .await
        .expect("it goes on")
        .expect("told");
    assert_eq!(next.0, scratch.commits[2]);
    let again = soon(copy(&here, &there))
        .await
        .expect("it is there already");
    assert_eq!((again.versions, again.head), (0, scratch.commits[2]));
}

#[tokio::test]
async fn refusals_reach_the_client_as_they_are() {
    let scratch = Scratch::new(1);
    let Served { remote, .. } = served(&scratch.store, ServeOptions::default()).await;
    let missing = RepoName::new("acme/missing").expect("valid");
    let local = Embedded::new(scratch.store.clone());
    let refused = |error: ClientError| match error {
        ClientError::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    };
    let there = remote.branches(&missing).await.map_err(refused);
    let here = local.branches(&missing).await.map_err(refused);
    assert!(matches!(there, Err(Refusal::NotFound { .. })), "{there:?}");
    assert_eq!(there, here);
    let there = remote
        .create_branch(&repo(), &main_branch(), scratch.commits[0], 5)
        .await;
    let there = there.map_err(refused);
    assert!(matches!(there, Err(Refusal::Conflict { .. })), "{there:?}");
    let here = local
        .create_branch(&repo(), &main_branch(), scratch.commits[0], 5)
        .await;
    assert_eq!(there, here.map_err(refused));
}

#[tokio::test]
async fn the_first_signal_ends_followers_and_lets_the_server_end() {
    let scratch = Scratch::new(1);
    let served = served(&scratch.store, ServeOptions::default()).await;
    let followed = served.remote.watch(&repo(), &main_branch(), None).await;
    let mut followed = followed.expect("it is there");
    // It waits before the server is told to end.
    assert!(followed.next().now_or_never().is_none());
    tokio::time::sleep(Duration::from_millis(200)).await;
    served.shutdown.drain.cancel();
    let last = soon(followed.next()).await.expect("it says why");
    assert!(last.is_err(), "{last:?}");
    soon(served.running)
        .await
        .expect("no panic")
        .expect("an orderly end");
}

#[tokio::test]
async fn the_second_signal_ends_everything() {
    let scratch = Scratch::new(2);
    let served = served(&scratch.store, ServeOptions::default()).await;
    let snapshot = served
        .remote
        .snapshot(&repo(), scratch.commits[1])
        .await
        .expect("told");
    let request = FetchRequest::all(repo(), &snapshot, None);
    let mut chunks = (served.remote.fetch(request, Position::default()).await).expect("told");
    chunks.next().await.expect("there is one").expect("told");
    served.shutdown.drain.cancel();
    served.shutdown.now.cancel();
    soon(served.running)
        .await
        .expect("no panic")
        .expect("an end");
}

#[tokio::test]
async fn others_are_let_in_only_where_that_is_said() {
    let scratch = Scratch::new(0);
    let open = |insecure| {
        let options = ServeOptions {
            listen: SocketAddr::from(([0, 0, 0, 0], 0)),
            insecure,
            ..ServeOptions::default()
        };
        Server::bind(scratch.store.clone(), options)
    };
    let refused = open(false).await.expect_err("it can be reached");
    assert_eq!(refused.kind, Kind::Usage);
    assert!(refused.hint.contains("--insecure"), "{refused:?}");
    assert!(open(true).await.is_ok());
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed() {
    use tokio::io::AsyncReadExt;
    let scratch = Scratch::new(0);
    let options = ServeOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        max_connections: 1,
        greeting: Duration::from_millis(300),
        ..ServeOptions::default()
    };
    let server = Server::bind(scratch.store.clone(), options)
        .await
        .expect("a free port");
    let address = server.address();
    let running = tokio::spawn(server.run(Shutdown::default()));
    let connect = || tokio::net::TcpStream::connect(address);
    let mut first = connect().await.expect("it listens");
    let mut second = connect().await.expect("it listens");
    let mut bytes = Vec::new();
    // Refused at once; a reset says the same.
    let _ = soon(second.read_to_end(&mut bytes)).await;
    assert!(bytes.is_empty());
    // The first one says nothing and has to go.
    let _ = soon(first.read_to_end(&mut bytes)).await;
    running.abort();
}

#[tokio::test]
async fn the_newest_sender_of_an_upload_has_it() {
    let uploads = upload::Uploads::new(2);
    let target = |id| UploadTarget {
        repo: repo(),
        branch: main_branch(),
        id: UploadId([id; 32]),
        parent: None,
        commit: None,
    };
    let turn = |claimed| match claimed {
        Ok(Claimed::Turn(turn)) => turn,
        other => panic!("{other:?}"),
    };
    let first = turn(uploads.claim(&target(1)).await);
    let other = turn(uploads.claim(&target(2)).await);
    let beyond = uploads.claim(&target(3)).await;
    assert!(matches!(
        beyond,
        Err(Refusal::Exhausted {
            retry_after: Some(_),
            ..
        })
    ));
    let one = target(1);
    let mut second = Box::pin(uploads.claim(&one));
    assert!(
        (&mut second).now_or_never().is_none(),
        "the first one has not stopped"
    );
    assert!(first.given_up.is_cancelled());
    let mut third = Box::pin(uploads.claim(&one));
    assert!((&mut third).now_or_never().is_none());
    assert!(matches!(soon(second).await, Err(Refusal::Conflict { .. })));
    drop(first);
    let third = turn(soon(third).await);
    assert!(!third.given_up.is_cancelled());
    drop((third, other));
    assert!(uploads.slots().is_empty());
}
