//! Export: the committed bytes and nothing else, whatever lies in the folder.

use super::model::{History, TestTree, example_trees};
use super::{assert_holds, error_of, files_in};
use crate::{ClientError, export};
use deltaic_format::name::TreePath;
use deltaic_format::object::FileMode;
use deltaic_format::progress::Silent;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use tempfile::tempdir;

fn export_to(folder: &Path, history: &History, version: usize) -> crate::Result<u64> {
    let want = &history.versions[version].snapshot;
    export(history, want, None, folder, &Silent).map(|outcome| outcome.files)
}

/// The example's first version with other plain files.
fn with_files(files: &[(&'static str, &[u8])]) -> History {
    let files = files.iter();
    History::new(&[TestTree {
        files: files
            .map(|(path, bytes)| (*path, FileMode::Plain, bytes.to_vec()))
            .collect(),
        ..example_trees(100).remove(0)
    }])
}

#[test]
fn an_export_is_the_committed_files_and_nothing_else() {
    let history = History::example();
    for version in 0..5 {
        let outside = tempdir().unwrap();
        let folder = outside.path().join("a/b");
        export_to(&folder, &history, version).unwrap();
        assert_holds(&folder, &history.versions[version]);
        assert!(!folder.join(".deltaic").exists());
        // Again, over what is there.
        export_to(&folder, &history, version).unwrap();
        assert_holds(&folder, &history.versions[version]);
    }
}

/// What it prevents: files whose names are those of somebody's temporary files, or as long as names can be.
#[test]
fn names_of_committed_files_collide_with_nothing() {
    let long: &'static str = "n".repeat(255).leak();
    let history = with_files(&[
        ("a", b"one"),
        (".a.part", b"two"),
        (".a.part.part", b"three"),
        ("0", b"four"),
        ("export-1/lock", b"five"),
        (long, b"six"),
    ]);
    let folder = tempdir().unwrap();
    export_to(folder.path(), &history, 0).unwrap();
    assert_holds(folder.path(), &history.versions[0]);
}

/// What it prevents: an export that leaves its folder.
#[test]
fn symlinks_are_replaced_and_never_followed() {
    let history = History::example();
    let (folder, elsewhere) = (tempdir().unwrap(), tempdir().unwrap());
    let precious = elsewhere.path().join("precious");
    fs::write(&precious, "precious").unwrap();
    for name in ["config.json", "model-1.safetensors", ".config.json.part"] {
        symlink(&precious, folder.path().join(name)).unwrap();
    }
    export_to(folder.path(), &history, 0).unwrap();
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
    fs::remove_file(folder.path().join(".config.json.part")).unwrap();
    assert_holds(folder.path(), &history.versions[0]);

    let folder = tempdir().unwrap();
    symlink(elsewhere.path(), folder.path().join("sub")).unwrap();
    let error = error_of(export_to(folder.path(), &history, 0));
    assert!(matches!(error, ClientError::Invalid { .. }), "{error}");
    assert!(error.to_string().contains("sub is in the way"), "{error}");
    symlink(elsewhere.path(), folder.path().join(".deltaic")).unwrap();
    fs::remove_file(folder.path().join("sub")).unwrap();
    let error = error_of(export_to(folder.path(), &history, 0));
    assert!(matches!(error, ClientError::Corrupt { .. }), "{error}");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
}

/// Puts something where it should not be.
type Block = fn(&Path);

#[test]
fn what_is_in_the_way_is_named_and_nothing_is_written() {
    let history = History::example();
    let folder = tempdir().unwrap();
    let blocks: [(&str, Block); 3] = [
        ("config.json", |path| {
            fs::create_dir_all(path.join("mine")).unwrap()
        }),
        ("scripts", |path| fs::write(path, "mine").unwrap()),
        ("model-1.safetensors", |path| fs::create_dir(path).unwrap()),
    ];
    for (name, block) in blocks {
        let path = folder.path().join(name);
        block(&path);
        let error = error_of(export_to(folder.path(), &history, 0));
        assert!(
            error.to_string().contains(&format!("{name} is in the way")),
            "{error}"
        );
        let names = fs::read_dir(folder.path())
            .unwrap()
            .map(|e| e.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), [name]);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn a_failed_export_leaves_nothing() {
    let history = History::example();
    *history.tamper.borrow_mut() = Some(Box::new(|_, bytes| bytes.truncate(bytes.len() - 1)));
    let outside = tempdir().unwrap();
    let folder = outside.path().join("a/b");
    let error = error_of(export_to(&folder, &history, 0));
    assert!(matches!(error, ClientError::Delivery { .. }), "{error}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    let want = &history.versions[0].snapshot;
    let only = TreePath::new("no/such").unwrap();
    let error = error_of(export(&history, want, Some(&only), &folder, &Silent));
    assert!(matches!(error, ClientError::Invalid { .. }), "{error}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

/// What it prevents: two exports that write to one temporary file, or delete each other's.
#[test]
fn exports_at_the_same_time_do_not_meet() {
    let folder = tempdir().unwrap();
    let expected = History::new(&example_trees(3000));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let history = History::new(&example_trees(3000));
                for _ in 0..5 {
                    export_to(folder.path(), &history, 0).unwrap();
                }
            });
        }
    });
    assert_holds(folder.path(), &expected.versions[0]);
    assert!(!folder.path().join(".deltaic").exists());
}

#[test]
fn what_dead_exports_left_is_swept_and_what_live_ones_use_is_not() {
    let history = History::example();
    let folder = tempdir().unwrap();
    let internal = folder.path().join(".deltaic");
    let [dead, begun, live] = ["export-1-0", "export-1-1", "export-2-0"].map(|n| internal.join(n));
    for path in [&dead, &begun, &live] {
        fs::create_dir_all(path).unwrap();
    }
    fs::write(dead.join("0"), "left over").unwrap();
    fs::write(dead.join("lock"), "").unwrap();
    let lock = Arc::new(fs::File::create_new(live.join("lock")).unwrap());
    lock.try_lock().unwrap();
    export_to(folder.path(), &history, 0).unwrap();
    assert!(!dead.exists() && !begun.exists() && live.exists());
    assert_eq!(files_in(folder.path()).len(), 5);
    drop(lock);
    export_to(folder.path(), &history, 0).unwrap();
    assert!(!internal.exists());
}
