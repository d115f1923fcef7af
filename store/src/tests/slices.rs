//! Slices: answers in the slice's own coordinates.

use super::fetch::{Held, all_chunks, check_resumes};
use super::*;
use deltaic_format::fetch::{FetchRequest, wishes_between};
use deltaic_format::slice::Slice;
use std::ops::Range;

const ROWS: usize = 0;
const COLUMNS: usize = 1;
const BLOCK: usize = 2;
const SMALL: usize = 3;

/// The shape of each tensor, as three axes, and the slice that is wanted of it.
type Sliced = ([u64; 3], [Range<u64>; 3]);

fn wanted() -> BTreeMap<usize, Sliced> {
    BTreeMap::from([
        (ROWS, ([1, 6000, 1031], [0..1, 1001..5800, 0..1031])),
        (COLUMNS, ([1, 9000, 1031], [0..1, 0..9000, 333..903])),
        (BLOCK, ([6, 1100, 1031], [1..6, 7..1050, 3..1000])),
        (SMALL, ([4, 10, 30], [3..4, 2..9, 7..8])),
    ])
}

fn checkpoint() -> MemoryCheckpoint {
    MemoryCheckpoint::new(&[
        ("rows", Dtype::BF16, vec![1, 6000, 1031]),
        ("columns", Dtype::F8E4M3, vec![1, 9000, 1031]),
        ("block", Dtype::F8E4M3, vec![6, 1100, 1031]),
        ("small", Dtype::F32, vec![4, 10, 30]),
        ("whole", Dtype::F32, vec![1000]),
    ])
}

/// The slices of `version` as someone holds them, by three plain loops.
fn slices(version: &MemoryCheckpoint) -> Held {
    let mut contents = BTreeMap::new();
    for (index, spec) in version.schema.files[0].tensors.iter().enumerate() {
        let whole = version.tensor(index);
        let content = match wanted().get(&index) {
            None => whole.to_vec(),
            Some(([_, rows, columns], [planes, in_rows, in_columns])) => {
                let width = spec.class.width();
                let mut content = Vec::new();
                for plane in planes.clone() {
                    for row in in_rows.clone() {
                        for column in in_columns.clone() {
                            let at = ((plane * rows + row) * columns + column) as usize * width;
                            content.extend_from_slice(&whole[at..at + width]);
                        }
                    }
                }
                content
            }
        };
        contents.insert(index, (spec.clone(), content));
    }
    Held::new(contents)
}

fn check_slices(versions: &[MemoryCheckpoint]) {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let snapshots: Vec<Snapshot> = (versions.iter())
        .map(|v| store.snapshot(commit(&store, v).id).expect("there"))
        .collect();
    let last = versions.len() - 1;
    let mut patch_bytes = Vec::new();
    for (from, to) in [(Some(0), last), (Some(last), 0), (None, last), (None, 0)] {
        let held = from.map(|from: usize| &snapshots[from]);
        let wishes = wishes_between(held, &snapshots[to]);
        let mut request = FetchRequest::new(repo(), &snapshots[to], held, &wishes);
        for (index, (_, ranges)) in wanted() {
            let slice = Slice::new(ranges.to_vec()).expect("a slice");
            request.slices.insert(index, slice);
        }
        let fetch = store.open_fetch(&request).expect("it fits");
        let chunks = all_chunks(&store, &fetch);
        let mut has = slices(&versions[from.unwrap_or(0)]);
        let received = has.take(&chunks);
        has.check(&slices(&versions[to]));
        if from != Some(last) {
            check_resumes(&store, &request, &chunks);
        }
        let exact = store.plan_exactly(&fetch, &Silent).expect("plan");
        let plan = store.plan(&fetch).expect("plan");
        let kinds = (plan.unchanged, plan.patched, plan.whole);
        match from {
            Some(_) => {
                assert_eq!(kinds, (0, 5, 0));
                assert_eq!(exact.bytes, received);
                patch_bytes.push(received);
            }
            None => assert_eq!(kinds, (0, 0, 5)),
        }
        assert!(
            received <= plan.bytes + plan.bytes / 20 + 300,
            "{received} {plan:?}"
        );
    }
    // Of all that was patched, the slices have their share.
    let all = FetchRequest::all(repo(), &snapshots[last], Some(&snapshots[0]));
    let all = store.open_fetch(&all).expect("it fits");
    let all = store.plan_exactly(&all, &Silent).expect("plan").bytes as f64;
    let elements = |sizes: &dyn Fn(&Sliced) -> u64| -> f64 {
        let sliced = wanted();
        let widths = [(ROWS, 2), (COLUMNS, 1), (BLOCK, 1), (SMALL, 4)];
        widths
            .map(|(index, width)| sizes(&sliced[&index]) * width)
            .iter()
            .sum::<u64>() as f64
    };
    let share = elements(&|(_, ranges)| ranges.iter().map(|r| r.end - r.start).product())
        / elements(&|(shape, _)| shape.iter().product());
    for bytes in patch_bytes {
        let part = bytes as f64 / all;
        assert!(
            part <= 1.1 * share,
            "{part} of the bytes for {share} of the elements"
        );
    }
}

#[test]
fn slices_are_patched_and_sent_whole_in_their_own_coordinates() {
    let first = checkpoint();
    let second = first.clone().step(3, 700);
    let third = second.clone().step(4, 500);
    check_slices(&[first, second, third]);
}

#[test]
fn dense_changes_of_slices_are_cut_in_spans() {
    let first = checkpoint();
    let second = first.clone().step(8, 3);
    check_slices(&[first, second]);
}

#[test]
fn a_slice_that_has_no_changes_is_answered_all_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let old = MemoryCheckpoint::new(&[("w", Dtype::BF16, vec![400, 300])]);
    let mut new = old.clone();
    new.data[0] ^= 1;
    let [from, to] = [&old, &new].map(|v| store.snapshot(commit(&store, v).id).expect("there"));
    let mut request = FetchRequest::all(repo(), &to, Some(&from));
    let slice = Slice::of_axis(&[400, 300], 0, 200..400).expect("a slice");
    request.slices.insert(0, slice);
    let fetch = store.open_fetch(&request).expect("it fits");
    let chunks = all_chunks(&store, &fetch);
    assert_eq!(chunks.len(), 1);
    let content = old.tensor(0)[200 * 300 * 2..].to_vec();
    let spec = old.schema.files[0].tensors[0].clone();
    let mut held = Held::new(BTreeMap::from([(0, (spec, content.clone()))]));
    held.take(&chunks);
    assert!(held.contents[&0].1 == content);
    request.slices.clear();
    let wide = Slice::of_axis(&[400, 300], 0, 200..401).expect("a slice");
    request.slices.insert(0, wide);
    let refused = store.open_fetch(&request);
    assert!(matches!(refused, Err(StoreError::Invalid { .. })));
}
