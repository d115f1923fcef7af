//! A long fat link, shaped in user space: how much of it a fetch fills, and how often it waits for an answer.

use super::Figure;
use super::fetch::fetch;
use super::scene::{Scene, repo, request};
use deltaic_client::asynchronous::pull;
use deltaic_client::{PullOptions, Remote, RemoteOptions, ReplicaFolder, Repository};
use deltaic_format::fetch::{FetchRequest, wishes_between};
use deltaic_format::progress::Silent;
use deltaic_format::revision::Selector;
use deltaic_server::serve::{ServeOptions, Shutdown, serve_connections};
use deltaic_store::Store;
use deltaic_tests::network::{Conditions, Network, Through};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// 1 Gbit/s, and half a round trip.
const RATE: u64 = 125_000_000;
const DELAY: Duration = Duration::from_millis(75);

/// Tensors of the made-up model that are fetched: about 256 MB.
const TENSORS: usize = 44;

/// A server behind such a link, and a client that has connected. The server ends with the runtime.
async fn shaped(store: &Arc<Store>) -> (Arc<Network>, Remote) {
    let conditions = Conditions {
        delay: DELAY,
        rate: Some(RATE),
    };
    over(store, conditions).await
}

/// The same behind a link of any kind.
pub(crate) async fn over(store: &Arc<Store>, conditions: Conditions) -> (Arc<Network>, Remote) {
    let (network, incoming) = Network::new(conditions);
    let options = ServeOptions::default();
    tokio::spawn(serve_connections(
        store.clone(),
        options,
        incoming,
        Shutdown::default(),
    ));
    let options = RemoteOptions::new(["http://shaped:1"]);
    let dial = Arc::new(Through(network.clone()));
    let remote = Remote::with_connector(options, dial).expect("a valid URL");
    // Connects.
    remote.repos().await.expect("the server answers");
    (network, remote)
}

/// Contents that fill the link.
pub(crate) async fn contents(scene: &Scene) -> Vec<Figure> {
    let store = scene.open();
    let (_network, remote) = shaped(&store).await;
    let want = store.snapshot(scene.versions[0]).expect("it is there");
    let wishes = wishes_between(None, &want);
    let request = FetchRequest::new(repo(), &want, None, &wishes[..TENSORS]);
    let begun = Instant::now();
    let bytes = fetch(&remote, &request).await;
    let seconds = begun.elapsed().as_secs_f64();
    let ideal = bytes as f64 / RATE as f64;
    let most = 1.15 * ideal + 3.0 * round_trip();
    let what = "fetch over 1 Gbit/s and 150 ms, of 1.15 x bytes/rate + 3 round trips";
    let note = format!(
        "{seconds:.2} s for {:.0} MB, {ideal:.2} s at the link's rate; shaped in user space",
        bytes as f64 / 1e6
    );
    vec![Figure::at_most(what, seconds / most, 1.0).noting(note)]
}

fn round_trip() -> f64 {
    2.0 * DELAY.as_secs_f64()
}

/// Small fetches, whose time is that of round trips.
pub(crate) async fn patches(scene: &Scene) -> Vec<Figure> {
    let store = scene.open();
    let newest = scene.versions.len() - 1;
    let (old, new) = (scene.versions[newest - 1], scene.versions[newest]);
    let request = request(&store, Some(old), new);
    let (network, remote) = shaped(&store).await;
    let begun = Instant::now();
    let bytes = fetch(&remote, &request).await;
    let fetched = begun.elapsed().as_secs_f64();
    let note = format!(
        "{:.0} ms, {bytes} bytes; shaped in user space",
        fetched * 1e3
    );
    let what = format!("round trips of a fetch of v{} to v{newest}", newest - 1);
    let fetched = Figure::at_most(&what, fetched / round_trip(), 3.0).noting(note);

    let folder = TempDir::new().expect("a scratch folder can be made");
    let snapshot = |id| store.snapshot(id).expect("it is there");
    let replica = ReplicaFolder::open_or_create(folder.path().join("replica"), &Silent);
    let replica = replica.expect("a replica can be made");
    let remote: Arc<dyn Repository> = Arc::new(remote);
    let repo = repo();
    let to = |replica, want| {
        let options = PullOptions::default();
        pull(
            replica,
            remote.clone(),
            repo.clone(),
            want,
            options,
            Arc::new(Silent),
        )
    };
    let (replica, _) = to(replica, snapshot(old)).await.expect("it can be pulled");
    network.plan(Vec::new());
    let begun = Instant::now();
    let commit = remote.resolve(&repo, &Selector::default()).await;
    let commit = commit.expect("it is there");
    let want = remote.snapshot(&repo, commit).await;
    to(replica, want.expect("it is there"))
        .await
        .expect("it can be pulled");
    let pulled = begun.elapsed().as_secs_f64();
    let what = format!("round trips of a pull from v{} to v{newest}", newest - 1);
    let note = format!("{:.0} ms: resolve, version, patches, folder", pulled * 1e3);
    let pulled = Figure::amount(&what, pulled / round_trip()).noting(note);
    vec![fetched, pulled]
}
