//! A history in memory that answers as a server would, honestly or not.

use super::Files;
use crate::error::{ClientError, Result};
use crate::source::{Ask, Source};
use deltaic_format::Moments;
use deltaic_format::base::encode_base;
use deltaic_format::fetch::{Delivery, FetchPlan, Span, TensorWish};
use deltaic_format::ids::{CommitId, FileId, TensorId};
use deltaic_format::name::TreePath;
use deltaic_format::object::{
    CanonicalObject, Commit, FileEntry, FileMode, Schema, Snapshot, TensorEntry, Tree,
    WeightFileEntry, WeightFileSpec,
};
use deltaic_format::patch::{Changes, PIECE_ELEMENTS, Patch, compose, diff};
use deltaic_format::patch_set::encode;
use deltaic_format::safetensors::parse_header;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

/// A tensor to be put into a file: name, dtype, shape, content.
#[derive(Clone)]
pub(super) struct TestTensor {
    pub name: &'static str,
    pub dtype: &'static str,
    pub shape: Vec<u64>,
    pub content: Vec<u8>,
}

/// A weight file: path, what its header says besides the tensors, tensors.
#[derive(Clone)]
pub(super) struct TestFile {
    pub path: &'static str,
    pub metadata: &'static str,
    pub tensors: Vec<TestTensor>,
}

/// What a version is made of.
#[derive(Clone)]
pub(super) struct TestTree {
    pub weights: Vec<TestFile>,
    pub files: Vec<(&'static str, FileMode, Vec<u8>)>,
}

/// A version with the bytes of its files.
pub(super) struct Version {
    pub snapshot: Snapshot,
    pub files: Files,
    contents: Vec<Vec<u8>>,
}

/// How a source answers.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Answer {
    Patches,
    Contents,
}

/// Changes an honest delivery: the members, and the bytes.
pub(super) type Tamper = Box<dyn Fn(&mut Vec<Span>, &mut Vec<u8>) + Send>;

/// Versions, each the child of the one before.
pub(super) struct History {
    pub versions: Vec<Version>,
    tensors: HashMap<TensorId, Vec<u8>>,
    blobs: HashMap<FileId, Vec<u8>>,
    pub answer: Cell<Answer>,
    pub tamper: RefCell<Option<Tamper>>,
    /// Wishes of the last fetch.
    pub wishes: RefCell<Vec<TensorWish>>,
    /// Files that were asked for.
    pub asked: Cell<usize>,
    /// Called before each delivery.
    pub before: RefCell<Option<Box<dyn Fn() + Send>>>,
    /// Elements of the spans that are sent.
    pub span: Cell<u64>,
    /// Whether patches go over a detour, so that composing is part of every test.
    pub detour: Cell<bool>,
}

/// Bytes that look random, the same ones for the same seed.
pub(super) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

pub(super) fn tensor(
    name: &'static str,
    dtype: &'static str,
    shape: &[u64],
    content: Vec<u8>,
) -> TestTensor {
    TestTensor {
        name,
        dtype,
        shape: shape.to_vec(),
        content,
    }
}

/// Change every `step`th byte.
pub(super) fn nudge(content: &mut [u8], step: usize) {
    for byte in content.iter_mut().step_by(step) {
        *byte = byte.wrapping_add(1);
    }
}

impl TestFile {
    fn header(&self) -> Vec<u8> {
        let mut offset = 0;
        let mut entries = vec![format!(r#""__metadata__":{{"note":"{}"}}"#, self.metadata)];
        for t in &self.tensors {
            let end = offset + t.content.len();
            entries.push(format!(
                r#""{}":{{"dtype":"{}","shape":{:?},"data_offsets":[{offset},{end}]}}"#,
                t.name, t.dtype, t.shape
            ));
            offset = end;
        }
        format!("{{{}}}", entries.join(",")).into_bytes()
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let header = self.header();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        self.tensors.iter().for_each(|t| bytes.extend(&t.content));
        bytes
    }
}

impl TestTree {
    /// The tensor of this name, in whatever file.
    pub(super) fn content(&mut self, name: &str) -> &mut Vec<u8> {
        let mut all = self.weights.iter_mut().flat_map(|file| &mut file.tensors);
        &mut all.find(|t| t.name == name).unwrap().content
    }
}

impl Version {
    fn new(tree: &TestTree, parent: Option<&Self>) -> Self {
        let mut schema = Schema::default();
        let (mut weight_files, mut tensors, mut contents) = (vec![], vec![], vec![]);
        let mut files = Files::new();
        for file in &tree.weights {
            let (header, data_len) = (file.header(), file.tensors.iter().map(|t| t.content.len()));
            let layout = parse_header(&header, data_len.sum::<usize>() as u64).unwrap();
            weight_files.push(WeightFileEntry {
                header: FileId::of(&header),
                header_len: header.len() as u64,
            });
            let path = TreePath::new(file.path).unwrap();
            for spec in &layout.tensors {
                let found = file.tensors.iter().find(|t| t.name == spec.name);
                let content = found.unwrap().content.clone();
                let patch = parent
                    .and_then(|p| p.content(file.path, &spec.name))
                    .filter(|old| old.len() == content.len() && **old != content)
                    .map(|old| Patch::diff(spec.class, old, &content).unwrap().id());
                tensors.push(TensorEntry {
                    id: TensorId::of(&content),
                    moments: Moments::of(spec.class, 0, &content),
                    patch,
                });
                contents.push(content);
            }
            schema.files.push(WeightFileSpec {
                path,
                tensors: layout.tensors,
            });
            files.insert(file.path.to_owned(), (file.bytes(), FileMode::Plain));
        }
        let mut plain = Vec::new();
        for (path, mode, bytes) in &tree.files {
            plain.push(FileEntry {
                path: TreePath::new(*path).unwrap(),
                mode: *mode,
                size: bytes.len() as u64,
                id: FileId::of(bytes),
            });
            files.insert((*path).to_owned(), (bytes.clone(), *mode));
        }
        plain.sort_by(|a, b| a.path.cmp(&b.path));
        let tree = Tree {
            schema: schema.id(),
            weight_files,
            tensors,
            files: plain,
        };
        let commit = Commit {
            tree: tree.id(),
            parents: parent.iter().map(|p| p.snapshot.id).collect(),
            version: parent.map_or(deltaic_format::Version(0), |p| {
                p.snapshot.commit.version.next()
            }),
            time_ms: 0,
            message: String::new(),
            meta: Default::default(),
        };
        Self {
            snapshot: Snapshot::new(commit.id(), commit, tree, Arc::new(schema)).unwrap(),
            files,
            contents,
        }
    }

    fn content(&self, path: &str, name: &str) -> Option<&Vec<u8>> {
        let by_name = self.snapshot.tensors_by_name();
        by_name.get(&(path, name)).map(|v| &self.contents[v.index])
    }
}

impl History {
    pub(super) fn new(trees: &[TestTree]) -> Self {
        let mut versions: Vec<Version> = Vec::new();
        for tree in trees {
            versions.push(Version::new(tree, versions.last()));
        }
        let (mut tensors, mut blobs) = (HashMap::new(), HashMap::new());
        for (version, tree) in versions.iter().zip(trees) {
            for content in &version.contents {
                tensors.insert(TensorId::of(content), content.clone());
            }
            for header in tree.weights.iter().map(TestFile::header) {
                blobs.insert(FileId::of(&header), header);
            }
            for (_, _, bytes) in &tree.files {
                blobs.insert(FileId::of(bytes), bytes.clone());
            }
        }
        Self {
            versions,
            tensors,
            blobs,
            answer: Cell::new(Answer::Patches),
            tamper: RefCell::new(None),
            wishes: RefCell::default(),
            asked: Cell::new(0),
            before: RefCell::new(None),
            span: Cell::new(PIECE_ELEMENTS),
            detour: Cell::new(true),
        }
    }

    /// The history that most tests use: changes in place, other headers, files that come and go, another layout.
    pub(super) fn example() -> Self {
        Self::new(&example_trees(70_000))
    }

    /// The patch of one span.
    fn span_patch(
        &self,
        wish: TensorWish,
        class: deltaic_format::ElementClass,
        old: &[u8],
        new: &[u8],
    ) -> Changes {
        let direct = diff(class, old, new).unwrap();
        if !self.detour.get() {
            return direct;
        }
        let detour = noise(wish.tensor as u64, old.len());
        let legs = [
            diff(class, old, &detour).unwrap(),
            diff(class, &detour, new).unwrap(),
        ];
        compose(class, &[&legs[0], &legs[1]]).unwrap()
    }

    fn send(
        &self,
        mut members: Vec<Span>,
        mut bytes: Vec<u8>,
        patches: bool,
        receive: &mut dyn FnMut(Delivery) -> Result<()>,
    ) -> Result<()> {
        if let Some(before) = &*self.before.borrow() {
            before();
        }
        if let Some(tamper) = &*self.tamper.borrow() {
            tamper(&mut members, &mut bytes);
        }
        let bytes = bytes.into();
        receive(match patches {
            true => Delivery::Patches {
                members: members.into(),
                bytes,
            },
            false => Delivery::Content {
                span: members[0],
                bytes,
            },
        })
    }
}

impl Source for History {
    fn plan(&self, _ask: &Ask<'_>) -> Result<FetchPlan> {
        Ok(FetchPlan::default())
    }

    fn fetch(&self, ask: &Ask<'_>, receive: &mut dyn FnMut(Delivery) -> Result<()>) -> Result<()> {
        *self.wishes.borrow_mut() = ask.wishes.to_vec();
        let views = ask.want.tensors();
        let mut sets: HashMap<_, Vec<(Span, Changes)>> = HashMap::new();
        for wish in ask.wishes {
            let view = &views[wish.tensor];
            let class = view.spec.class;
            let new = &self.tensors[&view.entry.id];
            let old = wish.have.map(|id| &self.tensors[&id]);
            let old = old.filter(|_| self.answer.get() == Answer::Patches);
            let span_bytes = self.span.get() as usize * class.width();
            for (number, part) in new.chunks(span_bytes).enumerate() {
                let span = Span {
                    tensor: wish.tensor,
                    first: number as u64 * self.span.get(),
                    elements: (part.len() / class.width()) as u64,
                };
                let Some(old) = old else {
                    self.send(vec![span], encode_base(class, part), false, receive)?;
                    continue;
                };
                let begin = number * span_bytes;
                let old = &old[begin..begin + part.len()];
                let changes = self.span_patch(*wish, class, old, part);
                if !changes.is_empty() {
                    sets.entry(class).or_default().push((span, changes));
                }
            }
        }
        for (class, set) in sets {
            let members: Vec<_> = (set.iter())
                .map(|(span, changes)| (span.elements as u32, changes))
                .collect();
            let bytes = encode(class, &members).unwrap().bytes;
            let spans = set.iter().map(|(span, _)| *span).collect();
            self.send(spans, bytes, true, receive)?;
        }
        Ok(())
    }

    fn file(
        &self,
        _version: CommitId,
        id: FileId,
        _size: u64,
        receive: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.asked.set(self.asked.get() + 1);
        let Some(bytes) = self.blobs.get(&id) else {
            return Err(ClientError::Source("no such file".into()));
        };
        bytes.chunks(11).try_for_each(receive)
    }

    fn snapshot(&self, id: CommitId) -> Result<Snapshot> {
        let found = self.versions.iter().find(|v| v.snapshot.id == id);
        let found = found.ok_or_else(|| ClientError::Source("no such version".into()))?;
        Ok(found.snapshot.clone())
    }
}

/// Five versions; the largest tensor has `big` elements.
pub(super) fn example_trees(big: u64) -> Vec<TestTree> {
    let first = TestFile {
        path: "model-1.safetensors",
        metadata: "made by a test",
        tensors: vec![
            tensor("empty", "F32", &[0, 5], vec![]),
            tensor("scalar", "F32", &[], noise(1, 4)),
            tensor("big", "F8_E4M3", &[big], noise(2, big as usize)),
            tensor("attn.weight", "BF16", &[30, 100], noise(3, 6000)),
            tensor("attn.bias", "BF16", &[7], noise(4, 14)),
        ],
    };
    let second = TestFile {
        path: "sub/model-2.safetensors",
        metadata: "",
        tensors: vec![
            tensor("steps", "I64", &[3], noise(5, 24)),
            tensor("mlp.qweight", "I32", &[20, 20], noise(6, 1600)),
            tensor("norm", "F64", &[9], noise(7, 72)),
            tensor("frozen", "U8", &[1000], noise(8, 1000)),
        ],
    };
    let v0 = TestTree {
        weights: vec![first, second],
        files: vec![
            ("config.json", FileMode::Plain, b"{}".to_vec()),
            (
                "scripts/run.sh",
                FileMode::Executable,
                b"#!/bin/sh\n".to_vec(),
            ),
            ("empty.txt", FileMode::Plain, vec![]),
        ],
    };

    let mut v1 = v0.clone();
    nudge(v1.content("big"), 997);
    nudge(v1.content("attn.weight"), 31);
    nudge(v1.content("steps"), 8);
    nudge(v1.content("mlp.qweight"), 100);
    nudge(v1.content("scalar"), 4);

    let mut v2 = v1.clone();
    v2.weights[0].metadata = "MADE BY A TEST";
    v2.files[0].2 = b"{\"a\": 1}".to_vec();
    nudge(v2.content("norm"), 1);
    let last = v2.content("big").len() - 1;
    nudge(&mut v2.content("big")[last..], 1);

    let mut v3 = v2.clone();
    v3.weights[1].tensors.remove(0);
    v3.weights[1]
        .tensors
        .push(tensor("head", "BF16", &[500], noise(9, 1000)));
    nudge(v3.content("mlp.qweight"), 50);
    nudge(v3.content("attn.bias"), 3);
    v3.files = vec![
        ("config.json", FileMode::Executable, b"{\"a\": 1}".to_vec()),
        (
            "scripts",
            FileMode::Plain,
            b"a file where a folder was".to_vec(),
        ),
    ];

    // Back to the first weights, one tensor under another name, one file elsewhere.
    let mut v4 = v0.clone();
    v4.weights[1].path = "sub.safetensors";
    v4.weights[0].tensors[4].name = "attn.shift";
    vec![v0, v1, v2, v3, v4]
}
