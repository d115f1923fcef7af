//! Damage is found, named, never returned, and mended where the bytes are at hand.

use super::*;

/// Flip a bit every thousand bytes.
pub(super) fn damage_packs(store: &std::path::Path) {
    for pack in std::fs::read_dir(store.join("packs")).expect("packs") {
        let pack = pack.expect("entry").path();
        let mut bytes = std::fs::read(&pack).expect("read");
        for at in (40..bytes.len()).step_by(1000) {
            bytes[at] ^= 1;
        }
        std::fs::write(pack, bytes).expect("write");
    }
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
    let next = mixed().step(9, 300);
    let stored = commit(&store, &next);
    check_content(&store, stored.id, &next);
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
fn a_commit_stores_anew_what_is_damaged() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    commit(&store, &mixed());
    drop(store);
    damage_packs(folder.path());
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

#[test]
fn a_content_that_is_reached_by_an_edge_is_mended_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let (a, b) = (mixed(), mixed().step(5, 300));
    commit(&store, &a);
    drop(store);
    damage_packs(folder.path());
    let store = Store::open(folder.path()).expect("open");
    let elsewhere = |checkpoint: &MemoryCheckpoint| {
        let request = CommitRequest {
            repo: RepoName::new("other").expect("valid"),
            ..request("main")
        };
        store.commit(&request, checkpoint, &Silent).expect("commit")
    };
    check_content(&store, elsewhere(&b).id, &b);
    check_content(&store, elsewhere(&a).id, &a);
    check_content(&store, commit(&store, &b).id, &b);
    let options = VerifyOptions {
        read_data_percent: Some(100.0),
    };
    let report = store.verify(&options, &Silent).expect("the check runs");
    assert_eq!(report.problems, []);
}

#[test]
fn packs_without_a_database_are_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    commit(&store, &mixed());
    drop(store);
    std::fs::remove_dir_all(folder.path().join("db")).expect("remove");
    std::fs::remove_file(folder.path().join("FORMAT")).expect("remove");
    let made = Store::init(folder.path());
    assert!(matches!(made, Err(StoreError::Corrupt { .. })), "{made:?}");
    assert!(
        std::fs::read_dir(folder.path().join("packs"))
            .expect("packs")
            .count()
            > 0
    );
}
