//! Whole operations over links that are cut again and again: replicas are pulled and histories copied as long as something
//! gets through between two cuts, and what arrives is, byte for byte, what was committed.

use deltaic_client::asynchronous::pull;
use deltaic_client::transfer::{Copied, copy_branch};
use deltaic_client::{
    ClientError, PullOptions, PullOutcome, RemoteOptions, ReplicaFolder, Repository,
};
use deltaic_format::fetch::FetchRequest;
use deltaic_format::ids::CommitId;
use deltaic_format::progress::Silent;
use deltaic_tests::linked::{Hurry, Linked, collect, large_model, main_branch, policy, request_to};
use deltaic_tests::network::{Conditions, Fault, FaultAt, Way};
use deltaic_tests::stores::assert_same_files;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What travels between two cuts besides a delivery: greeting, handshake, headers, answers to other questions.
const ALLOWANCE: u64 = 16 << 10;

/// A server with three versions, and where their checkpoints lie.
fn filled(conditions: Conditions) -> (Linked, Vec<CommitId>, Vec<PathBuf>) {
    let linked = Linked::new(conditions);
    let mut ids = Vec::new();
    let mut folders = Vec::new();
    for (version, tensors) in large_model().into_iter().enumerate() {
        let folder = linked.checkpoint(&format!("v{version}"), tensors);
        let request = request_to(&policy(), &main_branch(), "a version");
        ids.push(linked.commit(&request, &folder).id);
        folders.push(folder);
    }
    (linked, ids, folders)
}

/// A cut after every `bytes` that go a way.
fn cuts(way: Way, bytes: u64) -> Vec<FaultAt> {
    let fault = Fault::Cut;
    let at = |n| FaultAt {
        way,
        after: n * bytes,
        fault,
    };
    (1..200).map(at).collect()
}

async fn pull_into(
    folder: &Path,
    remote: Arc<dyn Repository>,
    id: CommitId,
) -> Result<PullOutcome, ClientError> {
    let want = remote.snapshot(&policy(), id).await?;
    let replica = ReplicaFolder::open_or_create(folder, &Silent)?;
    let (options, silent) = (PullOptions::default(), Arc::new(Silent));
    let (_, outcome) = pull(replica, remote, policy(), want, options, silent).await?;
    Ok(outcome)
}

/// Pull the first version, then patches to the last, over a link that is cut after every `bytes`.
async fn pull_through_cuts(conditions: Conditions, bytes: u64) {
    let (linked, ids, folders) = filled(conditions);
    let replica = linked.path("replica");
    let _hurry = Hurry::start();
    for version in [0, 2] {
        linked.plan(cuts(Way::ToClient, bytes)).await;
        let outcome = pull_into(&replica, linked.remote(), ids[version]).await;
        outcome.unwrap_or_else(|error| panic!("v{version}, cuts after {bytes}: {error}"));
        let (to_client, _, connections) = linked.traffic();
        assert_eq!(connections, 1 + to_client / bytes, "v{version}");
        assert!(connections > 2, "v{version}: {connections}");
        assert_same_files(&replica, &folders[version]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pull_through_many_cuts_is_exact() {
    for bytes in [1_150_000, 1_700_001, 2_600_000] {
        pull_through_cuts(Conditions::default(), bytes).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pull_through_many_cuts_over_a_long_way_is_exact() {
    let conditions = Conditions {
        delay: Duration::from_millis(75),
        rate: None,
    };
    pull_through_cuts(conditions, 1_700_001).await;
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_never_gets_on_is_given_up_and_the_version_held_stays() {
    let (linked, ids, folders) = filled(Conditions::default());
    let replica = linked.path("replica");
    let _hurry = Hurry::start();
    pull_into(&replica, linked.remote(), ids[0]).await.unwrap();
    linked.plan(cuts(Way::ToClient, 120_000)).await;
    let error = pull_into(&replica, linked.remote(), ids[2]).await;
    let error = error.expect_err("no chunk ever arrives");
    assert!(
        matches!(error, ClientError::Unreachable { .. }),
        "{error:?}"
    );
    assert_same_files(&replica, &folders[0]);
    linked.plan(Vec::new()).await;
    pull_into(&replica, linked.remote(), ids[2]).await.unwrap();
    assert_same_files(&replica, &folders[2]);
}

#[tokio::test(start_paused = true)]
async fn a_pull_in_parts_over_several_connections_is_exact_through_cuts() {
    let (linked, ids, folders) = filled(Conditions::default());
    let replica = linked.path("replica");
    let _hurry = Hurry::start();
    let options = RemoteOptions {
        connections: 3,
        part_bytes: 1 << 20,
        ..RemoteOptions::new(["http://server:1"])
    };
    for (version, cut_after) in [
        (0, 1_700_001),
        (2, u64::MAX),
        (0, 2_600_000),
        (2, 2_600_001),
    ] {
        let faults = match cut_after {
            u64::MAX => Vec::new(),
            bytes => cuts(Way::ToClient, bytes),
        };
        linked.plan(faults).await;
        let remote = linked.remote_with(options.clone());
        let outcome = pull_into(&replica, remote, ids[version]).await;
        outcome.unwrap_or_else(|error| panic!("v{version}, cuts after {cut_after}: {error}"));
        let (_, _, connections) = linked.traffic();
        match cut_after {
            u64::MAX => assert_eq!(connections, 3, "v{version}"),
            _ => assert!(connections > 3, "v{version}: {connections}"),
        }
        assert_same_files(&replica, &folders[version]);
    }
}

/// Bytes of the longest delivery of a history that is copied.
async fn longest_delivery(linked: &Linked, ids: &[CommitId]) -> u64 {
    let mut parent = None;
    let mut longest = 0;
    for &id in ids {
        let version = linked.snapshot(id);
        let request = FetchRequest::all(policy(), &version, parent.as_ref());
        let chunks = collect(linked.local(), &request).await.unwrap();
        longest = (chunks.iter().map(|chunk| chunk.delivery.len())).fold(longest, u64::max);
        parent = Some(version);
    }
    longest
}

async fn copy(from: &Linked, to: &Linked) -> Result<Copied, ClientError> {
    let (from, to) = (from.remote(), to.remote());
    copy_branch(from, to, &policy(), &main_branch(), Arc::new(Silent)).await
}

#[tokio::test(start_paused = true)]
async fn a_history_copied_through_cuts_is_the_same_history() {
    let (from, ids, folders) = filled(Conditions::default());
    let newest_first: Vec<CommitId> = ids.iter().rev().copied().collect();
    // As soon as the longest delivery gets through between two cuts, all of them do.
    let least = longest_delivery(&from, &ids).await + ALLOWANCE;
    for number in 0..9 {
        let bytes = least + number * 90_001;
        let (cut_from, cut_to) = [(true, true), (false, true), (true, false)][number as usize % 3];
        let to = &Linked::direct();
        let faults = |cut, way| if cut { cuts(way, bytes) } else { Vec::new() };
        from.plan(faults(cut_from, Way::ToClient)).await;
        to.plan(faults(cut_to, Way::ToServer)).await;
        let copied = copy(&from, to).await;
        let copied = copied.unwrap_or_else(|error| panic!("cuts after {bytes}: {error}"));
        assert_eq!((copied.versions, copied.head), (3, ids[2]));
        for (linked, cut) in [(&from, cut_from), (to, cut_to)] {
            let (.., connections) = linked.traffic();
            assert_eq!(cut, connections > 3, "{bytes}: {connections}");
        }
        assert_eq!(to.history(&policy(), &main_branch()), newest_first);
        for (&id, folder) in ids.iter().zip(&folders) {
            to.assert_stored(id, folder);
        }
        to.assert_healthy();
        // Once more: there is nothing to do.
        assert_eq!(copy(&from, to).await.unwrap().versions, 0);
        assert_eq!(to.history(&policy(), &main_branch()), newest_first);
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_never_gets_on_is_given_up_and_goes_on_later() {
    let (from, ids, folders) = filled(Conditions::default());
    let least = longest_delivery(&from, &ids).await;
    let to = Linked::direct();
    // Everything shorter gets through.
    to.plan(cuts(Way::ToServer, least - ALLOWANCE)).await;
    let error = copy(&from, &to).await;
    let error = error.expect_err("one delivery never arrives");
    assert!(
        matches!(error, ClientError::Unreachable { .. }),
        "{error:?}"
    );
    to.plan(Vec::new()).await;
    let copied = copy(&from, &to).await.unwrap();
    assert_eq!(copied.head, ids[2]);
    for (&id, folder) in ids.iter().zip(&folders) {
        to.assert_stored(id, folder);
    }
}
