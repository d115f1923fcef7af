//! Messages that come slowly, and messages that do not come at all although something does.

use super::server::{Script, remote, start};
use super::{answer, begin_of, end, everything, fetch, messages, request};
use crate::{ClientError, Remote, RemoteOptions, Repository as _};
use bytes::Bytes;
use deltaic_format::fetch::{Delivery, FetchRequest, Position, Span};
use deltaic_format::wire::{self, ResumeToken, proto};
use futures::StreamExt as _;
use futures::stream;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Several times what comes within the time that a server may be silent.
const LONG: usize = 100_000;

const STALL: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// An answer that is one long chunk.
fn long_chunk(wire: &proto::FetchRequest) -> Vec<proto::FetchResponse> {
    if begin_of(wire) > 0 {
        return vec![end(0)];
    }
    let request = FetchRequest::try_from(wire).unwrap().digest();
    let span = Span {
        tensor: 0,
        first: 0,
        elements: 8,
    };
    let position = Position {
        wish: 1,
        element: 0,
        kind: None,
    };
    // Not as many bytes as the elements have, which nobody looks at here.
    let bytes = Bytes::from(vec![7; LONG]);
    let token = ResumeToken { request, position };
    let chunk = wire::chunk_to_wire(&Delivery::Content { span, bytes }, token.to_bytes());
    let what = Some(proto::fetch_response::What::Chunk(chunk));
    vec![proto::FetchResponse { what }, end(1)]
}

#[tokio::test(start_paused = true)]
async fn a_long_message_on_a_slow_line_is_no_stall() {
    let name = |index| format!("acme/{index:0>40}");
    let repos: Vec<String> = (0..LONG / 50).map(name).collect();
    let all = repos.clone();
    let script = Script {
        fetch: Box::new(|wire| messages(long_chunk(&wire))),
        repos: Box::new(move |_| {
            Ok(proto::ListRepositoriesResponse {
                repos: repos.clone(),
            })
        }),
        ..Script::default()
    };
    let links = start(script, vec![]);
    links.rate.store(1000, Ordering::SeqCst);
    let remote = remote(&links);
    let began = Instant::now();
    let chunks = fetch(&remote).await.unwrap();
    assert_eq!(chunks.len(), 1);
    assert!(began.elapsed() > 3 * STALL);
    let began = Instant::now();
    assert_eq!(remote.repos().await.unwrap().len(), all.len());
    assert!(began.elapsed() > 3 * STALL);
    assert_eq!(links.dialled.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_never_becomes_whole_is_a_stall() {
    let script = Script {
        fetch: Box::new(|wire| messages(long_chunk(&wire))),
        ..Script::default()
    };
    let links = start(script, vec![]);
    // Enough not to look silent, and too little to get a message through in time.
    links.rate.store(60, Ordering::SeqCst);
    let began = Instant::now();
    let error = fetch(&remote(&links)).await.unwrap_err();
    assert!(
        matches!(error, ClientError::Stalled { after, .. } if after == PATIENCE),
        "{error}"
    );
    assert!(began.elapsed() >= PATIENCE && began.elapsed() < 3 * PATIENCE);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_hangs_beside_others_with_heartbeats_is_a_stall() {
    let beats = |_| {
        let beat = || Ok(proto::WatchResponse { version: None });
        let every = Duration::from_secs(5);
        let beats = stream::repeat_with(beat).then(move |beat| async move {
            sleep(every).await;
            beat
        });
        beats.boxed()
    };
    let script = Script {
        fetch: Box::new(|_| stream::pending().boxed()),
        watch: Box::new(beats),
        ..Script::default()
    };
    let links = start(script, vec![]);
    let options = RemoteOptions {
        connections: 1,
        attempts: Some(1),
        ..RemoteOptions::new(["http://server"])
    };
    let remote = Remote::with_connector(options, links.clone()).unwrap();
    let (repo, branch) = (super::repo(), super::main_branch());
    let watch = remote.watch(&repo, &branch, Some(request().want));
    let mut watch = watch.await.unwrap();
    let began = Instant::now();
    let fetched = async {
        let error = fetch(&remote).await.unwrap_err();
        assert!(
            matches!(error, ClientError::Stalled { after, .. } if after == STALL),
            "{error}"
        );
        assert!(began.elapsed() < 2 * STALL);
    };
    tokio::select! {
        () = fetched => {}
        item = watch.next() => panic!("{item:?}"),
    }
    assert_eq!(links.dialled.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_was_stopped_for_a_while_hears_the_server_first() {
    let slow = |wire: proto::FetchRequest| {
        let answer = stream::once(async move {
            sleep(Duration::from_secs(20)).await;
            messages(answer(&wire))
        });
        answer.flatten().boxed()
    };
    let script = Script {
        fetch: Box::new(slow),
        ..Script::default()
    };
    let links = start(script, vec![]);
    let remote = remote(&links);
    let fetched = tokio::spawn(async move { fetch(&remote).await });
    sleep(Duration::from_secs(10)).await;
    tokio::time::advance(10 * STALL).await;
    assert_eq!(fetched.await.unwrap().unwrap(), everything());
    assert_eq!(links.dialled.load(Ordering::SeqCst), 1);
}
