//! Watches over links that fail and servers that restart: no version is left out, none comes twice, and they come in order.

use deltaic_client::{Entry, Result};
use deltaic_format::Dtype;
use deltaic_format::ids::CommitId;
use deltaic_tests::checkpoints::NamedTensor;
use deltaic_tests::linked::{Linked, main_branch, policy, request_to};
use deltaic_tests::network::{Fault, FaultAt, Way};
use deltaic_tests::weights::Stream;
use futures::StreamExt;
use futures::stream::BoxStream;
use std::ops::RangeInclusive;
use std::time::Duration;
use tokio::time::{Instant, timeout};

const FAULTS: [Fault; 3] = [Fault::Cut, Fault::Stall, Fault::HalfClose];

/// No version takes as long to come; the clock is paused.
const TOO_LONG: Duration = Duration::from_secs(3600);

/// A served branch that grows.
struct Scene {
    linked: Linked,
    /// Oldest first.
    ids: Vec<CommitId>,
}

impl Scene {
    fn new(versions: usize) -> Self {
        let linked = Linked::direct();
        let ids = Vec::new();
        let mut scene = Self { linked, ids };
        (0..versions).for_each(|_| scene.commit());
        scene
    }

    /// One more version.
    fn commit(&mut self) {
        let content = Stream::new(self.ids.len() as u64).bytes(400, u64::MAX);
        let tensor = NamedTensor::flat("w", Dtype::BF16, content);
        let folder = self.linked.checkpoint("checkpoint", vec![tensor]);
        let request = request_to(&policy(), &main_branch(), "a version");
        self.ids.push(self.linked.commit(&request, &folder).id);
    }

    async fn watch(&self, after: Option<CommitId>) -> BoxStream<'static, Result<Entry>> {
        let remote = self.linked.remote();
        let watch = remote.watch(&policy(), &main_branch(), after).await;
        watch.unwrap()
    }

    /// Let something happen to what comes after the next `after` bytes.
    async fn fail(&self, fault: Fault, after: u64) -> FaultAt {
        let way = Way::ToClient;
        let fault = FaultAt { way, after, fault };
        self.linked.plan(vec![fault]).await;
        fault
    }

    /// Expect the versions of these numbers, and no other one.
    async fn expect(
        &self,
        watch: &mut BoxStream<'static, Result<Entry>>,
        versions: RangeInclusive<usize>,
        why: impl std::fmt::Debug,
    ) {
        for version in versions {
            let next = timeout(TOO_LONG, watch.next()).await;
            let next = next.unwrap_or_else(|_| panic!("{why:?}: v{version} is missed"));
            let (id, commit) = next.expect("it does not end").unwrap();
            assert_eq!(id, self.ids[version], "{why:?}: v{version}");
            assert_eq!(commit.version.0, version as u64);
        }
        let more = timeout(Duration::from_secs(120), watch.next()).await;
        assert!(more.is_err(), "{why:?}: {more:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn faults_at_any_place_of_what_is_caught_up_with_change_nothing() {
    let scene = Scene::new(6);
    scene.linked.plan(Vec::new()).await;
    let mut watch = scene.watch(Some(scene.ids[0])).await;
    for version in 1..6 {
        let (id, _) = watch.next().await.expect("it does not end").unwrap();
        assert_eq!(id, scene.ids[version]);
    }
    drop(watch);
    let (clean, ..) = scene.linked.traffic();
    for kind in FAULTS {
        for after in (0..clean).step_by(11) {
            let fault = scene.fail(kind, after).await;
            let mut watch = scene.watch(Some(scene.ids[0])).await;
            scene.expect(&mut watch, 1..=5, fault).await;
            let (.., connections) = scene.linked.traffic();
            assert_eq!(connections, 2, "{fault:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn faults_at_any_place_of_a_live_version_change_nothing() {
    let mut scene = Scene::new(1);
    let mut watch = scene.watch(None).await;
    for kind in FAULTS {
        // A version takes about 250 bytes with its frames.
        for after in (0..280).step_by(12) {
            let fault = scene.fail(kind, after).await;
            let before = Instant::now();
            scene.commit();
            let newest = scene.ids.len() - 1;
            scene.expect(&mut watch, newest..=newest, fault).await;
            let took = before.elapsed() - Duration::from_secs(120);
            let limit = if kind == Fault::Stall { 40 } else { 10 };
            assert!(took < Duration::from_secs(limit), "{fault:?}: {took:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn restarts_of_the_server_change_nothing() {
    let mut scene = Scene::new(2);
    let mut watch = scene.watch(Some(scene.ids[0])).await;
    scene.expect(&mut watch, 1..=1, "at first").await;
    for round in 0..4 {
        let first = scene.ids.len();
        // Committed before the end, which may come before the word of it does, and before the watch is back.
        for _ in 0..round {
            scene.commit();
        }
        scene.linked.restart().await;
        scene.commit();
        let last = scene.ids.len() - 1;
        scene.expect(&mut watch, first..=last, round).await;
    }
    // A watcher that begins with what it knows from before all that.
    let mut late = scene.watch(Some(scene.ids[1])).await;
    let last = scene.ids.len() - 1;
    scene.expect(&mut late, 2..=last, "late").await;
}

#[tokio::test(start_paused = true)]
async fn a_quiet_branch_is_watched_for_hours_on_one_connection() {
    let mut scene = Scene::new(1);
    scene.linked.plan(Vec::new()).await;
    let mut watch = scene.watch(None).await;
    for hours in [1, 7] {
        let nothing = timeout(Duration::from_secs(3600 * hours), watch.next()).await;
        assert!(nothing.is_err(), "{nothing:?}");
        scene.commit();
        let newest = scene.ids.len() - 1;
        scene.expect(&mut watch, newest..=newest, hours).await;
    }
    let (.., connections) = scene.linked.traffic();
    assert_eq!(connections, 1);
}

#[tokio::test(start_paused = true)]
async fn silence_is_noticed_though_nothing_is_committed() {
    let mut scene = Scene::new(1);
    let mut watch = scene.watch(None).await;
    let fault = scene.fail(Fault::Stall, 0).await;
    let nothing = timeout(Duration::from_secs(40), watch.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    let (.., connections) = scene.linked.traffic();
    assert_eq!(connections, 1, "a new one");
    scene.commit();
    scene.expect(&mut watch, 1..=1, fault).await;
}
