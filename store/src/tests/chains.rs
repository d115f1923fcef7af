//! Versions, chains, fetches, and what is stored once.

use super::fetch::{Held, all_chunks};
use super::*;
use deltaic_format::fetch::{Chunk, Delivery, FetchRequest};

#[test]
fn every_version_of_a_chain_reads_back_and_survives_reopening() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, created) = Store::init(folder.path()).expect("init");
    assert!(created);
    let mut versions = vec![mixed()];
    for (step, every) in [(11, 500), (12, 500), (13, 3), (14, 1), (15, 900)] {
        let last = versions.last().cloned().expect("there is one");
        versions.push(last.step(step, every));
    }
    let commits: Vec<CommitOutcome> = versions.iter().map(|v| commit(&store, v)).collect();
    assert_eq!(commits[5].version.0, 5);
    assert!(commits[1].new_bytes < commits[0].new_bytes / 20);
    drop(store);
    let store = Store::open(folder.path()).expect("it opens again");
    for (outcome, version) in commits.iter().zip(&versions) {
        check_content(&store, outcome.id, version);
        let stats = store
            .version_stats(&store.snapshot(outcome.id).expect("there"))
            .expect("stats");
        assert_eq!(
            (stats.changed, stats.patch_bytes),
            (outcome.changed, outcome.patch_bytes)
        );
    }
    ok(&store);
}

#[test]
fn a_fetch_leads_from_any_version_to_any_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let mut versions = vec![mixed()];
    for step in 0..4 {
        let last = versions.last().cloned().expect("there is one");
        versions.push(last.step(100 + step, 700));
    }
    let ids: Vec<CommitId> = versions.iter().map(|v| commit(&store, v).id).collect();
    let snapshots: Vec<Snapshot> = ids
        .iter()
        .map(|&id| store.snapshot(id).expect("there"))
        .collect();
    for from in 0..versions.len() {
        for to in 0..versions.len() {
            let request = FetchRequest::all(repo(), &snapshots[to], Some(&snapshots[from]));
            let fetch = store.open_fetch(&request).expect("it fits");
            let chunks = all_chunks(&store, &fetch);
            let is_patch = |chunk: &Chunk| matches!(chunk.delivery, Delivery::Patches { .. });
            assert!(
                chunks.iter().all(is_patch),
                "sparse changes travel as patches"
            );
            let mut held = Held::tensors(&versions[from]);
            let received = held.take(&chunks);
            held.check(&Held::tensors(&versions[to]));
            let plan = store.plan(&fetch).expect("plan");
            assert_eq!(plan.longest_path, from.abs_diff(to) as u64);
            assert!(received <= plan.bytes + 200, "{received} {plan:?}");
            let exact = store.plan_exactly(&fetch, &Silent).expect("plan");
            assert_eq!(exact.bytes, received);
        }
    }
}

#[test]
fn the_same_content_is_stored_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let mut version = mixed();
    // `tied` gets the bytes of `bf16`.
    let bf16 = version.tensor(1).to_vec();
    let at = version.data.len() - bf16.len();
    version.data[at..].copy_from_slice(&bf16);
    let first = commit(&store, &version);
    let again = commit(&store, &version);
    assert_eq!((again.changed, again.patch_bytes), (0, 0));
    let other = CommitRequest {
        repo: RepoName::new("other").expect("valid"),
        message: "elsewhere".to_owned(),
        ..request("main")
    };
    let elsewhere = store.commit(&other, &version, &Silent).expect("commit");
    assert!(elsewhere.new_bytes < 2000, "{elsewhere:?}");
    // Noise does not compress, so a second copy of `tied` would show.
    assert!(first.new_bytes < version.data.len() as u64 - bf16.len() as u64 + 20_000);
    let stats = store.stats(None, &Silent).expect("stats");
    assert_eq!((stats.repos, stats.commits), (2, 3));
}

#[test]
fn long_chains_get_a_new_base_and_every_version_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let mut versions = vec![MemoryCheckpoint::new(&[
        ("small", Dtype::BF16, vec![200, 300]),
        ("big", Dtype::U8, vec![PIECE_ELEMENTS + 70_000]),
    ])];
    for step in 0..40 {
        let last = versions.last().cloned().expect("there is one");
        versions.push(last.step(1000 + step, 40));
    }
    let ids: Vec<CommitId> = versions.iter().map(|v| commit(&store, v).id).collect();
    let chain = store.stats(None, &Silent).expect("stats").longest_chain;
    assert!(chain < 30, "{chain}");
    for version in [0, 1, 17, 18, 29, 40] {
        check_content(&store, ids[version], &versions[version]);
    }
    ok(&store);
}

#[test]
fn tensors_are_found_again_when_files_are_split_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    commit(&store, &mixed());
    let mut split = mixed().step(3, 500);
    split.schema.files[0].path = TreePath::new("model-00001-of-00002.safetensors").expect("valid");
    let outcome = commit(&store, &split);
    assert!(outcome.changed < outcome.elements / 100, "{outcome:?}");
    check_content(&store, outcome.id, &split);
    ok(&store);
}

#[test]
fn an_edge_is_stored_once_and_serves_both_ways() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let tied = |seed: u64| {
        let mut version = MemoryCheckpoint::new(&[
            ("embed", Dtype::BF16, vec![500, 400]),
            ("lm_head", Dtype::BF16, vec![500, 400]),
        ]);
        if seed > 0 {
            version = version.step(seed, 300);
        }
        let half = version.data.len() / 2;
        version.data.copy_within(..half, half);
        version
    };
    commit(&store, &tied(0));
    let second = commit(&store, &tied(1));
    let edges = store.stats(None, &Silent).expect("stats").edge_bytes;
    assert_eq!(
        second.patch_bytes,
        2 * edges,
        "both tensors take the one edge"
    );
    let back = commit(&store, &tied(0));
    assert_eq!(back.changed, second.changed);
    assert_eq!(
        store.stats(None, &Silent).expect("stats").edge_bytes,
        edges,
        "backwards it is the same edge"
    );
    assert_eq!(back.patch_bytes, second.patch_bytes);
    check_content(&store, back.id, &tied(0));
    ok(&store);
}

#[test]
fn a_change_that_makes_content_simple_is_stored_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let mut version = MemoryCheckpoint::new(&[("w", Dtype::U8, vec![1 << 20])]);
    for (i, byte) in version.data.iter_mut().enumerate() {
        if i % 5 != 0 {
            *byte = 0;
        }
    }
    commit(&store, &version);
    version.data.fill(0);
    let zeros = commit(&store, &version);
    assert!(zeros.patch_bytes < 1000, "{zeros:?}");
    check_content(&store, zeros.id, &version);
}

#[test]
fn eight_byte_elements_that_become_simple_are_stored_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let mut version = MemoryCheckpoint::new(&[("w", Dtype::I64, vec![100_000])]);
    commit(&store, &version);
    version.data[8..].fill(0);
    let zeros = commit(&store, &version);
    assert!(zeros.patch_bytes < 10_000, "{zeros:?}");
    check_content(&store, zeros.id, &version);
}
