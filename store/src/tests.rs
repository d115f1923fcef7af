//! The store from commit to materialised content, on checkpoints held in memory.

use crate::records::ContentKey;
use crate::{
    Checkpoint, CommitOutcome, CommitRequest, Expect, PlainFile, Store, StoreError, VerifyOptions,
};
use deltaic_format::Dtype;
use deltaic_format::fetch::{Delivery, wishes_between};
use deltaic_format::ids::{CommitId, TensorId};
use deltaic_format::name::{BranchName, RepoName, TreePath};
use deltaic_format::object::{FileMode, Schema, Snapshot, TensorSpec, WeightFileSpec};
use deltaic_format::patch::PIECE_ELEMENTS;
use deltaic_format::patch_set::PatchSetReader;
use deltaic_format::progress::Silent;
use std::collections::BTreeMap;

/// A checkpoint of one weight file and one other file.
#[derive(Clone)]
struct MemoryCheckpoint {
    schema: Schema,
    data: Vec<u8>,
    files: Vec<(PlainFile, Vec<u8>)>,
    listed: Vec<PlainFile>,
    /// Fails the last check, as a file that changed would.
    changes: bool,
}

impl MemoryCheckpoint {
    fn new(tensors: &[(&str, Dtype, Vec<u64>)]) -> Self {
        let specs: Vec<TensorSpec> = tensors
            .iter()
            .map(|(name, dtype, shape)| {
                TensorSpec::new(*name, *dtype, shape.clone()).expect("valid")
            })
            .collect();
        let len: u64 = specs.iter().map(TensorSpec::byte_len).sum();
        let path = TreePath::new("model.safetensors").expect("valid");
        let mut state = 1u64;
        let data = (0..len).map(|_| next(&mut state) as u8).collect();
        Self {
            schema: Schema {
                files: vec![WeightFileSpec {
                    path,
                    tensors: specs,
                }],
            },
            data,
            files: Vec::new(),
            listed: Vec::new(),
            changes: false,
        }
        .with_file("config.json", b"{}".to_vec())
    }

    fn with_file(mut self, path: &str, content: Vec<u8>) -> Self {
        let file = PlainFile {
            path: TreePath::new(path).expect("valid"),
            mode: FileMode::Plain,
            size: content.len() as u64,
        };
        self.files.push((file, content));
        self.files.sort_by(|a, b| a.0.path.cmp(&b.0.path));
        self.listed = self.files.iter().map(|f| f.0.clone()).collect();
        self
    }

    /// Change about one byte in `every`.
    fn step(mut self, seed: u64, every: u64) -> Self {
        let mut state = seed;
        for byte in &mut self.data {
            if next(&mut state).is_multiple_of(every) {
                *byte = byte.wrapping_add(1);
            }
        }
        self
    }

    fn tensor(&self, index: usize) -> &[u8] {
        let specs = &self.schema.files[0].tensors;
        let start: u64 = specs[..index].iter().map(TensorSpec::byte_len).sum();
        &self.data[start as usize..][..specs[index].byte_len() as usize]
    }
}

fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

impl Checkpoint for MemoryCheckpoint {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn header(&self, _file: usize) -> &[u8] {
        b"{\"header\":1}"
    }

    fn read_data(&self, _file: usize, offset: u64, out: &mut [u8]) -> Result<(), String> {
        out.copy_from_slice(&self.data[offset as usize..][..out.len()]);
        Ok(())
    }

    fn files(&self) -> &[PlainFile] {
        &self.listed
    }

    fn read_file(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<(), String> {
        out.copy_from_slice(&self.files[file].1[offset as usize..][..out.len()]);
        Ok(())
    }

    fn check_unchanged(&self) -> Result<(), String> {
        if self.changes {
            return Err("model.safetensors changed while it was read".to_owned());
        }
        Ok(())
    }
}

fn repo() -> RepoName {
    RepoName::new("acme/policy").expect("valid")
}

fn branch(name: &str) -> BranchName {
    BranchName::new(name).expect("valid")
}

fn request(name: &str) -> CommitRequest {
    CommitRequest {
        repo: repo(),
        branch: branch(name),
        message: "step".to_owned(),
        meta: BTreeMap::new(),
        time_ms: 1_700_000_000_000,
        expect: None,
    }
}

fn commit(store: &Store, checkpoint: &MemoryCheckpoint) -> CommitOutcome {
    store
        .commit(&request("main"), checkpoint, &Silent)
        .expect("the commit succeeds")
}

fn check_content(store: &Store, id: CommitId, checkpoint: &MemoryCheckpoint) {
    let snapshot = store.snapshot(id).expect("the commit is there");
    for view in snapshot.tensors() {
        let mut content = Vec::new();
        store
            .read_tensor(view.spec.class, view.entry.id, |piece| {
                content.extend_from_slice(piece);
                Ok(())
            })
            .expect("the tensor reads");
        assert!(
            content == checkpoint.tensor(view.index),
            "{}",
            view.spec.name
        );
    }
}

/// Small, large, scalar, empty, of every width.
fn mixed() -> MemoryCheckpoint {
    MemoryCheckpoint::new(&[
        ("big", Dtype::F8E4M3, vec![PIECE_ELEMENTS + 100_001]),
        ("bf16", Dtype::BF16, vec![300, 500]),
        ("f32", Dtype::F32, vec![70_001]),
        ("f64", Dtype::F64, vec![4097]),
        ("scalar", Dtype::I64, vec![]),
        ("empty", Dtype::F16, vec![0, 7]),
        ("tied", Dtype::BF16, vec![300, 500]),
    ])
}

fn ok(store: &Store) {
    let options = VerifyOptions {
        read_data_percent: Some(100.0),
    };
    let report = store.verify(&options, &Silent).expect("the check runs");
    assert_eq!(report.problems, []);
    assert!(report.contents_read > 0 && report.edges > 0);
}

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
            let wishes = wishes_between(Some(&snapshots[from]), &snapshots[to]);
            let mut held = versions[from].clone();
            let mut received = 0;
            store
                .fetch::<StoreError>(&snapshots[to], &wishes, &mut |delivery| {
                    received += delivery.len();
                    let Delivery::Patches { members, bytes } = delivery else {
                        panic!("sparse changes travel as patches")
                    };
                    let set = PatchSetReader::new(bytes)?;
                    for (piece, changes) in members.iter().zip(set.all()?) {
                        let specs = &held.schema.files[0].tensors;
                        let start: u64 =
                            specs[..piece.tensor].iter().map(TensorSpec::byte_len).sum();
                        let width = specs[piece.tensor].class.width() as u64;
                        let first = (start + piece.piece * PIECE_ELEMENTS * width) as usize;
                        let end = (start + specs[piece.tensor].byte_len()) as usize;
                        deltaic_format::patch::apply(
                            set.class(),
                            &mut held.data[first..end],
                            &changes,
                        )?;
                    }
                    Ok(())
                })
                .expect("the fetch succeeds");
            assert!(held.data == versions[to].data, "{from} to {to}");
            let plan = store.plan(&snapshots[to], &wishes).expect("plan");
            assert_eq!(plan.longest_path, from.abs_diff(to) as u64);
            assert!(received <= plan.bytes + 200, "{received} {plan:?}");
            let exact = store
                .plan_exactly(&snapshots[to], &wishes, &Silent)
                .expect("plan");
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
    let stats = store.stats(None).expect("stats");
    assert_eq!((stats.repos, stats.commits), (2, 3));
}

#[test]
fn revert_has_the_old_bits_and_goes_on_counting() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let (a, b) = (mixed(), mixed().step(5, 300));
    let first = commit(&store, &a);
    let second = commit(&store, &b);
    let back = store
        .revert(&request("main"), first.id, &Silent)
        .expect("revert");
    assert_eq!((back.version.0, back.changed), (2, second.changed));
    check_content(&store, back.id, &a);
    let onward = commit(&store, &b);
    assert_eq!((onward.version.0, onward.changed), (3, second.changed));
    check_content(&store, onward.id, &b);
    ok(&store);
}

#[test]
fn branches_share_patches_and_never_reuse_a_number() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let first = commit(&store, &mixed());
    let second = commit(&store, &mixed().step(1, 400));
    store
        .create_branch(&repo(), &branch("exp"), first.id, 0)
        .expect("branch");
    let same = store
        .commit(&request("exp"), &mixed().step(1, 400), &Silent)
        .expect("commit");
    assert_eq!(same.version.0, 1);
    assert!(same.new_bytes < 4000, "{same:?}");
    assert_eq!(same.patch_bytes, second.patch_bytes);
    let taken = store.create_branch(&repo(), &branch("exp"), first.id, 0);
    assert!(matches!(taken, Err(StoreError::Conflict { .. })));
    store
        .delete_branch(&repo(), &branch("exp"))
        .expect("delete");
    let reused = store.create_branch(&repo(), &branch("exp"), first.id, 0);
    assert!(
        matches!(reused, Err(StoreError::Conflict { .. })),
        "v1 of exp would come twice"
    );
    store
        .create_branch(&repo(), &branch("exp"), same.id, 0)
        .expect("from v1 on it may go on");
    let missing = store.commit(&request("typo"), &mixed(), &Silent);
    assert!(matches!(missing, Err(StoreError::NotFound { .. })));
    store
        .create_tag(&repo(), &branch("best"), second.id, 0)
        .expect("tag");
    for (text, expected) in [
        ("main", second.id),
        ("main~1", first.id),
        ("v0", first.id),
        ("exp:v1", same.id),
        ("best~1", first.id),
        (&first.id.to_string()[..10], first.id),
    ] {
        let found = store.resolve(&repo(), &text.parse().expect(text));
        assert_eq!(found.expect(text), expected);
    }
    for text in ["v2", "main~2", "nope", "exp:v9", "step=1"] {
        let found = store.resolve(&repo(), &text.parse().expect(text));
        assert!(matches!(found, Err(StoreError::NotFound { .. })), "{text}");
    }
}

#[test]
fn a_commit_that_lost_the_race_or_its_files_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let first = commit(&store, &mixed());
    let second = commit(&store, &mixed().step(1, 400));
    for expect in [Expect::Nothing, Expect::Commit(first.id)] {
        let late = CommitRequest {
            expect: Some(expect),
            ..request("main")
        };
        let result = store.commit(&late, &mixed(), &Silent);
        assert!(matches!(result, Err(StoreError::Conflict { .. })));
    }
    let mut changing = mixed().step(2, 400);
    changing.changes = true;
    let result = store.commit(&request("main"), &changing, &Silent);
    assert!(matches!(result, Err(StoreError::Checkpoint { .. })));
    assert_eq!(
        store
            .branch(&repo(), &branch("main"))
            .expect("there")
            .commit,
        second.id
    );
    changing.changes = false;
    let third = commit(&store, &changing);
    check_content(&store, third.id, &changing);
    ok(&store);
}

#[test]
fn one_process_at_a_time_and_one_format() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = Store::open(folder.path());
    assert!(matches!(
        missing,
        Err(StoreError::NotFound { kind: "store", .. })
    ));
    let (store, _) = Store::init(folder.path()).expect("init");
    let second = Store::open(folder.path());
    assert!(
        matches!(second, Err(StoreError::Locked { .. })),
        "{second:?}"
    );
    drop(store);
    let (_, created) = Store::init(folder.path()).expect("init again is fine");
    assert!(!created);
    std::fs::write(folder.path().join("FORMAT"), "deltaic store format 2\n").expect("write");
    let newer = Store::open(folder.path());
    assert!(
        matches!(newer, Err(StoreError::StoreFormat { .. })),
        "{newer:?}"
    );
    let foreign = tempfile::tempdir().expect("a folder");
    std::fs::write(foreign.path().join("thesis.tex"), "x").expect("write");
    assert!(matches!(
        Store::init(foreign.path()),
        Err(StoreError::Conflict { .. })
    ));
}

#[test]
fn damage_to_a_pack_is_found_named_and_never_returned() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let first = commit(&store, &mixed());
    let tensor: TensorId = store.snapshot(first.id).expect("there").tree.tensors[1].id;
    drop(store);
    let packs: Vec<_> = std::fs::read_dir(folder.path().join("packs"))
        .expect("packs")
        .map(|entry| entry.expect("entry").path())
        .collect();
    for pack in &packs {
        let mut bytes = std::fs::read(pack).expect("read");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(pack, bytes).expect("write");
    }
    let store = Store::open(folder.path()).expect("open");
    let options = VerifyOptions {
        read_data_percent: Some(100.0),
    };
    let report = store.verify(&options, &Silent).expect("the check runs");
    assert!(!report.ok());
    let next = store.commit(&request("main"), &mixed().step(9, 300), &Silent);
    assert!(matches!(next, Err(StoreError::Corrupt { .. })), "{next:?}");
    drop(store);
    for pack in &packs {
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(pack)
            .expect("open");
        file.set_len(100).expect("truncate");
    }
    let store = Store::open(folder.path()).expect("open");
    let key = ContentKey::new(deltaic_format::ElementClass::BF16, tensor);
    assert!(matches!(
        store.contents().open(key),
        Err(StoreError::Corrupt { .. })
    ));
}

#[test]
fn a_deleted_branch_can_be_brought_back_by_its_id() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let first = commit(&store, &mixed());
    let second = commit(&store, &mixed().step(1, 400));
    let versions = |name: &str| {
        store
            .unreached_without(&repo(), &branch(name))
            .expect("there")
    };
    assert_eq!(versions("main"), [first.version, second.version]);
    store
        .create_tag(&repo(), &branch("base"), first.id, 0)
        .expect("tag");
    assert_eq!(versions("main"), [second.version]);
    store.delete_tag(&repo(), &branch("base")).expect("delete");
    store
        .delete_branch(&repo(), &branch("main"))
        .expect("delete");
    let again = store.commit(&request("main"), &mixed(), &Silent);
    assert!(
        matches!(again, Err(StoreError::Conflict { .. })),
        "v0 of main would come twice"
    );
    let id = second.id.to_string();
    let found = store
        .resolve(&repo(), &id.parse().expect("an id"))
        .expect("the whole id is enough");
    store
        .create_branch(&repo(), &branch("main"), found, 0)
        .expect("it goes on where it ended");
    assert_eq!(commit(&store, &mixed()).version.0, 2);
    ok(&store);
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
    let chain = store.stats(None).expect("stats").longest_chain;
    assert!(chain < 30, "{chain}");
    for version in [0, 1, 17, 18, 29, 40] {
        check_content(&store, ids[version], &versions[version]);
    }
    ok(&store);
}

#[test]
fn a_commit_stores_anew_what_is_damaged() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    commit(&store, &mixed());
    drop(store);
    for pack in std::fs::read_dir(folder.path().join("packs")).expect("packs") {
        let pack = pack.expect("entry").path();
        let mut bytes = std::fs::read(&pack).expect("read");
        for at in (40..bytes.len()).step_by(1000) {
            bytes[at] ^= 1;
        }
        std::fs::write(pack, bytes).expect("write");
    }
    let store = Store::open(folder.path()).expect("open");
    let first = store
        .branch(&repo(), &branch("main"))
        .expect("there")
        .commit;
    let reverted = store.revert(&request("main"), first, &Silent);
    assert!(matches!(reverted, Ok(_) | Err(StoreError::Corrupt { .. })));
    let elsewhere = CommitRequest {
        repo: RepoName::new("other").expect("valid"),
        ..request("main")
    };
    let healed = store
        .commit(&elsewhere, &mixed(), &Silent)
        .expect("it has all that is needed");
    check_content(&store, healed.id, &mixed());
    check_content(&store, first, &mixed());
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
fn a_store_that_lost_its_database_is_not_an_empty_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let first = commit(&store, &mixed());
    drop(store);
    let current = folder.path().join("db/CURRENT");
    let saved = std::fs::read(&current).expect("read");
    std::fs::remove_file(&current).expect("remove");
    for _ in 0..2 {
        assert!(matches!(
            Store::open(folder.path()),
            Err(StoreError::Corrupt { .. })
        ));
        assert!(matches!(
            Store::init(folder.path()),
            Err(StoreError::Corrupt { .. })
        ));
    }
    std::fs::write(&current, saved).expect("write");
    std::fs::remove_file(folder.path().join("FORMAT")).expect("remove");
    let (store, created) = Store::init(folder.path()).expect("init");
    assert!(!created, "the versions are still there");
    check_content(&store, first.id, &mixed());
}

#[test]
fn damage_to_the_log_is_told_and_takes_no_version_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let first = commit(&store, &mixed());
    for step in 1..4 {
        commit(&store, &mixed().step(step, 400));
    }
    store
        .create_tag(&repo(), &branch("base"), first.id, 0)
        .expect("tag");
    drop(store);
    let log = std::fs::read_dir(folder.path().join("db"))
        .expect("db")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "log"))
        .max_by_key(|path| std::fs::metadata(path).map_or(0, |meta| meta.len()))
        .expect("there is a log");
    let whole = std::fs::read(&log).expect("read");
    for place in [2, 3, 10] {
        let mut damaged = whole.clone();
        damaged[whole.len() / place] ^= 1;
        std::fs::write(&log, &damaged).expect("write");
        let opened = Store::open(folder.path());
        assert!(
            matches!(opened, Err(StoreError::Corrupt { .. })),
            "{place}: {opened:?}"
        );
    }
    std::fs::write(&log, &whole).expect("write");
    let store = Store::open(folder.path()).expect("open");
    assert_eq!(
        store
            .branch(&repo(), &branch("main"))
            .expect("there")
            .version
            .0,
        3
    );
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
    let edges = store.stats(None).expect("stats").edge_bytes;
    assert_eq!(
        second.patch_bytes,
        2 * edges,
        "both tensors take the one edge"
    );
    let back = commit(&store, &tied(0));
    assert_eq!(back.changed, second.changed);
    assert_eq!(
        store.stats(None).expect("stats").edge_bytes,
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
fn packs_that_nothing_names_are_swept_when_the_store_is_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let first = commit(&store, &mixed());
    drop(store);
    let packs = folder.path().join("packs");
    let count = || std::fs::read_dir(&packs).expect("packs").count();
    let before = count();
    std::fs::write(
        packs.join(format!("{}.pack", "ab".repeat(32))),
        b"left over",
    )
    .expect("write");
    let store = Store::open(folder.path()).expect("open");
    assert_eq!(count(), before);
    check_content(&store, first.id, &mixed());
}
