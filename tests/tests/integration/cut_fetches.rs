//! Fetches over links that fail: whatever happens on the way, and wherever, what comes is what was committed, and nothing that
//! came is sent again. Every run has one fault, at a place of its own.

use deltaic_client::ClientError;
use deltaic_format::fetch::{Chunk, FetchRequest};
use deltaic_format::ids::CommitId;
use deltaic_format::object::Snapshot;
use deltaic_tests::checkpoints::{NamedTensor, TensorContent, read_folder};
use deltaic_tests::linked::{
    Linked, assembled, large_model, main_branch, policy, request_to, small_model,
};
use deltaic_tests::network::{Fault, FaultAt, Way};
use std::time::Duration;
use tokio::time::Instant;

/// Less than half of what a chunk of these takes.
const STEP: usize = 240 << 10;

/// What a second connection takes besides what was lost: greeting, handshake, headers, flow control.
const ALLOWANCE: u64 = 2 << 10;

/// No run takes as long; the clock is paused.
const TOO_LONG: Duration = Duration::from_secs(3600);

/// A served store with three versions, and fetches of them with known results.
struct Scene {
    linked: Linked,
    ids: Vec<CommitId>,
    contents: Vec<Vec<TensorContent>>,
}

/// A fetch without faults.
struct Clean {
    request: FetchRequest,
    want: Snapshot,
    chunks: Vec<Chunk>,
    to_client: u64,
    to_server: u64,
    largest: u64,
}

impl Scene {
    fn new(model: [Vec<NamedTensor>; 3]) -> Self {
        let linked = Linked::direct();
        let mut scene = Self {
            linked,
            ids: Vec::new(),
            contents: Vec::new(),
        };
        for (version, tensors) in model.into_iter().enumerate() {
            let folder = scene.linked.checkpoint(&format!("v{version}"), tensors);
            let request = request_to(&policy(), &main_branch(), "a version");
            scene.ids.push(scene.linked.commit(&request, &folder).id);
            scene.contents.push(read_folder(&folder).unwrap());
        }
        scene
    }

    /// Fetch `want`, holding `held`, and compare with what was committed.
    async fn clean(&self, held: Option<usize>, want: usize) -> Clean {
        let wanted = self.linked.snapshot(self.ids[want]);
        let from = held.map(|held| self.linked.snapshot(self.ids[held]));
        let request = FetchRequest::all(policy(), &wanted, from.as_ref());
        let chunks = self.linked.fetch(&request, Vec::new()).await.unwrap();
        let held = held.map(|held| &*self.contents[held]);
        let made = assembled(held, &wanted, &chunks);
        let committed = &self.contents[want];
        assert_eq!(made.len(), committed.len());
        for (made, committed) in made.iter().zip(committed) {
            assert!(
                *made == committed.content,
                "{} differs",
                committed.spec.name
            );
        }
        let (to_client, to_server, connections) = self.linked.traffic();
        assert_eq!(connections, 1);
        let largest = chunks.iter().map(|chunk| chunk.delivery.len()).max();
        Clean {
            request,
            want: wanted,
            to_client,
            to_server,
            largest: largest.unwrap(),
            chunks,
        }
    }

    /// Both fetches: all of the newest version, and the patches that lead to it.
    async fn both(&self) -> [Clean; 2] {
        let cold = self.clean(None, 2).await;
        assert!(cold.chunks.len() >= 8, "{} chunks", cold.chunks.len());
        let warm = self.clean(Some(0), 2).await;
        assert!(warm.chunks.len() >= 4, "{} chunks", warm.chunks.len());
        assert!(warm.to_client < cold.to_client);
        [cold, warm]
    }

    /// Fetch through one fault.
    async fn through(&self, clean: &Clean, fault: FaultAt) -> Result<Vec<Chunk>, ClientError> {
        let fetching = self.linked.fetch(&clean.request, vec![fault]);
        let fetched = tokio::time::timeout(TOO_LONG, fetching).await;
        fetched.unwrap_or_else(|_| panic!("{fault:?}: it hangs"))
    }

    /// The same, which ends well in spite of the fault.
    async fn exact(&self, clean: &Clean, fault: FaultAt) {
        let chunks = self.through(clean, fault).await;
        let chunks = chunks.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert!(chunks == clean.chunks, "{fault:?}");
    }
}

fn to_client(fault: Fault, after: u64) -> FaultAt {
    let way = Way::ToClient;
    FaultAt { way, after, fault }
}

#[tokio::test(start_paused = true)]
async fn a_cut_in_any_chunk_costs_that_chunk() {
    let scene = Scene::new(large_model());
    for clean in scene.both().await {
        for after in (0..clean.to_client).step_by(STEP) {
            let fault = to_client(Fault::Cut, after);
            let began = Instant::now();
            scene.exact(&clean, fault).await;
            assert!(began.elapsed() < Duration::from_secs(2), "{fault:?}");
            let (to_client, _, connections) = scene.linked.traffic();
            assert_eq!(connections, 2, "{fault:?}");
            let most = clean.to_client + clean.largest + ALLOWANCE;
            assert!(to_client <= most, "{fault:?}: {to_client} of {most}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn silence_in_any_chunk_is_noticed() {
    let scene = Scene::new(large_model());
    for clean in scene.both().await {
        for after in (0..clean.to_client).step_by(STEP) {
            for fault in [Fault::Stall, Fault::HalfClose] {
                let fault = to_client(fault, after);
                let began = Instant::now();
                scene.exact(&clean, fault).await;
                let took = began.elapsed();
                let limits = match fault.fault {
                    // A connection that is not made is given up sooner.
                    Fault::Stall if after == 0 => 10..15,
                    Fault::Stall => 30..35,
                    _ => 0..2,
                };
                assert!(limits.contains(&took.as_secs()), "{fault:?}: {took:?}");
                let (to_client, _, connections) = scene.linked.traffic();
                assert_eq!(connections, 2, "{fault:?}");
                let most = clean.to_client + clean.largest + ALLOWANCE;
                assert!(to_client <= most, "{fault:?}: {to_client} of {most}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_restarts_between_a_cut_and_the_rest_goes_on_where_the_other_was() {
    let mut scene = Scene::new(large_model());
    for clean in scene.both().await {
        for after in (0..clean.to_client).step_by(2 * STEP) {
            let fault = to_client(Fault::Cut, after);
            scene.linked.plan(vec![fault]).await;
            let remote = scene.linked.remote();
            let fetching = deltaic_tests::linked::collect(remote, &clean.request);
            let chunks = scene.linked.through_restart(fetching).await;
            assert!(chunks.unwrap() == clean.chunks, "{fault:?}");
            let (to_client, _, connections) = scene.linked.traffic();
            assert!((2..=3).contains(&connections), "{fault:?}: {connections}");
            let most = clean.to_client + clean.largest + 2 * ALLOWANCE;
            assert!(to_client <= most, "{fault:?}: {to_client} of {most}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn faults_at_every_byte_of_a_small_answer_change_nothing() {
    let scene = Scene::new(small_model());
    let clean = scene.clean(Some(0), 2).await;
    for fault in [Fault::Cut, Fault::Stall, Fault::HalfClose] {
        for after in 0..clean.to_client.min(700) {
            scene.exact(&clean, to_client(fault, after)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn faults_at_every_byte_of_a_request_change_nothing() {
    let scene = Scene::new(small_model());
    let clean = scene.clean(Some(0), 2).await;
    let way = Way::ToServer;
    for fault in [Fault::Cut, Fault::Stall, Fault::HalfClose] {
        for after in 0..clean.to_server {
            scene.exact(&clean, FaultAt { way, after, fault }).await;
        }
    }
}

/// A bit that flips: what comes is right, or there is an error that says what is wrong, never anything else.
async fn corrupt(
    scene: &Scene,
    clean: &Clean,
    way: Way,
    places: impl Iterator<Item = u64>,
) -> usize {
    let mut exact = 0;
    for after in places {
        let fault = Fault::Corrupt;
        let fault = FaultAt { way, after, fault };
        match scene.through(clean, fault).await {
            Ok(chunks) => {
                // What is made of chunks is what counts: a server may cut others where a request changed on its way.
                if chunks != clean.chunks {
                    let held = Some(&*scene.contents[0]).filter(|_| clean.request.held.is_some());
                    let made = assembled(held, &clean.want, &chunks);
                    let committed = scene.contents[2].iter().map(|tensor| &tensor.content);
                    assert!(made.iter().eq(committed), "{fault:?}");
                }
                exact += 1;
            }
            Err(
                ClientError::Refused(_)
                | ClientError::Protocol { .. }
                | ClientError::Unreachable { .. }
                | ClientError::Stalled { .. },
            ) => {}
            Err(other) => panic!("{fault:?}: {other:?}"),
        }
    }
    exact
}

#[tokio::test(start_paused = true)]
async fn a_flipped_bit_anywhere_in_a_small_exchange_is_noticed() {
    let scene = Scene::new(small_model());
    let clean = scene.clean(Some(0), 2).await;
    let exact = corrupt(&scene, &clean, Way::ToClient, 0..clean.to_client).await;
    assert!(exact as u64 > clean.to_client / 2, "{exact}");
    corrupt(&scene, &clean, Way::ToServer, 0..clean.to_server).await;
}

#[tokio::test(start_paused = true)]
async fn a_flipped_bit_in_any_chunk_is_noticed_and_the_chunk_fetched_again() {
    let scene = Scene::new(large_model());
    for clean in scene.both().await {
        let places = (0..clean.to_client).step_by(STEP).skip(1);
        let runs = places.clone().count();
        let exact = corrupt(&scene, &clean, Way::ToClient, places).await;
        assert_eq!(exact, runs);
    }
}
