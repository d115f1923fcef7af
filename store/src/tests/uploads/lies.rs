//! Senders that lie.

use super::super::{MemoryCheckpoint, branch, ok, repo, request};
use super::scene::{Model, Scene, alike, check, content, objects, patches, spools, upload};
use crate::StoreError;
use deltaic_format::answers::CommitRequest;
use deltaic_format::fetch::{Delivery, Span};
use deltaic_format::ids::{CommitId, FileId, PatchId, TensorId};
use deltaic_format::name::RepoName;
use deltaic_format::object::{CanonicalObject, Schema, Snapshot};
use deltaic_format::patch::Changes;
use deltaic_format::progress::Silent;
use deltaic_format::upload::{ObjectKind, UploadItem, UploadTarget};
use deltaic_format::{Dtype, Version};

/// What a lying sender makes of the second version's upload.
struct Lie {
    version: Snapshot,
    target: UploadTarget,
    /// Replaces what an honest sender sends beside the objects.
    rest: Vec<UploadItem>,
}

impl Lie {
    fn new(scene: &Scene) -> Self {
        let mut rest = scene.items(1);
        rest.retain(|item| !matches!(item, UploadItem::Object { .. }));
        let mut target = scene.target(1);
        target.commit = None;
        Self {
            version: scene.versions[1].clone(),
            target,
            rest,
        }
    }

    /// Make ids right again, as far as a liar can.
    fn consistent(&mut self) {
        self.version.tree.schema = self.version.schema.id();
        self.version.commit.tree = self.version.tree.id();
    }

    fn delivery(&mut self, change: impl FnOnce(&mut Vec<Span>, &mut Vec<u8>)) {
        let found = self.rest.iter_mut().find_map(|item| match item {
            UploadItem::Delivery(Delivery::Patches { members, bytes }) => Some((members, bytes)),
            _ => None,
        });
        let (members, bytes) = found.unwrap();
        let (mut spans, mut encoded) = (members.to_vec(), bytes.to_vec());
        change(&mut spans, &mut encoded);
        *members = spans.into();
        *bytes = encoded.into();
    }
}

/// Each lie is refused by name, nothing is visible of it, and an honest upload of the same id then succeeds.
#[test]
fn lies_are_refused() {
    let scene = Scene::small();
    let store = scene.store();
    scene.upload(&store, 0).unwrap();
    let secret = b"another tenant's weights".repeat(125);
    let mut foreign = Model::new(MemoryCheckpoint::new(&[("s", Dtype::BF16, vec![30, 50])]));
    foreign.memory.data.copy_from_slice(&secret);
    let tenant = CommitRequest {
        repo: RepoName::new("other/tenant").unwrap(),
        ..request("main")
    };
    store.commit(&tenant, &foreign, &Silent).unwrap();
    let file = b"a secret file".to_vec();
    let mut with_file = foreign.clone();
    with_file.memory = with_file.memory.with_file("secret", file.clone());
    store.commit(&tenant, &with_file, &Silent).unwrap();

    let lie = |what: &str, words: &str, change: &dyn Fn(&mut Lie)| {
        let mut lie = Lie::new(&scene);
        change(&mut lie);
        let mut items = objects(&lie.version);
        items.extend(lie.rest);
        let refused = upload(&store, &lie.target, &items);
        let Err(StoreError::Upload { what: told }) = refused else {
            panic!("{what}: {refused:?}");
        };
        assert!(told.contains(words), "{what}: {told}");
        let head = store.branch(&repo(), &branch("main")).unwrap().commit;
        assert_eq!(head, scene.versions[0].id, "{what}");
        assert_eq!(spools(&store), 0, "{what}");
    };
    let change = |first| Changes::from_pairs([(first, 1i64)]).unwrap();
    let bf16 = scene.versions[1].tensors()[0].spec.class;
    let f32 = scene.versions[1].tensors()[2].spec.class;
    let span = |tensor, first, elements| Span {
        tensor,
        first,
        elements,
    };

    lie("a truncated set", "\"a\"", &|l| {
        l.delivery(|_, bytes| bytes.truncate(20))
    });
    lie("no set", "\"a\"", &|l| {
        l.delivery(|_, bytes| *bytes = b"zeros".to_vec())
    });
    lie("one member less", "\"b\"", &|l| {
        let only = vec![(span(0, 0, 1500), change(3))];
        let UploadItem::Delivery(delivery) = patches(bf16, &only) else {
            unreachable!()
        };
        l.delivery(|_, bytes| *bytes = delivery.bytes().to_vec());
    });
    lie("another class", "\"a\"", &|l| {
        let members = [(span(0, 0, 1500), change(3)), (span(1, 0, 700), change(3))];
        let UploadItem::Delivery(delivery) = patches(f32, &members) else {
            unreachable!()
        };
        l.delivery(|_, bytes| *bytes = delivery.bytes().to_vec());
    });
    lie("another patch", "hashes to", &|l| {
        let members = [(span(0, 0, 1500), change(3)), (span(1, 0, 700), change(3))];
        l.rest.retain(|i| !matches!(i, UploadItem::Delivery(_)));
        l.rest.push(patches(bf16, &members));
        let members = [(span(2, 0, 9), change(3))];
        l.rest.push(patches(f32, &members));
    });
    lie("a shift out of range", "range", &|l| {
        let far = Changes::from_pairs([(0, 65_535i64), (1, 65_535), (2, -65_535)]).unwrap();
        let members = [(span(0, 0, 1500), far), (span(1, 0, 700), change(3))];
        let UploadItem::Delivery(delivery) = patches(bf16, &members) else {
            unreachable!()
        };
        l.delivery(|_, bytes| *bytes = delivery.bytes().to_vec());
    });
    lie("tensors exchanged", "\"a\"", &|l| {
        l.delivery(|spans, _| {
            let (a, b) = (spans[0].tensor, spans[1].tensor);
            (spans[0].tensor, spans[1].tensor) = (b, a);
        })
    });
    lie("past the tensor", "no span", &|l| {
        l.delivery(|spans, _| spans[0].elements = 1501)
    });
    lie("between blocks", "no span", &|l| {
        l.delivery(|spans, _| spans[0].first = 7)
    });
    lie("no tensor", "tensor number 77", &|l| {
        l.delivery(|spans, _| spans[1].tensor = 77)
    });
    lie("sent twice", "out of order", &|l| {
        let again = l.rest.last().unwrap().clone();
        l.rest.push(again);
    });
    lie("two kinds", "partly", &|l| {
        let data = &scene.models[1].memory.data[scene.models[1].range(0)];
        l.rest.push(content(span(0, 0, 1500), bf16, data));
    });
    lie("content that is no base", "\"c\"", &|l| {
        l.rest.retain(|i| !matches!(i, UploadItem::Delivery(Delivery::Patches { members, .. }) if members[0].tensor == 2));
        l.rest.push(UploadItem::Delivery(Delivery::Content {
            span: span(2, 0, 9),
            bytes: vec![7; 100].into(),
        }));
    });
    lie("a tensor is missing", "nothing of it came", &|l| {
        l.rest.pop();
    });
    lie("an id of nothing", "\"a\"", &|l| {
        l.version.tree.tensors[0].id = TensorId([9; 32]);
        l.consistent();
    });
    lie("moments", "moments", &|l| {
        l.version.tree.tensors[1].moments.q ^= 1;
        l.consistent();
    });
    lie("a patch id", "its patch is", &|l| {
        l.version.tree.tensors[1].patch = Some(PatchId([3; 32]));
        l.consistent();
    });
    lie("moments of what is unchanged", "moments", &|l| {
        l.version.tree.tensors = scene.versions[0].tree.tensors.clone();
        l.version.tree.tensors[0].moments.l ^= 1;
        l.rest.clear();
        l.consistent();
    });
    lie("a patch of what is unchanged", "names a patch", &|l| {
        l.version.tree.tensors = scene.versions[0].tree.tensors.clone();
        l.version.tree.tensors[0].patch = Some(PatchId([3; 32]));
        l.rest.clear();
        l.consistent();
    });
    lie(
        "another tenant's tensor by its id",
        "nothing of it came",
        &|l| {
            l.version.tree.tensors[0].id = TensorId::of(&secret);
            l.rest.retain(|i| !matches!(i, UploadItem::Delivery(Delivery::Patches { members, .. }) if members[0].tensor == 0));
            l.rest.push(patches(bf16, &[(span(1, 0, 700), change(3))]));
            l.consistent();
        },
    );
    lie(
        "another tenant's file by its id",
        "nothing of it came",
        &|l| {
            l.version.tree.files[0].id = FileId::of(&file);
            l.version.tree.files[0].size = file.len() as u64;
            l.consistent();
        },
    );
    lie("a file of another length", "has 3 bytes", &|l| {
        l.version.tree.files[0].size = 3;
        l.consistent();
    });
    lie("files beyond all disks", "longer than any disk", &|l| {
        l.version.tree.files[0].size = u64::MAX;
        l.consistent();
    });
    lie("a file with a hole", "came after", &|l| {
        l.rest.push(UploadItem::File {
            file: FileId::of(b"x"),
            offset: 5,
            bytes: vec![1].into(),
        })
    });
    lie("other bytes of a file", "hashes to", &|l| {
        l.version.tree.files[0].id = FileId([5; 32]);
        l.rest.push(UploadItem::File {
            file: FileId([5; 32]),
            offset: 0,
            bytes: b"!!".to_vec().into(),
        });
        l.consistent();
    });
    lie("another header", "describes other tensors", &|l| {
        let header = String::from_utf8(scene.models[1].header.clone()).unwrap();
        let header = header.replace("\"a\"", "\"z\"").into_bytes();
        l.version.tree.weight_files[0].header = FileId::of(&header);
        l.rest.push(UploadItem::File {
            file: FileId::of(&header),
            offset: 0,
            bytes: header.into(),
        });
        l.consistent();
    });
    lie("another parent", "does not follow", &|l| {
        l.version.commit.parents = vec![CommitId([4; 32])];
    });
    lie("two parents", "does not follow", &|l| {
        l.version.commit.parents.push(CommitId([4; 32]));
    });
    lie("another version", "v1 comes next", &|l| {
        l.version.commit.version = Version(7)
    });
    lie("another commit than announced", "announced", &|l| {
        l.target.commit = Some(CommitId([4; 32]));
    });
    lie("a tree of another commit", "tree is not", &|l| {
        l.version.tree.tensors[0].moments.l ^= 1;
    });
    lie("a schema of another tree", "schema is not", &|l| {
        l.version.schema = Schema::default().into();
    });
    lie(
        "a schema that does not agree",
        "tensors of its schema",
        &|l| {
            let mut schema = (*l.version.schema).clone();
            schema.files[0].tensors.pop();
            l.version.schema = schema.into();
            l.consistent();
        },
    );

    for kind in [ObjectKind::Schema, ObjectKind::Tree, ObjectKind::Commit] {
        let mut items = scene.items(1);
        items.retain(|item| !matches!(item, UploadItem::Object { kind: k, .. } if *k == kind));
        let refused = upload(&store, &scene.target(1), &items);
        assert!(
            matches!(refused, Err(StoreError::Upload { .. })),
            "{refused:?}"
        );
    }

    let made = scene.upload(&store, 1).unwrap();
    alike(&made, &scene.outcomes[1]);
    check(&store, &scene, 1);
    ok(&store);
}
