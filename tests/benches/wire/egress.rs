//! How fast a server sends what it has stored, beside a bare tonic stream of the same messages.

use super::raw::{self, Bare};
use super::scene::{InProcess, Scene, request};
use super::{Figure, middle};
use deltaic_client::remote::rpc::transfer_client::TransferClient;
use deltaic_format::fetch::FetchRequest;
use deltaic_format::wire::proto;
use deltaic_store::Store;
use std::sync::Arc;
use std::time::Instant;
use tonic::transport::Channel;

/// Fetches of each kind, in turns.
const RUNS: usize = 5;

/// Bytes that travel in one timing at least, as several fetches if need be.
const BYTES: u64 = 300_000_000;

/// Contents for who holds nothing, and the stored patches of a step.
pub(crate) async fn measure(scene: &Scene) -> Vec<Figure> {
    let [old, new] = scene.versions[..] else {
        unreachable!("the made-up model has two versions")
    };
    let store = scene.open();
    let bases = request(&store, None, old);
    let patches = request(&store, Some(old), new);
    vec![
        of("egress of stored bases", &store, &bases).await,
        of("egress of stored patches", &store, &patches).await,
    ]
}

async fn of(what: &str, store: &Arc<Store>, request: &FetchRequest) -> Figure {
    let request = proto::FetchRequest::from(request);
    let mut messages = Vec::new();
    {
        let server = InProcess::start(store).await;
        let mut client = raw::connect(&server.url).await;
        raw::drain(&mut client, request.clone(), |message| {
            messages.push(message);
        })
        .await;
    }
    let bytes: u64 = messages.iter().map(raw::payload).sum();
    let (chunks, fetches) = (messages.len() as u64 - 1, BYTES.div_ceil(bytes));
    let url = Bare::start(messages).await;
    let mut bare = raw::connect(&url).await;
    let (mut bare_seconds, mut seconds) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let begun = Instant::now();
        for _ in 0..fetches {
            assert_eq!(count(&mut bare, &request).await, bytes);
        }
        bare_seconds.push(begun.elapsed().as_secs_f64());
        let mut elapsed = 0.0;
        for _ in 0..fetches {
            // A server that has answered nothing yet has no chunk in memory.
            let server = InProcess::start(store).await;
            let mut client = raw::connect(&server.url).await;
            let begun = Instant::now();
            assert_eq!(count(&mut client, &request).await, bytes);
            elapsed += begun.elapsed().as_secs_f64();
        }
        seconds.push(elapsed);
    }
    let (ours, bare) = (middle(seconds), middle(bare_seconds));
    let rate = |seconds: f64| (bytes * fetches) as f64 / seconds / 1e9;
    Figure::at_least(what, bare / ours, 0.8).noting(format!(
        "{:.2} GB/s, bare {:.2} GB/s; {chunks} chunks, {:.0} MB",
        rate(ours),
        rate(bare),
        bytes as f64 / 1e6
    ))
}

async fn count(client: &mut TransferClient<Channel>, request: &proto::FetchRequest) -> u64 {
    let mut bytes = 0;
    raw::drain(client, request.clone(), |message| {
        bytes += raw::payload(&message);
    })
    .await;
    bytes
}
