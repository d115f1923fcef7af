//! Repositories side by side in one store: nothing of one is in another, whoever knows its id.

use super::*;
use deltaic_format::fetch::{Delivery, FetchRequest, Position, TensorWish, wishes_between};
use std::sync::Arc;

fn other() -> RepoName {
    RepoName::new("acme/secret").expect("valid")
}

fn missing<T: std::fmt::Debug>(result: Result<T, StoreError>, id: CommitId) {
    match result {
        Err(StoreError::NotFound {
            kind: "commit",
            name,
        }) => assert_eq!(name, id.to_string()),
        other => panic!("{other:?}"),
    }
}

/// A store with two versions of `repo()`, and one of `other()`, which has a tensor more alike.
fn two_repositories() -> (tempfile::TempDir, Store, [CommitId; 2], CommitId) {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let own = [mixed(), mixed().step(1, 400)].map(|version| commit(&store, &version).id);
    let request = CommitRequest {
        repo: other(),
        ..request("main")
    };
    let version = mixed()
        .step(1, 300)
        .with_file("secret.txt", b"attack at dawn".to_vec());
    let foreign = store.commit(&request, &version, &Silent).expect("commit");
    (folder, store, own, foreign.id)
}

#[test]
fn versions_of_another_repository_are_not_there() {
    let (_folder, store, own, foreign) = two_repositories();
    let snapshot = store.snapshot(foreign).expect("it is in the store");
    let unknown = CommitId([7; 32]);
    for id in [foreign, unknown] {
        assert!(!store.reaches(&repo(), id).expect("told"));
        missing(store.snapshot_of(&repo(), id), id);
        missing(store.create_branch(&repo(), &branch("mine"), id, 0), id);
        missing(store.create_tag(&repo(), &branch("mine"), id, 0), id);
        missing(store.revert(&request("main"), id, &Silent), id);
        let whole = store.resolve(&repo(), &id.to_string().parse().expect("an id"));
        let name = match whole {
            Err(StoreError::NotFound { name, .. }) => name.replace(&id.to_string(), ""),
            other => panic!("{other:?}"),
        };
        assert_eq!(name, " of acme/policy");
    }
    let prefix = foreign.to_string()[..20].parse().expect("a prefix");
    let found = store.resolve(&repo(), &prefix);
    assert!(
        matches!(found, Err(StoreError::NotFound { .. })),
        "{found:?}"
    );
    missing(
        store.open_fetch(&FetchRequest::all(repo(), &snapshot, None)),
        foreign,
    );
    let mine = store.snapshot_of(&repo(), own[1]).expect("it has it");
    let held = FetchRequest::all(repo(), &mine, Some(&snapshot));
    missing(store.open_fetch(&held), foreign);
    assert!(store.reaches(&other(), foreign).expect("told"));
    assert!(store.resolve(&other(), &prefix).is_ok());
}

#[test]
fn files_are_those_of_a_version() {
    let (_folder, store, own, foreign) = two_repositories();
    let (mine, theirs) = (
        store.snapshot(own[1]).expect("there"),
        store.snapshot(foreign).expect("there"),
    );
    let secret = theirs
        .files()
        .iter()
        .find(|f| f.path.as_str() == "secret.txt");
    let secret = secret.expect("it was committed").id;
    missing(store.find_file(&repo(), &theirs, secret), foreign);
    let own_version = store.find_file(&repo(), &mine, secret);
    assert!(
        matches!(own_version, Err(StoreError::NotFound { kind: "file", .. })),
        "{own_version:?}"
    );
    // A tensor of bytes is no file, though it is kept as one would be.
    let tensor = deltaic_format::ids::FileId(theirs.tree.tensors[0].id.0);
    let no_file = store.find_file(&other(), &theirs, tensor);
    assert!(matches!(
        no_file,
        Err(StoreError::NotFound { kind: "file", .. })
    ));
    let found = store
        .find_file(&other(), &theirs, secret)
        .expect("it has it");
    let (bytes, complete) = store.file_part(found, 0).expect("it reads");
    assert!(complete && bytes == b"attack at dawn");
    let header = theirs.tree.weight_files[0].header;
    assert!(store.find_file(&other(), &theirs, header).is_ok());
}

/// Patches of the answer to someone who wants `want` of `repo()` and lists what `held` has.
fn patches_from(store: &Store, want: CommitId, held: &Snapshot) -> usize {
    let want = store.snapshot(want).expect("there");
    let wishes = wishes_between(Some(held), &want);
    let request = FetchRequest::new(repo(), &want, None, &wishes);
    let fetch = store.open_fetch(&request).expect("it is answered");
    let (mut at, mut patches) = (Position::default(), 0);
    loop {
        let chunks = store.chunks(&fetch, at).expect("it is answered");
        let Some(last) = chunks.last() else {
            return patches;
        };
        at = last.next;
        patches += (chunks.iter())
            .filter(|chunk| matches!(chunk.delivery, Delivery::Patches { .. }))
            .count();
    }
}

#[test]
fn contents_of_another_repository_are_not_held() {
    let (_folder, store, own, foreign) = two_repositories();
    let [old, theirs] = [own[0], foreign].map(|id| store.snapshot(id).expect("there"));
    assert!(patches_from(&store, own[1], &old) > 0);
    // The store could: both are steps from the same contents.
    let wanted = store.snapshot(own[1]).expect("there");
    let wishes = wishes_between(Some(&theirs), &wanted);
    assert!(wishes.iter().any(|wish| wish.have.is_some()));
    assert_eq!(patches_from(&store, own[1], &theirs), 0);
    // Not even that the store has them can be told: they are answered as what it never had.
    let ask = |have: fn(&TensorWish) -> Option<TensorId>| {
        let wishes: Vec<_> = (wishes.iter())
            .filter(|wish| wish.tensor == 1)
            .map(|wish| TensorWish {
                have: have(wish),
                ..*wish
            })
            .collect();
        let request = FetchRequest::new(repo(), &wanted, None, &wishes);
        let fetch = store.open_fetch(&request).expect("it is answered");
        store.chunks(&fetch, Position::default()).expect("whole")
    };
    let known = ask(|wish| wish.have);
    assert_eq!(known, ask(|_| Some(TensorId([9; 32]))));
    assert_eq!(known, ask(|_| None));
}

#[test]
fn contents_of_another_branch_head_are_held() {
    let (_folder, store, own, _) = two_repositories();
    store
        .create_branch(&repo(), &branch("dev"), own[0], 0)
        .expect("branch");
    let dev = store.commit(&request("dev"), &mixed().step(5, 300), &Silent);
    let dev = store.snapshot(dev.expect("commit").id).expect("there");
    assert!(patches_from(&store, own[1], &dev) > 0);
}

#[test]
fn what_is_reached_follows_the_refs() {
    let (folder, store, own, _) = two_repositories();
    assert!(store.reaches(&repo(), own[0]).expect("told"));
    let third = commit(&store, &mixed().step(2, 400)).id;
    assert!(store.reaches(&repo(), third).expect("told"));
    store
        .create_branch(&repo(), &branch("dev"), own[0], 0)
        .expect("branch");
    let dev = store.commit(&request("dev"), &mixed().step(3, 400), &Silent);
    let dev = dev.expect("commit").id;
    store
        .create_tag(&repo(), &branch("best"), dev, 0)
        .expect("tag");
    store
        .delete_branch(&repo(), &branch("dev"), Some(dev))
        .expect("delete");
    store.delete_tag(&repo(), &branch("best")).expect("delete");
    // Deleted, and there to be brought back; also by a store that was opened anew.
    drop(store);
    let store = Store::open(folder.path()).expect("open");
    for id in [own[0], own[1], third, dev] {
        assert!(store.reaches(&repo(), id).expect("told"));
    }
    for name in [other(), RepoName::new("acme/none").expect("valid")] {
        assert!(!store.reaches(&name, dev).expect("told"));
    }
    store
        .create_branch(&repo(), &branch("dev"), dev, 0)
        .expect("it goes on");
}

#[test]
fn a_branch_is_deleted_where_it_was_examined() {
    let (_folder, store, own, _) = two_repositories();
    let moved = store.delete_branch(&repo(), &branch("main"), Some(own[0]));
    assert!(
        matches!(moved, Err(StoreError::Conflict { .. })),
        "{moved:?}"
    );
    let deleted = store.delete_branch(&repo(), &branch("main"), Some(own[1]));
    assert_eq!(deleted.expect("it stands there").commit, own[1]);
}

/// A checkpoint whose last look does something else as well.
struct Meanwhile<'a>(MemoryCheckpoint, &'a (dyn Fn() + Sync));

impl Checkpoint for Meanwhile<'_> {
    fn schema(&self) -> &Schema {
        self.0.schema()
    }

    fn header(&self, file: usize) -> &[u8] {
        self.0.header(file)
    }

    fn read_data(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<(), String> {
        self.0.read_data(file, offset, out)
    }

    fn files(&self) -> &[PlainFile] {
        self.0.files()
    }

    fn read_file(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<(), String> {
        self.0.read_file(file, offset, out)
    }

    fn check_unchanged(&self) -> Result<(), String> {
        (self.1)();
        Ok(())
    }
}

#[test]
fn refs_change_while_a_commit_is_written() {
    let (_folder, store, own, _) = two_repositories();
    let store = Arc::new(store);
    let branching = || {
        store
            .create_branch(&repo(), &branch("dev"), own[0], 0)
            .expect("it does not wait");
        store
            .create_tag(&repo(), &branch("best"), own[1], 0)
            .expect("nor this");
    };
    let checkpoint = Meanwhile(mixed().step(2, 400), &branching);
    let made = store.commit(&request("main"), &checkpoint, &Silent);
    assert_eq!(made.expect("it is made").version.0, 2);
    // The commit's own branch goes away, or turns up.
    let deleting = || drop(store.delete_branch(&repo(), &branch("dev"), None));
    let checkpoint = Meanwhile(mixed().step(3, 400), &deleting);
    let made = store.commit(&request("dev"), &checkpoint, &Silent);
    assert!(matches!(made, Err(StoreError::NotFound { .. })), "{made:?}");
    let fresh = CommitRequest {
        repo: RepoName::new("acme/fresh").expect("valid"),
        ..request("main")
    };
    let racing = || {
        // Whoever commits waits; a version that comes otherwise does not.
        let first = fresh.clone();
        let at = store.branch(&repo(), &branch("main")).expect("there");
        let record = deltaic_format::object::RefRecord {
            repo: first.repo,
            ..at
        };
        let mut batch = crate::database::Batch::default();
        crate::refs::put_ref(&mut batch, &record);
        store.change_refs().publish(batch).expect("written");
    };
    let checkpoint = Meanwhile(mixed().step(4, 400), &racing);
    let made = store.commit(&fresh, &checkpoint, &Silent);
    assert!(matches!(made, Err(StoreError::Conflict { .. })), "{made:?}");
    ok(&store);
}
