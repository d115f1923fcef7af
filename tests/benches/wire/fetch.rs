//! A fetch of the real policy over loopback, beside composing and encoding it in process.

use super::scene::{InProcess, Scene, request};
use super::{Figure, middle};
use deltaic_client::{Remote, RemoteOptions, Repository};
use deltaic_format::fetch::{FetchRequest, Position};
use deltaic_store::Store;
use futures::StreamExt as _;
use std::time::Instant;

const RUNS: usize = 31;

/// By distance, composing and from the server's memory.
pub(crate) async fn measure(scene: &Scene) -> Vec<Figure> {
    let store = scene.open();
    let newest = scene.versions.len() - 1;
    let mut figures = Vec::new();
    for distance in [1, 4, newest] {
        let (from, to) = (scene.versions[newest - distance], scene.versions[newest]);
        let request = request(&store, Some(from), to);
        let (mut here, mut there, mut again) = (Vec::new(), Vec::new(), Vec::new());
        let mut bytes = 0;
        for _ in 0..RUNS {
            let (seconds, composed) = in_process(&store, &request);
            here.push(seconds);
            let server = InProcess::start(&store).await;
            let remote = Remote::new(RemoteOptions::new([&server.url])).expect("a valid URL");
            // Connects.
            remote.repos().await.expect("the server answers");
            for times in [&mut there, &mut again] {
                let begun = Instant::now();
                bytes = fetch(&remote, &request).await;
                times.push(begun.elapsed().as_secs_f64());
                assert_eq!(bytes, composed);
            }
        }
        let (here, there, again) = (middle(here), middle(there), middle(again));
        let ms = |seconds: f64| seconds * 1e3;
        let route = format!("v{} to v{newest}", newest - distance);
        let note = format!(
            "{:.2} ms, in process {:.2} ms, {bytes} bytes",
            ms(there),
            ms(here)
        );
        let what = format!("fetch of {route}, composed");
        figures.push(Figure::at_most(&what, there / here, 2.0).noting(note));
        let note = format!("{:.2} ms", ms(again));
        let what = format!("fetch of {route}, once composed");
        figures.push(Figure::at_most(&what, again / here, 2.0).noting(note));
    }
    figures
}

/// Seconds that the chunks take without a server, and their bytes.
fn in_process(store: &Store, request: &FetchRequest) -> (f64, u64) {
    let begun = Instant::now();
    let fetch = store.open_fetch(request).expect("it can be answered");
    let (mut at, mut bytes) = (Position::default(), 0);
    loop {
        let chunks = store.chunks(&fetch, at).expect("it can be composed");
        let Some(last) = chunks.last() else {
            return (begun.elapsed().as_secs_f64(), bytes);
        };
        at = last.next;
        bytes += chunks.iter().map(|chunk| chunk.delivery.len()).sum::<u64>();
    }
}

/// Bytes of weights that a fetch brings.
pub(crate) async fn fetch(remote: &Remote, request: &FetchRequest) -> u64 {
    let chunks = remote.fetch(request.clone(), Position::default()).await;
    let mut chunks = chunks.expect("it is answered");
    let mut bytes = 0;
    while let Some(chunk) = chunks.next().await {
        bytes += chunk.expect("it goes on").delivery.len();
    }
    bytes
}
