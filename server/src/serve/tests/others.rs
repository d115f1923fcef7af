//! What others may not see, take up or wait for.

use super::*;
use deltaic_store::StoreError;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};

fn secret() -> RepoName {
    RepoName::new("acme/secret").expect("valid")
}

/// What is refused, in process and by a server: the same.
async fn both<T: Debug>(
    here: impl Future<Output = Result<T, ClientError>>,
    there: impl Future<Output = Result<T, ClientError>>,
) -> Refusal {
    let refused = |result: Result<T, ClientError>| match result {
        Err(ClientError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let (here, there) = (refused(here.await), refused(soon(there).await));
    assert_eq!(here, there);
    here
}

#[tokio::test]
async fn versions_of_another_repository_are_as_if_they_were_none() {
    let scratch = Scratch::new(2);
    let foreign = {
        let folder = scratch.dir.path().join("checkpoint");
        std::fs::write(folder.join("secret.txt"), "attack at dawn").expect("written");
        let checkpoint = Checkpoint::open(&folder).expect("a checkpoint");
        let request = CommitRequest {
            repo: secret(),
            branch: main_branch(),
            message: "a step".to_owned(),
            meta: BTreeMap::new(),
            time_ms: 1,
            expect: None,
        };
        let made = (scratch.store).commit(&request, &Committed::new(&checkpoint), &Silent);
        made.expect("it can be committed").id
    };
    let Served { remote, .. } = served(&scratch.store, ServeOptions::default()).await;
    let local = Embedded::new(scratch.store.clone());
    let (repo, own) = (repo(), scratch.commits[1]);
    let theirs = local.snapshot(&secret(), foreign).await.expect("there");
    let mine = local.snapshot(&repo, own).await.expect("there");
    let secret_file = (theirs.files().iter())
        .find(|file| file.path.as_str() == "secret.txt")
        .expect("it was committed")
        .id;
    let missing = Refusal::NotFound {
        kind: "commit".to_owned(),
        name: foreign.to_string(),
    };
    let name = BranchName::new("mine").expect("valid");
    macro_rules! refuse {
        ($at:ident => $call:expr) => {
            both(
                async {
                    let $at = &local;
                    $call.await.map(drop)
                },
                async {
                    let $at = &remote;
                    $call.await.map(drop)
                },
            )
            .await
        };
    }
    assert_eq!(refuse!(at => at.snapshot(&repo, foreign)), missing);
    assert_eq!(refuse!(at => at.version_stats(&repo, &theirs)), missing);
    assert_eq!(
        refuse!(at => at.diff(&repo, &mine, &theirs, silent())),
        missing
    );
    assert_eq!(
        refuse!(at => at.diff(&repo, &theirs, &mine, silent())),
        missing
    );
    assert_eq!(
        refuse!(at => at.create_branch(&repo, &name, foreign, 0)),
        missing
    );
    assert_eq!(
        refuse!(at => at.create_tag(&repo, &name, foreign, 0)),
        missing
    );
    let history = |at: Arc<dyn Repository>| {
        let repo = repo.clone();
        async move {
            let history = at.history(&repo, foreign, None).await?;
            history.try_collect::<Vec<_>>().await
        }
    };
    let (here, there): (Arc<dyn Repository>, Arc<dyn Repository>) =
        (Arc::new(local.clone()), Arc::new(remote.clone()));
    let told = both(history(here.clone()), history(there.clone())).await;
    assert_eq!(told, missing);
    for request in [
        FetchRequest::all(repo.clone(), &theirs, None),
        FetchRequest::all(repo.clone(), &mine, Some(&theirs)),
    ] {
        assert_eq!(refuse!(at => at.plan(&request, false, silent())), missing);
        let fetch = |at: Arc<dyn Repository>| {
            let request = request.clone();
            async move {
                let chunks = at.fetch(request, Position::default()).await?;
                chunks.try_collect::<Vec<_>>().await
            }
        };
        let told = both(fetch(here.clone()), fetch(there.clone())).await;
        assert_eq!(told, missing);
    }
    assert_eq!(refuse!(at => at.file(&repo, foreign, secret_file)), missing);
    let no_file = refuse!(at => at.file(&repo, own, secret_file));
    assert_eq!(
        no_file,
        Refusal::NotFound {
            kind: "file".to_owned(),
            name: secret_file.to_string(),
        }
    );
    let request = CommitRequest {
        repo: repo.clone(),
        branch: main_branch(),
        message: String::new(),
        meta: BTreeMap::new(),
        time_ms: 0,
        expect: None,
    };
    assert_eq!(
        refuse!(at => at.revert(&request, foreign, silent())),
        missing
    );
    let moved = refuse!(at => at.delete_branch(&repo, &main_branch(), Some(scratch.commits[0])));
    assert!(matches!(moved, Refusal::Conflict { .. }), "{moved:?}");
}

#[tokio::test]
async fn branches_are_followed_by_so_many_at_a_time() {
    let scratch = Scratch::new(1);
    let options = ServeOptions {
        max_watches: 1,
        ..ServeOptions::default()
    };
    let Served { remote, .. } = served(&scratch.store, options).await;
    let mut followed = remote
        .watch(&repo(), &main_branch(), Some(scratch.commits[0]))
        .await
        .expect("there is a place");
    assert!(followed.next().now_or_never().is_none());
    tokio::time::sleep(Duration::from_millis(300)).await;
    let beyond = async {
        let mut stream = remote
            .watch(&repo(), &main_branch(), Some(scratch.commits[0]))
            .await?;
        stream.next().await.expect("it says why")
    };
    match soon(beyond).await {
        Err(ClientError::Refused(Refusal::Exhausted {
            retry_after: Some(_),
            ..
        })) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_is_refused_for_want_of_time_is_not_done_later() {
    let scratch = Scratch::new(0);
    let options = ServeOptions {
        request_timeout: Duration::from_millis(200),
        ..ServeOptions::default()
    };
    let state = State::new(scratch.store.clone(), options, &Shutdown::default());
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let done = Arc::new(AtomicUsize::new(0));
    let count = |done: &Arc<AtomicUsize>| {
        let done = done.clone();
        move |_: &Store| Ok::<_, StoreError>(done.fetch_add(1, Ordering::SeqCst))
    };
    // Takes longer than it may, but has begun: it is waited for.
    let slow = state.change_in_time(move |_| {
        gate.recv().expect("the test lets it go");
        Ok(7)
    });
    let others = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let late = state.change_in_time(count(&done)).await;
        assert!(
            matches!(
                late,
                Err(Refusal::Exhausted {
                    retry_after: Some(_),
                    ..
                })
            ),
            "{late:?}"
        );
        go.send(()).expect("it waits");
    };
    let (slow, ()) = soon(futures::future::join(slow, others)).await;
    assert_eq!(slow, Ok(7));
    assert_eq!(state.change_in_time(count(&done)).await, Ok(0));
    // Beside a commit, refs change at once.
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let commit = state.change(Work::Write, move |_| {
        gate.recv().expect("the test lets it go");
        Ok(())
    });
    let others = async {
        assert_eq!(soon(state.change_in_time(count(&done))).await, Ok(1));
        go.send(()).expect("it waits");
    };
    let (commit, ()) = soon(futures::future::join(commit, others)).await;
    assert_eq!(commit, Ok(()));
}
