//! What the ranks of a tensor-parallel replica receive, beside their share of what one receives that holds everything.

use super::Figure;
use super::link::over;
use super::scene::{Scene, request};
use deltaic_client::{Remote, Repository};
use deltaic_format::fetch::{FetchRequest, Position};
use deltaic_format::object::Snapshot;
use deltaic_format::slice::Slice;
use deltaic_tests::network::{Conditions, Network, Way};
use futures::StreamExt as _;

const RANKS: u64 = 8;

/// Steps of one version and of all, and everything.
pub(crate) async fn measure(scene: &Scene) -> Vec<Figure> {
    let store = scene.open();
    let (network, remote) = over(&store, Conditions::default()).await;
    let newest = scene.versions.len() - 1;
    let want = store.snapshot(scene.versions[newest]).expect("it is there");
    let mut figures = Vec::new();
    for from in [Some(newest - 1), Some(0), None] {
        let held = from.map(|from| scene.versions[from]);
        let whole = request(&store, held, want.id);
        let plain = received(&network, &remote, whole.clone()).await;
        let mut ranks = Vec::new();
        for rank in 0..RANKS {
            let mut request = whole.clone();
            request.slices = slices(&want, rank);
            ranks.push(received(&network, &remote, request).await as f64);
        }
        let share = plain as f64 / RANKS as f64;
        let mean = ranks.iter().sum::<f64>() / RANKS as f64;
        let most = ranks.iter().copied().fold(0.0, f64::max);
        let route = from.map_or("nothing".to_owned(), |from| format!("v{from}"));
        let what = format!("TP=8, {route} to v{newest}: a rank's bytes of an eighth of all, mean");
        let note = format!(
            "most {:.3}; a rank {mean:.0} bytes, all {plain}, as they travel",
            most / share
        );
        figures.push(Figure::at_most(&what, mean / share, 1.1).noting(note));
    }
    figures
}

/// The blocks of one rank: columns where inputs are shared out, rows elsewhere; what has one axis, every rank holds whole.
fn slices(want: &Snapshot, rank: u64) -> std::collections::BTreeMap<usize, Slice> {
    let mut slices = std::collections::BTreeMap::new();
    for view in want.tensors() {
        let (name, shape) = (&view.spec.name, &view.spec.shape);
        if shape.len() < 2 {
            continue;
        }
        let columns = name.contains("o_proj") || name.contains("down_proj");
        let axis = usize::from(columns);
        let each = shape[axis] / RANKS;
        let range = rank * each..(rank + 1) * each;
        let slice = Slice::of_axis(shape, axis, range).expect("the axis is there");
        slices.insert(view.index, slice);
    }
    slices
}

/// Bytes on the link from the server, all that frames them included.
async fn received(network: &Network, remote: &Remote, request: FetchRequest) -> u64 {
    network.plan(Vec::new());
    let chunks = remote.fetch(request, Position::default()).await;
    let mut chunks = chunks.expect("it is answered");
    while let Some(chunk) = chunks.next().await {
        chunk.expect("it goes on");
    }
    network.bytes(Way::ToClient)
}
