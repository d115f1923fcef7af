//! Two versions as another store made them, what an honest sender sends of them, and a store that they are sent to.

use super::super::{MemoryCheckpoint, branch, check_content, mixed, next, repo, request};
use crate::{Checkpoint, PlainFile, Store, StoreError, Upload};
use deltaic_format::answers::CommitOutcome;
use deltaic_format::base::encode_base;
use deltaic_format::fetch::{Delivery, Span};
use deltaic_format::ids::FileId;
use deltaic_format::object::{CanonicalObject, Counterparts, Schema, Snapshot, TensorSpec};
use deltaic_format::patch::{Changes, PIECE_ELEMENTS, diff, piece_count};
use deltaic_format::progress::Silent;
use deltaic_format::upload::{ObjectKind, UploadId, UploadItem, UploadPosition, UploadTarget};
use deltaic_format::{Dtype, ElementClass, patch_set};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Elements of the spans in which large tensors are sent.
pub(super) const SPAN: u64 = 1 << 20;

/// A checkpoint in memory with a safetensors header of its own.
#[derive(Clone)]
pub(super) struct Model {
    pub(super) memory: MemoryCheckpoint,
    pub(super) header: Vec<u8>,
}

impl Model {
    pub(super) fn new(memory: MemoryCheckpoint) -> Self {
        let mut header = String::from("{");
        let mut begin = 0;
        for spec in memory.schema.tensors() {
            let end = begin + spec.byte_len();
            let TensorSpec {
                name, dtype, shape, ..
            } = spec;
            let comma = if header.len() > 1 { "," } else { "" };
            write!(
                header,
                r#"{comma}"{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
            )
            .unwrap();
            begin = end;
        }
        header.push('}');
        Self {
            memory,
            header: header.into_bytes(),
        }
    }

    pub(super) fn step(&self, seed: u64) -> Self {
        let mut model = self.clone();
        model.memory = model.memory.step(seed, 997);
        // Equal tensors stay so, and one does not change.
        let (from, tied) = (model.range(1), model.range(6));
        model.memory.data.copy_within(from, tied.start);
        let same = self.range(2);
        model.memory.data[same.clone()].copy_from_slice(&self.memory.data[same]);
        model
    }

    pub(super) fn range(&self, tensor: usize) -> std::ops::Range<usize> {
        let specs = &self.memory.schema.files[0].tensors;
        let start: u64 = specs[..tensor].iter().map(TensorSpec::byte_len).sum();
        start as usize..(start + specs[tensor].byte_len()) as usize
    }

    pub(super) fn file(&self, id: FileId) -> &[u8] {
        let files = self.memory.files.iter().map(|(_, content)| content);
        std::iter::once(&self.header)
            .chain(files)
            .find(|content| FileId::of(content) == id)
            .expect("a file of this checkpoint")
    }
}

impl Checkpoint for Model {
    fn schema(&self) -> &Schema {
        &self.memory.schema
    }

    fn header(&self, _file: usize) -> &[u8] {
        &self.header
    }

    fn read_data(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<(), String> {
        self.memory.read_data(file, offset, out)
    }

    fn files(&self) -> &[PlainFile] {
        self.memory.files()
    }

    fn read_file(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<(), String> {
        self.memory.read_file(file, offset, out)
    }

    fn check_unchanged(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Two versions as another store made them, and one store that they are uploaded to.
pub(super) struct Scene {
    pub(super) folder: tempfile::TempDir,
    pub(super) models: Vec<Model>,
    pub(super) versions: Vec<Snapshot>,
    pub(super) outcomes: Vec<CommitOutcome>,
}

impl Scene {
    pub(super) fn new(models: Vec<Model>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (source, _) = Store::init(&folder.path().join("source")).unwrap();
        let commit = |model: &Model| source.commit(&request("main"), model, &Silent).unwrap();
        let outcomes: Vec<_> = models.iter().map(commit).collect();
        let versions = outcomes
            .iter()
            .map(|made| source.snapshot(made.id).unwrap());
        Self {
            versions: versions.collect(),
            folder,
            models,
            outcomes,
        }
    }

    /// A first version and one step from it.
    pub(super) fn steps() -> Self {
        let first = Model::new(mixed().with_file("big.bin", random(2_500_000)));
        let mut second = first.step(7);
        second.memory = second.memory.with_file("notes.txt", b"second".to_vec());
        Self::new(vec![first, second])
    }

    /// The same, small.
    pub(super) fn small() -> Self {
        let first = Model::new(small());
        let mut second = first.clone();
        second.memory = second.memory.step(3, 50);
        Self::new(vec![first, second])
    }

    pub(super) fn root(&self) -> PathBuf {
        self.folder.path().join("target")
    }

    pub(super) fn store(&self) -> Store {
        Store::init(&self.root()).unwrap().0
    }

    pub(super) fn target(&self, version: usize) -> UploadTarget {
        let snapshot = &self.versions[version];
        UploadTarget {
            repo: repo(),
            branch: branch("main"),
            id: UploadId(snapshot.id.0),
            parent: snapshot.commit.parents.first().copied(),
            commit: Some(snapshot.id),
        }
    }

    pub(super) fn items(&self, version: usize) -> Vec<UploadItem> {
        let parent = version.checked_sub(1);
        let parent = parent.map(|parent| (&self.versions[parent], &self.models[parent]));
        let mut items = objects(&self.versions[version]);
        items.extend(files(
            parent.map(|p| p.0),
            &self.versions[version],
            &self.models[version],
        ));
        items.extend(deliveries(
            parent,
            &self.versions[version],
            &self.models[version],
        ));
        items
    }

    pub(super) fn upload(
        &self,
        store: &Store,
        version: usize,
    ) -> Result<CommitOutcome, StoreError> {
        upload(store, &self.target(version), &self.items(version))
    }
}

pub(super) fn small() -> MemoryCheckpoint {
    MemoryCheckpoint::new(&[
        ("a", Dtype::BF16, vec![30, 50]),
        ("b", Dtype::BF16, vec![700]),
        ("c", Dtype::F32, vec![9]),
    ])
}

pub(super) fn random(len: usize) -> Vec<u8> {
    let mut state = 99;
    (0..len).map(|_| next(&mut state) as u8).collect()
}

pub(super) fn objects(version: &Snapshot) -> Vec<UploadItem> {
    let objects = [
        (ObjectKind::Tree, version.tree.to_bytes()),
        (ObjectKind::Commit, version.commit.to_bytes()),
        (ObjectKind::Schema, version.schema.to_bytes()),
    ];
    let cut = |(kind, bytes): (ObjectKind, Vec<u8>)| {
        let part = |part: &[u8]| UploadItem::Object {
            kind,
            bytes: UploadPosition::copy_from_slice(part),
        };
        bytes.chunks(150).map(part).collect::<Vec<_>>()
    };
    objects.into_iter().flat_map(cut).collect()
}

pub(super) fn files(
    parent: Option<&Snapshot>,
    version: &Snapshot,
    model: &Model,
) -> Vec<UploadItem> {
    let ids = |version: &Snapshot| -> Vec<FileId> {
        let headers = version.tree.weight_files.iter().map(|f| f.header);
        headers
            .chain(version.files().iter().map(|f| f.id))
            .collect()
    };
    let held = parent.map(ids).unwrap_or_default();
    let mut items = Vec::new();
    for file in ids(version).into_iter().filter(|id| !held.contains(id)) {
        for (number, part) in model.file(file).chunks(300_000).enumerate() {
            items.push(UploadItem::File {
                file,
                offset: 300_000 * number as u64,
                bytes: UploadPosition::copy_from_slice(part),
            });
        }
    }
    items
}

pub(super) fn patches(class: ElementClass, members: &[(Span, Changes)]) -> UploadItem {
    let encoded: Vec<_> = members
        .iter()
        .map(|(s, c)| (s.elements as u32, c))
        .collect();
    UploadItem::Delivery(Delivery::Patches {
        members: members.iter().map(|m| m.0).collect(),
        bytes: patch_set::encode(class, &encoded).unwrap().bytes.into(),
    })
}

pub(super) fn content(span: Span, class: ElementClass, content: &[u8]) -> UploadItem {
    UploadItem::Delivery(Delivery::Content {
        span,
        bytes: encode_base(class, content).into(),
    })
}

/// The spans of a tensor, and where each is in bytes.
pub(super) fn spans(tensor: usize, spec: &TensorSpec) -> Vec<(Span, std::ops::Range<usize>)> {
    let mut spans = Vec::new();
    let width = spec.class.width() as u64;
    for piece in 0..piece_count(spec.elements()) {
        let end = ((piece + 1) * PIECE_ELEMENTS).min(spec.elements());
        let mut first = piece * PIECE_ELEMENTS;
        while first < end {
            let elements = SPAN.min(end - first);
            let span = Span {
                tensor,
                first,
                elements,
            };
            let bytes = first * width..(first + elements) * width;
            spans.push((span, bytes.start as usize..bytes.end as usize));
            first += elements;
        }
    }
    spans
}

/// Small tensors of a class share a set, large ones go span by span; equal ones are sent once.
pub(super) fn deliveries(
    parent: Option<(&Snapshot, &Model)>,
    version: &Snapshot,
    model: &Model,
) -> Vec<UploadItem> {
    let held = parent.map(|(parent, _)| Counterparts::new(parent, &version.schema));
    let mut items = Vec::new();
    let mut sets: Vec<(ElementClass, Vec<(Span, Changes)>)> = Vec::new();
    let mut sent = HashSet::new();
    for view in version.tensors() {
        let class = view.spec.class;
        let new = &model.memory.data[model.range(view.index)];
        let old = held
            .as_ref()
            .and_then(|held| held.patchable(view.path, view.spec));
        if old.is_some_and(|old| old.entry.id == view.entry.id)
            || !sent.insert((class, view.entry.id))
        {
            continue;
        }
        let spans = spans(view.index, view.spec);
        let Some((old, (_, before))) = old.zip(parent) else {
            items.extend(
                spans
                    .into_iter()
                    .map(|(span, bytes)| content(span, class, &new[bytes])),
            );
            continue;
        };
        let old = &before.memory.data[before.range(old.index)];
        let changes =
            |bytes: std::ops::Range<usize>| diff(class, &old[bytes.clone()], &new[bytes]).unwrap();
        if let [(span, bytes)] = &spans[..] {
            let member = (*span, changes(bytes.clone()));
            match sets.iter_mut().find(|set| set.0 == class) {
                Some((_, members)) => members.push(member),
                None => sets.push((class, vec![member])),
            }
            continue;
        }
        for (span, bytes) in spans {
            let changes = changes(bytes);
            if !changes.is_empty() {
                items.push(patches(class, &[(span, changes)]));
            }
        }
    }
    items.extend(sets.iter().map(|(class, members)| patches(*class, members)));
    items
}

pub(super) fn position(number: u64) -> UploadPosition {
    UploadPosition::copy_from_slice(&number.to_le_bytes())
}

pub(super) fn append(upload: &mut Upload, items: &[UploadItem]) {
    let at = upload.items();
    for (number, item) in items.iter().enumerate().skip(at as usize) {
        upload
            .append(position(number as u64 + 1), item.clone())
            .unwrap();
    }
}

pub(super) fn upload(
    store: &Store,
    target: &UploadTarget,
    items: &[UploadItem],
) -> Result<CommitOutcome, StoreError> {
    let mut upload = store.open_upload(target)?;
    append(&mut upload, items);
    store.finish_upload(upload, &Silent)
}

pub(super) fn check(store: &Store, scene: &Scene, version: usize) {
    let made = store.snapshot(scene.versions[version].id).unwrap();
    assert_eq!(made.tree, scene.versions[version].tree);
    assert_eq!(made.commit, scene.versions[version].commit);
    check_content(store, made.id, &scene.models[version].memory);
    for file in made.files() {
        let mut content = Vec::new();
        store
            .file::<StoreError>(file.id, &mut |part| {
                content.extend_from_slice(part);
                Ok(())
            })
            .unwrap();
        assert_eq!(content, scene.models[version].file(file.id));
    }
}

pub(super) fn alike(a: &CommitOutcome, b: &CommitOutcome) {
    let key = |o: &CommitOutcome| {
        (
            o.id,
            o.version,
            o.elements,
            o.changed,
            o.full_bytes,
            o.patch_bytes,
        )
    };
    assert_eq!(key(a), key(b));
}

pub(super) fn spools(store: &Store) -> usize {
    std::fs::read_dir(store.root().join("uploads"))
        .unwrap()
        .count()
}

impl Model {
    pub(super) fn step_all(&self) -> Self {
        let mut model = self.clone();
        model.memory = model.memory.step(1234, 40);
        model
    }
}
