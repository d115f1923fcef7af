//! Uploads: versions that come in parts, whole or as patches, and are cut anywhere.

use super::damage::damage_packs;
use super::{MemoryCheckpoint, branch, ok, repo, request};
use crate::{Store, StoreError, Upload};
use deltaic_format::Dtype;
use deltaic_format::answers::VerifyOptions;
use deltaic_format::fetch::{Delivery, Span};
use deltaic_format::ids::{CommitId, FileId};
use deltaic_format::object::{CanonicalObject, Tree};
use deltaic_format::patch::{BLOCK_ELEMENTS, PIECE_ELEMENTS};
use deltaic_format::progress::Silent;
use deltaic_format::upload::{UploadItem, UploadTarget};
use scene::{
    Model, SPAN, Scene, alike, append, check, content, objects, position, small, spools, upload,
};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

mod lies;
mod scene;

#[test]
fn versions_come_whole_and_as_patches() {
    let scene = Scene::steps();
    let store = scene.store();
    for version in 0..2 {
        assert_eq!(store.committed(&scene.target(version)).unwrap(), None);
        let made = scene.upload(&store, version).unwrap();
        alike(&made, &scene.outcomes[version]);
        assert_eq!(
            store.branch(&repo(), &branch("main")).unwrap().commit,
            made.id
        );
        // A lost answer, asked for again, and the same upload once more.
        assert_eq!(store.committed(&scene.target(version)).unwrap(), Some(made));
        assert_eq!(scene.upload(&store, version).unwrap(), made);
        assert_eq!(spools(&store), 0);
        check(&store, &scene, version);
    }
    let earlier = store.committed(&scene.target(0)).unwrap().unwrap();
    alike(&earlier, &scene.outcomes[0]);
    ok(&store);
}

#[test]
fn little_is_sent_of_a_step() {
    let scene = Scene::steps();
    let sizes = |version| {
        scene
            .items(version)
            .iter()
            .map(UploadItem::len)
            .sum::<u64>()
    };
    assert!(sizes(1) * 10 < sizes(0), "{} of {}", sizes(1), sizes(0));
    // Unchanged files, the unchanged tensor, the tied one and the empty one did not come at all.
    let items = scene.items(1);
    assert_eq!(
        items
            .iter()
            .filter(|i| matches!(i, UploadItem::File { .. }))
            .count(),
        1
    );
}

#[test]
fn new_tensors_renamed_files_and_copies_of_the_parents_tensors_are_found() {
    let first = Model::new(small());
    let mut memory = MemoryCheckpoint::new(&[
        ("a", Dtype::BF16, vec![30, 50]),
        // The parent's "b" under another name, and twice.
        ("copy", Dtype::BF16, vec![700]),
        ("again", Dtype::BF16, vec![700]),
        ("new", Dtype::F8E4M3, vec![PIECE_ELEMENTS + 5]),
        ("new too", Dtype::F8E4M3, vec![PIECE_ELEMENTS + 5]),
        ("none", Dtype::F64, vec![0]),
        ("c", Dtype::F32, vec![10]),
    ])
    .with_file("config.copy", b"{}".to_vec())
    .with_file("empty", Vec::new());
    let b = first.memory.data[first.range(1)].to_vec();
    let second = Model::new(memory.clone());
    memory.data[second.range(1)].copy_from_slice(&b);
    memory.data[second.range(2)].copy_from_slice(&b);
    memory
        .data
        .copy_within(second.range(3), second.range(4).start);
    let scene = Scene::new(vec![first, Model::new(memory)]);
    let store = scene.store();
    scene.upload(&store, 0).unwrap();
    let mut items = scene.items(1);
    // Nothing of the copies is sent.
    items.retain(|item| {
        !matches!(item, UploadItem::Delivery(Delivery::Content { span, .. }) if [1, 2].contains(&span.tensor))
    });
    alike(
        &upload(&store, &scene.target(1), &items).unwrap(),
        &scene.outcomes[1],
    );
    check(&store, &scene, 1);
    let options = VerifyOptions {
        read_data_percent: Some(100.0),
    };
    assert_eq!(store.verify(&options, &Silent).unwrap().problems, []);
}

#[test]
fn an_upload_goes_on_after_every_item_and_after_a_restart() {
    let scene = Scene::steps();
    let mut store = scene.store();
    scene.upload(&store, 0).unwrap();
    let items = scene.items(1);
    for (number, item) in items.iter().enumerate() {
        let mut upload = store.open_upload(&scene.target(1)).unwrap();
        assert_eq!(upload.items(), number as u64);
        let at = (number > 0).then(|| position(number as u64));
        assert_eq!(upload.position(), at.as_ref());
        upload
            .append(position(number as u64 + 1), item.clone())
            .unwrap();
        drop(upload);
        if number % 5 == 0 {
            drop(store);
            store = Store::open(&scene.root()).unwrap();
        }
    }
    let upload = store.open_upload(&scene.target(1)).unwrap();
    alike(
        &store.finish_upload(upload, &Silent).unwrap(),
        &scene.outcomes[1],
    );
    check(&store, &scene, 1);
}

fn spool_of(root: &Path, target: &UploadTarget) -> PathBuf {
    let name = blake3::Hash::from_bytes(target.id.0).to_hex();
    root.join("uploads").join(format!("{name}.spool"))
}

/// A record that a crash cut short is dropped, wherever it was cut, and what was never written as well.
#[test]
fn a_torn_tail_is_dropped_at_every_byte() {
    let scene = Scene::small();
    let store = scene.store();
    let (target, items) = (scene.target(0), scene.items(0));
    let path = spool_of(&scene.root(), &target);
    let mut open = store.open_upload(&target).unwrap();
    append(&mut open, &items[..items.len() - 1]);
    let before = std::fs::read(&path).unwrap();
    append(&mut open, &items);
    drop(open);
    let whole = std::fs::read(&path).unwrap();
    let last = items.len() as u64;
    for len in before.len()..whole.len() {
        for zeros in [0, 1, 3000] {
            let mut torn = whole[..len].to_vec();
            torn.resize(len + zeros, 0);
            if torn.starts_with(&whole) {
                continue;
            }
            std::fs::write(&path, torn).unwrap();
            let open = store.open_upload(&target).unwrap();
            assert_eq!(open.items(), last - 1, "cut at {len}, then {zeros} zeros");
            assert_eq!(open.position(), Some(&position(last - 1)));
            assert_eq!(std::fs::read(&path).unwrap(), before);
        }
    }
    alike(
        &upload(&store, &target, &items).unwrap(),
        &scene.outcomes[0],
    );
}

/// Nothing after a damaged record is used, and nothing of a spool that does not begin like one.
#[test]
fn an_upload_goes_on_before_damage() {
    let scene = Scene::small();
    let store = scene.store();
    let (target, items) = (scene.target(0), scene.items(0));
    let path = spool_of(&scene.root(), &target);
    let mut open = store.open_upload(&target).unwrap();
    append(&mut open, &items);
    drop(open);
    let whole = std::fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(7) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&path, &damaged).unwrap();
        let open = store.open_upload(&target).unwrap();
        assert!(open.items() < items.len() as u64, "byte {at}");
        let left = std::fs::read(&path).unwrap();
        assert!(whole.starts_with(&left), "byte {at}");
    }
    alike(
        &upload(&store, &target, &items).unwrap(),
        &scene.outcomes[0],
    );
}

/// Damage that comes after the upload was opened is met while it is finished, and mended by sending again.
#[test]
fn damage_while_finishing_is_no_fault_of_the_sender() {
    let scene = Scene::small();
    let store = scene.store();
    let (target, items) = (scene.target(0), scene.items(0));
    let path = spool_of(&scene.root(), &target);
    let mut open = store.open_upload(&target).unwrap();
    append(&mut open, &items);
    let mut damaged = std::fs::read(&path).unwrap();
    let at = damaged.len() - 3;
    damaged[at] ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    let failed = store.finish_upload(open, &Silent);
    assert!(
        matches!(failed, Err(StoreError::Corrupt { .. })),
        "{failed:?}"
    );
    assert!(store.repos().unwrap().is_empty());
    let open = store.open_upload(&target).unwrap();
    assert_eq!(open.items(), items.len() as u64 - 1);
    drop(open);
    upload(&store, &target, &items).unwrap();
}

/// What this process wrote itself it goes on with without reading it, unless someone else wrote to it or it was found damaged.
#[test]
fn a_spool_is_not_read_again_by_who_wrote_it() {
    let scene = Scene::small();
    let mut store = scene.store();
    let (target, items) = (scene.target(0), scene.items(0));
    let all = items.len() as u64;
    let path = spool_of(&scene.root(), &target);
    let left = |store: &Store, count: usize| {
        let mut open = store.open_upload(&target).unwrap();
        append(&mut open, &items[..count]);
        open.items()
    };
    // Damage that no time tells of.
    let damage = |quiet: bool| {
        let mut file = std::fs::File::options();
        let file = file.read(true).write(true).open(&path).unwrap();
        let metadata = file.metadata().unwrap();
        let mut last = [0];
        file.read_exact_at(&mut last, metadata.len() - 1).unwrap();
        file.write_all_at(&[last[0] ^ 1], metadata.len() - 1)
            .unwrap();
        let later = u64::from(!quiet);
        let modified = metadata.modified().unwrap() + Duration::from_secs(later);
        file.set_modified(modified).unwrap();
    };
    let held = |store: &Store| store.open_upload(&target).unwrap().items();
    for count in [2, 3, items.len()] {
        assert_eq!(left(&store, count), count as u64);
    }
    damage(true);
    assert_eq!(held(&store), all);
    assert_eq!(held(&store), all);
    // Finishing finds it.
    let open = store.open_upload(&target).unwrap();
    let failed = store.finish_upload(open, &Silent);
    assert!(
        matches!(failed, Err(StoreError::Corrupt { .. })),
        "{failed:?}"
    );
    assert_eq!(held(&store), all - 1);
    assert_eq!(left(&store, items.len()), all);
    damage(false);
    assert_eq!(held(&store), all - 1);
    assert_eq!(left(&store, items.len()), all);
    damage(true);
    drop(store);
    store = Store::open(&scene.root()).unwrap();
    assert_eq!(held(&store), all - 1);
    alike(
        &upload(&store, &target, &items).unwrap(),
        &scene.outcomes[0],
    );
}

#[test]
fn an_upload_has_one_sender_at_a_time_and_one_target() {
    let scene = Scene::small();
    let store = scene.store();
    let target = scene.target(0);
    let mut open = store.open_upload(&target).unwrap();
    append(&mut open, &scene.items(0)[..2]);
    let second = store.open_upload(&target);
    assert!(
        matches!(second, Err(StoreError::Conflict { .. })),
        "{second:?}"
    );
    drop(open);
    assert_eq!(store.open_upload(&target).unwrap().items(), 2);
    // What was announced of the commit is no part of what is held.
    let unknown = UploadTarget {
        commit: None,
        ..target.clone()
    };
    assert_eq!(store.open_upload(&unknown).unwrap().items(), 2);
    for other in [
        UploadTarget {
            branch: branch("other"),
            ..target.clone()
        },
        UploadTarget {
            parent: Some(CommitId([1; 32])),
            ..target.clone()
        },
    ] {
        let mut open = store.open_upload(&other).unwrap();
        assert_eq!((open.items(), open.position()), (0, None));
        append(&mut open, &scene.items(0)[..1]);
    }
    assert_eq!(store.open_upload(&target).unwrap().items(), 0);
    let options = [
        UploadItem::File {
            file: FileId([0; 32]),
            offset: 0,
            bytes: vec![0; (16 << 20) + 1].into(),
        },
        UploadItem::Delivery(Delivery::Patches {
            members: [].into(),
            bytes: vec![1].into(),
        }),
    ];
    let mut open = store.open_upload(&target).unwrap();
    for item in options {
        let refused = open.append(position(1), item);
        assert!(
            matches!(refused, Err(StoreError::Invalid { .. })),
            "{refused:?}"
        );
    }
    let long = vec![0; 129].into();
    assert!(open.append(long, scene.items(0)[0].clone()).is_err());
    assert_eq!(open.items(), 0);
}

#[test]
fn what_nobody_goes_on_with_is_swept_after_a_week() {
    let scene = Scene::small();
    let store = scene.store();
    let (old, young) = (scene.target(0), scene.target(1));
    for (version, target) in [&old, &young].into_iter().enumerate() {
        let mut open = store.open_upload(target).unwrap();
        append(&mut open, &scene.items(version)[..1]);
    }
    let day = Duration::from_secs(24 * 60 * 60);
    for (target, days) in [(&old, 8), (&young, 6)] {
        let file = std::fs::File::options()
            .write(true)
            .open(spool_of(&scene.root(), target))
            .unwrap();
        file.set_modified(std::time::SystemTime::now() - days * day)
            .unwrap();
    }
    drop(store);
    let store = Store::open(&scene.root()).unwrap();
    assert!(!spool_of(&scene.root(), &old).exists());
    assert!(spool_of(&scene.root(), &young).exists());
    drop(store);
}

#[test]
fn of_two_that_follow_the_same_version_one_wins() {
    let scene = Scene::small();
    let store = scene.store();
    scene.upload(&store, 0).unwrap();
    let mut open = store.open_upload(&scene.target(1)).unwrap();
    append(&mut open, &scene.items(1));
    // Meanwhile somebody else commits.
    let other = scene.models[0].step_all();
    let mut faster = request("main");
    faster.message = "faster".to_owned();
    let faster = store.commit(&faster, &other, &Silent).unwrap();
    let lost = store.finish_upload(open, &Silent);
    assert!(matches!(lost, Err(StoreError::Conflict { .. })), "{lost:?}");
    assert_eq!(
        store.branch(&repo(), &branch("main")).unwrap().commit,
        faster.id
    );
    assert_eq!(spools(&store), 0);
    assert_eq!(store.committed(&scene.target(1)).unwrap(), None);
    // The first version is in the history still: to send it again is success.
    assert_eq!(scene.upload(&store, 0).unwrap().id, scene.versions[0].id);
    // Whoever expects an empty branch, or none of this repository's, is told.
    let mut target = scene.target(1);
    target.branch = branch("unknown");
    let missing = upload(&store, &target, &scene.items(1));
    assert!(
        matches!(missing, Err(StoreError::NotFound { .. })),
        "{missing:?}"
    );
}

/// A patch that its maker could not name, as of a version made from a damaged one, is no lie.
#[test]
fn a_version_may_leave_a_patch_unnamed() {
    let scene = Scene::small();
    let store = scene.store();
    scene.upload(&store, 0).unwrap();
    let mut version = scene.versions[1].clone();
    version.tree.tensors[0].patch = None;
    version.commit.tree = version.tree.id();
    let mut items = scene.items(1);
    items.retain(|item| !matches!(item, UploadItem::Object { .. }));
    items.extend(objects(&version));
    let target = UploadTarget {
        commit: Some(version.commit.id()),
        ..scene.target(1)
    };
    let made = upload(&store, &target, &items).unwrap();
    assert_eq!(store.committed(&target).unwrap(), Some(made));
    let tree: Tree = store.snapshot(made.id).unwrap().tree;
    assert_eq!(tree.tensors[0].patch, None);
}

/// Large tensors in spans that leave some out, and patches that reach over blocks of their piece.
#[test]
fn spans_keep_their_place_within_their_piece() {
    let first = Model::new(MemoryCheckpoint::new(&[(
        "w",
        Dtype::F8E4M3,
        vec![2 * PIECE_ELEMENTS + 3],
    )]));
    let mut second = first.clone();
    for at in [
        5,
        SPAN - 1,
        SPAN,
        3 * BLOCK_ELEMENTS + SPAN,
        2 * PIECE_ELEMENTS + 2,
    ] {
        let byte = &mut second.memory.data[at as usize];
        *byte ^= 1;
    }
    let scene = Scene::new(vec![first, second]);
    let store = scene.store();
    for version in 0..2 {
        alike(
            &scene.upload(&store, version).unwrap(),
            &scene.outcomes[version],
        );
        check(&store, &scene, version);
    }
}

/// Where the parent's content is damaged, the sender is not to blame, and what it sent is kept.
#[test]
fn damage_of_the_parent_is_told_as_such() {
    let scene = Scene::small();
    let store = scene.store();
    scene.upload(&store, 0).unwrap();
    drop(store);
    damage_packs(&scene.root());
    let store = Store::open(&scene.root()).unwrap();
    let refused = |items: &[UploadItem]| {
        let refused = upload(&store, &scene.target(1), items);
        let Err(StoreError::Corrupt { object, .. }) = refused else {
            panic!("{refused:?}");
        };
        let tensors = &scene.versions[0].tree.tensors;
        let named = tensors.iter().any(|t| object.contains(&t.id.to_string()));
        assert!(named, "{object}");
        assert_eq!(spools(&store), 1);
        std::fs::remove_file(spool_of(&scene.root(), &scene.target(1))).unwrap();
    };
    refused(&scene.items(1));
    // As contents, everything is there; but no patch can be named that starts from what cannot be read.
    let mut items = objects(&scene.versions[1]);
    for view in scene.versions[1].tensors() {
        let span = Span {
            tensor: view.index,
            first: 0,
            elements: view.spec.elements(),
        };
        let model = &scene.models[1];
        let bytes = &model.memory.data[model.range(view.index)];
        items.push(content(span, view.spec.class, bytes));
    }
    refused(&items);
    let head = store.branch(&repo(), &branch("main")).unwrap().commit;
    assert_eq!(head, scene.versions[0].id);
}

#[test]
fn an_upload_may_move_between_threads() {
    fn check<T: Send + 'static>() {}
    check::<Upload>();
}

/// An item without bytes would be held at no cost to whoever sends it.
#[test]
fn items_without_bytes_are_refused() {
    let scene = Scene::small();
    let store = scene.store();
    let mut open = store.open_upload(&scene.target(0)).unwrap();
    let nothing = UploadItem::File {
        file: FileId([3; 32]),
        offset: 0,
        bytes: Default::default(),
    };
    let refused = open.append(position(1), nothing);
    assert!(
        matches!(refused, Err(StoreError::Upload { .. })),
        "{refused:?}"
    );
    assert_eq!(open.items(), 0);
    drop(open);
    assert_eq!(spools(&store), 0);
    store.sweep_uploads().unwrap();
}

/// A small disk of its own; `None` where this may not be made.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let mut mount = std::process::Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"])
            .arg(at);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then(|| Self(at.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).output();
    }
}

/// A full disk takes nothing back that is held, and with room the upload goes on.
#[test]
fn an_upload_goes_on_once_there_is_room() {
    let scene = Scene::small();
    let store = scene.store();
    let Some(disk) = SmallDisk::mount(&scene.root().join("uploads")) else {
        return;
    };
    let (target, items) = (scene.target(0), scene.items(0));
    let mut open = store.open_upload(&target).unwrap();
    append(&mut open, &items[..3]);
    let filler = disk.0.join("filler");
    let free = rustix::fs::statvfs(&disk.0).unwrap();
    let left = vec![1; (free.f_bavail * free.f_frsize) as usize];
    std::fs::write(&filler, left).unwrap();
    let mut refused = None;
    for (number, item) in items.iter().enumerate().skip(3) {
        let held = open.items();
        assert_eq!(held, number as u64);
        if let Err(error) = open.append(position(held + 1), item.clone()) {
            refused = Some(error);
            assert_eq!(open.items(), held);
            assert_eq!(open.position(), Some(&position(held)));
            break;
        }
    }
    assert!(
        matches!(refused, Some(StoreError::NoSpace { .. })),
        "{refused:?}"
    );
    let held = open.items();
    drop(open);
    let mut open = store.open_upload(&target).unwrap();
    assert_eq!(open.items(), held);
    std::fs::remove_file(filler).unwrap();
    append(&mut open, &items);
    let made = store.finish_upload(open, &Silent).unwrap();
    alike(&made, &scene.outcomes[0]);
    drop(disk);
}
