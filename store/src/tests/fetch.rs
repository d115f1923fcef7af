//! The chunks of an answer: from every place the same ones, and applied they give what is wanted.

use super::*;
use crate::Fetch;
use deltaic_format::base::decode_base_of;
use deltaic_format::fetch::{
    AnswerKind, Chunk, Delivery, FetchRequest, Position, SPAN_ELEMENTS, Span, TensorWish,
    wishes_between,
};
use deltaic_format::patch::apply;
use deltaic_format::patch_set::PatchSetReader;

/// Most bytes of a delivery: a span of eight-byte elements, and what frames it.
const MOST_BYTES: u64 = (2 << 20) + 4096;

/// What someone holds: tensors, or slices of them, by their place in the tree.
pub(super) struct Held {
    pub(super) contents: BTreeMap<usize, (TensorSpec, Vec<u8>)>,
    /// Per tensor of which something came: how it is answered, and the next element.
    came: BTreeMap<usize, (AnswerKind, u64)>,
}

impl Held {
    pub(super) fn new(contents: BTreeMap<usize, (TensorSpec, Vec<u8>)>) -> Self {
        Self {
            contents,
            came: BTreeMap::new(),
        }
    }

    /// All tensors of a checkpoint.
    pub(super) fn tensors(checkpoint: &MemoryCheckpoint) -> Self {
        let specs = checkpoint.schema.files[0].tensors.iter().enumerate();
        Self::new(
            specs
                .map(|(index, spec)| (index, (spec.clone(), checkpoint.tensor(index).to_vec())))
                .collect(),
        )
    }

    /// Apply an answer; gives its bytes.
    pub(super) fn take(&mut self, chunks: &[Chunk]) -> u64 {
        for chunk in chunks {
            match &chunk.delivery {
                Delivery::Patches { members, bytes } => {
                    let set = PatchSetReader::new(bytes).expect("a set");
                    let lens: Vec<u64> = set.members().map(u64::from).collect();
                    let expected: Vec<u64> = members.iter().map(|span| span.elements).collect();
                    assert_eq!(lens, expected);
                    for (span, changes) in members.iter().zip(set.all().expect("changes")) {
                        let out = self.span(span, AnswerKind::Patches);
                        apply(set.class(), out, &changes).expect("it fits");
                    }
                }
                Delivery::Content { span, bytes } => {
                    let class = self.contents[&span.tensor].0.class;
                    let out = self.span(span, AnswerKind::Content);
                    let mut content = Vec::new();
                    decode_base_of(class, span.elements, bytes, &mut content).expect("a base");
                    out.copy_from_slice(&content);
                }
            }
            assert!(
                chunk.delivery.len() <= MOST_BYTES,
                "{}",
                chunk.delivery.len()
            );
        }
        chunks.iter().map(|chunk| chunk.delivery.len()).sum()
    }

    fn span(&mut self, span: &Span, kind: AnswerKind) -> &mut [u8] {
        let (spec, content) = self.contents.get_mut(&span.tensor).expect("asked for");
        let width = spec.class.width() as u64;
        assert!(span.is_of(content.len() as u64 / width), "{span:?}");
        let came = self.came.entry(span.tensor).or_insert((kind, 0));
        assert_eq!(*came, (kind, span.first), "{span:?}");
        came.1 = span.end();
        &mut content[(span.first * width) as usize..(span.end() * width) as usize]
    }

    /// It is exactly this now, and what came of a tensor came of all of it.
    pub(super) fn check(&self, expected: &Self) {
        for (tensor, (spec, content)) in &self.contents {
            assert!(*content == expected.contents[tensor].1, "{}", spec.name);
            if let Some((_, end)) = self.came.get(tensor) {
                assert_eq!(end * spec.class.width() as u64, content.len() as u64);
            }
        }
    }

    fn kind(&self, tensor: usize) -> Option<AnswerKind> {
        self.came.get(&tensor).map(|(kind, _)| *kind)
    }
}

/// The whole answer, call after call.
pub(super) fn all_chunks(store: &Store, fetch: &Fetch) -> Vec<Chunk> {
    let mut chunks: Vec<Chunk> = Vec::new();
    loop {
        let at = chunks.last().map_or_else(Position::default, |c| c.next);
        let more = store.chunks(fetch, at).expect("chunks");
        if more.is_empty() {
            return chunks;
        }
        chunks.extend(more);
    }
}

/// From wherever the answer is cut, it goes on with the same chunks, for whoever asks.
pub(super) fn check_resumes(store: &Store, request: &FetchRequest, chunks: &[Chunk]) {
    let mut at = Position::default();
    for sent in 0..=chunks.len() {
        let fetch = store.open_fetch(request).expect("it fits");
        let more = store.chunks(&fetch, at).expect("chunks");
        assert_eq!(more.is_empty(), sent == chunks.len());
        assert!(more[..] == chunks[sent..sent + more.len()], "from {at:?}");
        if let Some(chunk) = chunks.get(sent) {
            at = chunk.next;
        }
    }
}

const SAME: usize = 2;
const DENSE: usize = 3;
const REWRITTEN: usize = 4;
const NEW: usize = 5;
const MASTERS: usize = 7;

/// Sparse and dense, of one piece and of several, of several classes.
fn shapes() -> MemoryCheckpoint {
    let piece = PIECE_ELEMENTS;
    MemoryCheckpoint::new(&[
        ("a.bf16", Dtype::BF16, vec![300, 500]),
        ("b.u8", Dtype::U8, vec![piece + 100_001]),
        ("c.same", Dtype::F32, vec![70_001]),
        ("d.dense", Dtype::U8, vec![piece + 3 * SPAN_ELEMENTS + 5]),
        ("e.rewritten", Dtype::BF16, vec![3 * SPAN_ELEMENTS + 1000]),
        ("f.new", Dtype::U8, vec![2 * SPAN_ELEMENTS - 1]),
        ("g.empty", Dtype::F16, vec![0, 7]),
        ("h.masters", Dtype::F32, vec![2 * SPAN_ELEMENTS + 17]),
        ("i.bf16", Dtype::BF16, vec![piece / 4, 5]),
        ("j.f64", Dtype::F64, vec![SPAN_ELEMENTS + 1]),
    ])
}

/// Change each tensor in its way.
fn step(mut version: MemoryCheckpoint, seed: u64) -> MemoryCheckpoint {
    let specs = version.schema.files[0].tensors.clone();
    let mut state = seed;
    let mut at = 0;
    for (tensor, spec) in specs.iter().enumerate() {
        let width = spec.class.width();
        let bytes = &mut version.data[at..at + spec.byte_len() as usize];
        at += bytes.len();
        match tensor {
            SAME => {}
            DENSE => {
                for byte in bytes {
                    *byte = byte.wrapping_add((next(&mut state) % 7) as u8);
                }
            }
            REWRITTEN => {
                for byte in bytes {
                    *byte = next(&mut state) as u8;
                }
            }
            MASTERS => {
                for word in bytes.chunks_exact_mut(4) {
                    word[0] = word[0].wrapping_add(1 + (next(&mut state) % 3) as u8);
                    word[1] ^= (next(&mut state) % 2) as u8;
                }
            }
            _ => {
                for word in bytes.chunks_exact_mut(width) {
                    if next(&mut state).is_multiple_of(400) {
                        word[0] ^= 1;
                    }
                }
            }
        }
    }
    version
}

struct Chain {
    _folder: tempfile::TempDir,
    store: Store,
    versions: Vec<MemoryCheckpoint>,
    snapshots: Vec<Snapshot>,
}

fn chain() -> Chain {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let mut versions = vec![shapes()];
    for seed in 1..3 {
        let last = versions.last().cloned().expect("there is one");
        versions.push(step(last, seed));
    }
    let snapshots = (versions.iter())
        .map(|v| store.snapshot(commit(&store, v).id).expect("there"))
        .collect();
    Chain {
        _folder: folder,
        store,
        versions,
        snapshots,
    }
}

#[test]
fn an_answer_can_be_taken_up_at_every_chunk_and_gives_what_is_wanted() {
    let Chain {
        store,
        versions,
        snapshots,
        ..
    } = &chain();
    for (from, to) in [(Some(0), 2), (Some(2), 1), (None, 1), (None, 0)] {
        let held = from.map(|from: usize| &snapshots[from]);
        let mut wishes = wishes_between(held, &snapshots[to]);
        wishes[NEW].have = None;
        let request = FetchRequest::new(repo(), &snapshots[to], held, &wishes);
        let fetch = store.open_fetch(&request).expect("it fits");
        assert_eq!(fetch.want().id, snapshots[to].id);
        let chunks = all_chunks(store, &fetch);
        let mut has = Held::tensors(&versions[from.unwrap_or(0)]);
        let received = has.take(&chunks);
        has.check(&Held::tensors(&versions[to]));
        let expected = |tensor| match (tensor, from) {
            (NEW, _) | (_, None) => Some(AnswerKind::Content),
            (REWRITTEN, _) => Some(AnswerKind::Content),
            (SAME, _) => None,
            _ => Some(AnswerKind::Patches),
        };
        for tensor in (0..10).filter(|&tensor| tensor != 6) {
            assert_eq!(has.kind(tensor), expected(tensor), "{from:?} {to} {tensor}");
        }
        check_resumes(store, &request, &chunks);

        let plan = store.plan(&fetch).expect("plan");
        let exact = store.plan_exactly(&fetch, &Silent).expect("plan");
        if from.is_some() {
            assert_eq!((plan.unchanged, plan.patched, plan.whole), (2, 6, 2));
        } else {
            assert_eq!((plan.unchanged, plan.patched, plan.whole), (0, 0, 10));
        }
        assert!(
            exact.bytes.abs_diff(received) <= received / 100,
            "{exact:?} {received}"
        );
    }
}

#[test]
fn the_tensors_come_by_class_and_place_and_chunks_are_of_a_decent_size() {
    let Chain {
        store, snapshots, ..
    } = &chain();
    let request = FetchRequest::all(repo(), &snapshots[2], Some(&snapshots[0]));
    let fetch = store.open_fetch(&request).expect("it fits");
    let chunks = all_chunks(store, &fetch);
    let mut order: Vec<usize> = (chunks.iter())
        .flat_map(|chunk| match &chunk.delivery {
            Delivery::Patches { members, .. } => members.iter().map(|m| m.tensor).collect(),
            Delivery::Content { span, .. } => vec![span.tensor],
        })
        .collect();
    order.dedup();
    let specs = &snapshots[2].schema.files[0].tensors;
    let mut expected = order.clone();
    expected.sort_by_key(|&tensor| (specs[tensor].class.number(), tensor));
    assert_eq!(order, expected);
    let bytes: u64 = chunks.iter().map(|chunk| chunk.delivery.len()).sum();
    assert!(
        chunks.len() as u64 <= bytes / (300 << 10) + 10,
        "{}",
        chunks.len()
    );
}

#[test]
fn many_small_tensors_share_few_chunks() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::init(folder.path()).expect("init");
    let names: Vec<String> = (0..6000).map(|i| format!("t{i:05}")).collect();
    let tensors: Vec<_> = (names.iter())
        .map(|name| (name.as_str(), Dtype::BF16, vec![10, 50]))
        .collect();
    let old = MemoryCheckpoint::new(&tensors);
    let new = old.clone().step(5, 200);
    let [from, to] = [&old, &new].map(|v| store.snapshot(commit(&store, v).id).expect("there"));
    let request = FetchRequest::all(repo(), &to, Some(&from));
    let fetch = store.open_fetch(&request).expect("it fits");
    let chunks = all_chunks(&store, &fetch);
    assert_eq!(chunks.len(), 2, "4096 members and the rest");
    let mut held = Held::tensors(&old);
    held.take(&chunks);
    held.check(&Held::tensors(&new));
    check_resumes(&store, &request, &chunks);
}

#[test]
fn what_the_answer_does_not_have_is_refused() {
    let Chain {
        store, snapshots, ..
    } = &chain();
    let request = FetchRequest::all(repo(), &snapshots[1], Some(&snapshots[0]));
    let fetch = store.open_fetch(&request).expect("it fits");
    let numbers: BTreeMap<usize, u64> = {
        let specs = &snapshots[1].schema.files[0].tensors;
        let mut order: Vec<usize> = (0..specs.len()).collect();
        order.sort_by_key(|&tensor| (specs[tensor].class.number(), tensor));
        order.into_iter().zip(0..).collect()
    };
    let place = |tensor: usize, element: u64, kind: Option<AnswerKind>| Position {
        wish: numbers[&tensor],
        element,
        kind,
    };
    let patches = Some(AnswerKind::Patches);
    let end = Position {
        wish: 10,
        ..Position::default()
    };
    for at in [
        Position { wish: 11, ..end },
        Position {
            wish: u64::MAX,
            ..end
        },
        Position {
            element: SPAN_ELEMENTS,
            kind: patches,
            ..end
        },
        place(DENSE, 0, patches),
        place(DENSE, SPAN_ELEMENTS, None),
        place(DENSE, SPAN_ELEMENTS + 1, patches),
        place(DENSE, 2 * PIECE_ELEMENTS, patches),
        place(SAME, SPAN_ELEMENTS, patches),
    ] {
        let found = store.chunks(&fetch, at);
        assert!(matches!(found, Err(StoreError::Invalid { .. })), "{at:?}");
    }
    assert_eq!(store.chunks(&fetch, end).expect("the end"), []);
    let same = FetchRequest::all(repo(), &snapshots[1], Some(&snapshots[1]));
    let same = store.open_fetch(&same).expect("it fits");
    let nothing = store.chunks(&same, Position::default());
    assert_eq!(nothing.expect("nothing"), []);
    // Whatever the plan says, what was begun goes on.
    for kind in [AnswerKind::Patches, AnswerKind::Content] {
        let at = place(DENSE, SPAN_ELEMENTS, Some(kind));
        let chunks = store.chunks(&fetch, at).expect("it goes on");
        let is_patch = matches!(chunks[0].delivery, Delivery::Patches { .. });
        assert_eq!(is_patch, kind == AnswerKind::Patches);
    }
    let unknown = CommitId([7; 32]);
    for request in [
        FetchRequest {
            want: unknown,
            ..request.clone()
        },
        FetchRequest {
            held: Some(unknown),
            ..request.clone()
        },
    ] {
        match store.open_fetch(&request) {
            Err(StoreError::NotFound {
                kind: "commit",
                name,
            }) => assert_eq!(name, unknown.to_string()),
            other => panic!("{other:?}"),
        }
    }
    let mut outside = request.clone();
    outside.wishes[0].tensors.end = 99;
    let found = store.open_fetch(&outside);
    assert!(matches!(found, Err(StoreError::Invalid { .. })));
    // Content that the store never had: patches cannot go on from it.
    let wish = TensorWish {
        tensor: DENSE,
        have: Some(TensorId([9; 32])),
    };
    let foreign = FetchRequest::new(repo(), &snapshots[1], None, &[wish]);
    let fetch = store.open_fetch(&foreign).expect("it fits");
    let at = Position {
        wish: 0,
        element: SPAN_ELEMENTS,
        kind: patches,
    };
    let found = store.chunks(&fetch, at);
    assert!(
        matches!(found, Err(StoreError::Invalid { .. })),
        "{found:?}"
    );
    let whole = store.chunks(&fetch, Position::default()).expect("whole");
    assert!(matches!(whole[0].delivery, Delivery::Content { .. }));
}
