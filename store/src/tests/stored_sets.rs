//! Patch sets that a fetch sends as they are stored.

use super::fetch::{Held, all_chunks, check_resumes};
use super::*;
use crate::database::Table;
use deltaic_format::fetch::{Delivery, FetchRequest, TensorWish, wishes_between};
use std::collections::HashSet;

/// Sets of several tensors, of one, of the pieces of one, and too small ones.
fn shapes() -> MemoryCheckpoint {
    MemoryCheckpoint::new(&[
        ("a", Dtype::BF16, vec![1 << 20]),
        ("b", Dtype::BF16, vec![1 << 20]),
        ("c", Dtype::U8, vec![2 * PIECE_ELEMENTS + 77]),
        ("d", Dtype::BF16, vec![900]),
        ("e", Dtype::F32, vec![500]),
    ])
}

struct Scene {
    _folder: tempfile::TempDir,
    store: Store,
    versions: Vec<MemoryCheckpoint>,
    snapshots: Vec<Snapshot>,
}

fn scene() -> Scene {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let first = shapes();
    let second = first.clone().step(3, 100);
    let versions = vec![first, second.clone(), second.step(4, 100)];
    let snapshots = (versions.iter())
        .map(|v| store.snapshot(commit(&store, v).id).expect("there"))
        .collect();
    Scene {
        _folder: folder,
        store,
        versions,
        snapshots,
    }
}

/// All sets of a store.
fn sets(store: &Store) -> HashSet<Vec<u8>> {
    let rows = store.database().scan(Table::PatchSets, &[]);
    rows.map(|row| row.expect("it reads").1.to_vec()).collect()
}

impl Scene {
    /// Answer a request; how many of its chunks, and of those that are not, are stored sets.
    fn answer(&self, request: &FetchRequest, from: usize, to: usize) -> (usize, usize) {
        let fetch = self.store.open_fetch(request).expect("it fits");
        let chunks = all_chunks(&self.store, &fetch);
        check_resumes(&self.store, request, &chunks);
        let mut held = Held::tensors(&self.versions[from]);
        held.take(&chunks);
        let mut wanted = Held::tensors(&self.versions[to]);
        let asked: HashSet<usize> = (request.wishes.iter())
            .flat_map(|run| run.tensors.clone())
            .collect();
        held.contents.retain(|tensor, _| asked.contains(tensor));
        wanted.contents.retain(|tensor, _| asked.contains(tensor));
        held.check(&wanted);
        let sets = sets(&self.store);
        let is_stored = |delivery: &Delivery| sets.contains(&delivery.bytes()[..]);
        let stored = chunks.iter().filter(|c| is_stored(&c.delivery)).count();
        (stored, chunks.len() - stored)
    }

    fn all(&self, from: usize, to: usize) -> (usize, usize) {
        let held = Some(&self.snapshots[from]);
        let request = FetchRequest::all(repo(), &self.snapshots[to], held);
        self.answer(&request, from, to)
    }

    /// The same of some tensors only.
    fn some(&self, from: usize, to: usize, wanted: impl Fn(usize) -> bool) -> (usize, usize) {
        let held = Some(&self.snapshots[from]);
        let mut wishes: Vec<TensorWish> = wishes_between(held, &self.snapshots[to]);
        wishes.retain(|wish| wanted(wish.tensor));
        let request = FetchRequest::new(repo(), &self.snapshots[to], held, &wishes);
        self.answer(&request, from, to)
    }
}

#[test]
fn a_step_is_sent_as_it_was_stored() {
    let scene = scene();
    // Of bf16 the one set of three tensors; of bytes the sets of two pieces, the third being short; and the F32 set, which is
    // short as well but happens to be made anew as it was.
    let (stored, made) = scene.all(0, 1);
    assert!(stored >= 3, "{stored} {made}");
    assert_eq!(stored + made, 5);
}

#[test]
fn whatever_else_is_asked_for_is_put_together() {
    let scene = scene();
    for (from, to) in [(1, 0), (0, 2), (2, 1)] {
        let (stored, made) = scene.all(from, to);
        assert!(made >= 2 && stored <= 1, "{from} {to}: {stored} {made}");
    }
    // Some members of a set only.
    assert_eq!(scene.some(0, 1, |tensor| tensor < 2), (0, 1));
    assert_eq!(
        scene.some(0, 1, |tensor| tensor == 1 || tensor == 3),
        (0, 1)
    );
    // All of them.
    assert_eq!(
        scene.some(0, 1, |tensor| tensor != 2 && tensor != 4),
        (1, 0)
    );
}
