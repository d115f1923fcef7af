//! Branches, tags, races, and who may open a store.

use super::*;

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
        .delete_branch(&repo(), &branch("exp"), None)
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
        .delete_branch(&repo(), &branch("main"), None)
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
