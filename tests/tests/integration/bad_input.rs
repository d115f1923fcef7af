//! Bad input to the program: each kind has its exit code and its message, nothing is written, nothing is lost.

use deltaic_format::Dtype;
use deltaic_tests::checkpoints::{NamedTensor, safetensors_file, write_folder};
use deltaic_tests::stores::{ScratchStore, assert_same_files, command_on};
use std::fs;
use std::path::{Path, PathBuf};

const NOT_FOUND: i32 = 10;
const CONFLICT: i32 = 11;
const CORRUPT: i32 = 13;
const UNAVAILABLE: i32 = 16;

fn tensors(seed: u8) -> Vec<NamedTensor> {
    vec![
        NamedTensor::flat("a", Dtype::BF16, vec![seed; 5000]),
        NamedTensor::flat("b", Dtype::F32, vec![7; 400]),
    ]
}

fn checkpoint(store: &ScratchStore, name: &str, seed: u8) -> PathBuf {
    let folder = store.path(name);
    write_folder(&folder, &[("model.safetensors", tensors(seed))]).unwrap();
    folder
}

fn text(path: &Path) -> &str {
    path.to_str().expect("scratch paths are UTF-8")
}

fn has(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} should name {part:?}");
    }
}

#[test]
fn what_is_not_there_is_named() {
    let store = ScratchStore::new();
    store.commit("run", &checkpoint(&store, "v0", 1));
    for (args, part) in [
        (vec!["log", "nope"], "nope"),
        (vec!["show", "run@v7"], "v7"),
        (vec!["show", "run@nope"], "nope"),
        (vec!["show", "run@main~4"], "main~4"),
        (vec!["show", "run@step=9"], "step=9"),
        (vec!["diff", "run@v0..v3"], "v3"),
        (vec!["tag", "delete", "run", "best"], "best"),
        (vec!["branch", "delete", "run", "exp"], "exp"),
        (vec!["revert", "run@exp", "v0"], "exp"),
        (vec!["branch", "create", "run", "exp", "v9"], "v9"),
    ] {
        has(&store.fails(NOT_FOUND, &args), &[part]);
    }
    let out = store.place("out");
    let message = store.fails(NOT_FOUND, &["export", "run@v0:missing.json", "-o", &out]);
    has(&message, &["missing.json"]);
    let elsewhere = store.place("nowhere");
    let output = command_on(&elsewhere, &["log", "run"]).output().unwrap();
    assert_eq!(output.status.code(), Some(NOT_FOUND));
    has(
        &String::from_utf8_lossy(&output.stdout),
        &["nowhere", "init"],
    );
}

#[test]
fn paths_that_are_no_checkpoint_are_refused() {
    let store = ScratchStore::new();
    let good = checkpoint(&store, "v0", 1);
    store.commit("run", &good);
    let case = |name: &str, code: i32, prepare: &dyn Fn(&Path), parts: &[&str]| {
        let folder = checkpoint(&store, name, 2);
        prepare(&folder);
        let message = store.fails(code, &["commit", "run", text(&folder)]);
        has(&message, parts);
    };
    let weights = |folder: &Path| folder.join("model.safetensors");
    let rewrite = |folder: &Path, change: &dyn Fn(&mut Vec<u8>)| {
        let mut file = fs::read(weights(folder)).unwrap();
        change(&mut file);
        fs::write(weights(folder), file).unwrap();
    };
    case(
        "empty",
        NOT_FOUND,
        &|f| fs::remove_file(weights(f)).unwrap(),
        &["no checkpoint"],
    );
    case(
        "header",
        1,
        &|f| rewrite(f, &|b| b[7] = 0x80),
        &["model.safetensors", "limit"],
    );
    case(
        "short",
        1,
        &|f| rewrite(f, &|b| b.truncate(20)),
        &["model.safetensors", "ends within its header"],
    );
    case(
        "cut",
        1,
        &|f| rewrite(f, &|b| b.truncate(b.len() - 1)),
        &["model.safetensors", "truncated"],
    );
    case(
        "tail",
        1,
        &|f| rewrite(f, &|b| b.push(0)),
        &["model.safetensors", "too many"],
    );
    case(
        "index",
        1,
        &|f| {
            let index = r#"{"weight_map": {"a": "model-00002.safetensors"}}"#;
            fs::write(f.join("model.safetensors.index.json"), index).unwrap();
        },
        &["model-00002.safetensors"],
    );
    case(
        "escape",
        1,
        &|f| std::os::unix::fs::symlink("/etc/hostname", f.join("hostname")).unwrap(),
        &["hostname"],
    );
    case(
        "backslash",
        1,
        &|f| fs::write(f.join("a\\b"), "x").unwrap(),
        &["a\\\\b"],
    );
    has(
        &store.fails(NOT_FOUND, &["commit", "run", &store.place("absent")]),
        &["absent"],
    );
    let log = store.json(&["log", "run"]);
    assert_eq!(
        log["commits"].as_array().map(Vec::len),
        Some(1),
        "nothing was committed"
    );
    store.json(&["verify", "--read-data"]);
}

#[test]
fn a_hugging_face_snapshot_is_a_checkpoint() {
    let store = ScratchStore::new();
    let cache = store.path("hub/models--acme--policy");
    let snapshot = cache.join("snapshots/0123abcd");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(cache.join("blobs")).unwrap();
    let files = [
        ("model.safetensors", safetensors_file(&tensors(3))),
        ("config.json", b"{}".to_vec()),
    ];
    for (name, content) in &files {
        fs::write(cache.join("blobs").join(format!("blob-{name}")), content).unwrap();
        let target = format!("../../blobs/blob-{name}");
        std::os::unix::fs::symlink(target, snapshot.join(name)).unwrap();
    }
    store.commit("run", &snapshot);
    let out = store.place("out");
    store.json(&["export", "run", "-o", &out]);
    for (name, content) in files {
        assert_eq!(fs::read(Path::new(&out).join(name)).unwrap(), content);
    }
}

#[test]
fn a_lost_race_is_told() {
    let store = ScratchStore::new();
    let (first, second) = (checkpoint(&store, "v0", 1), checkpoint(&store, "v1", 2));
    store.json(&["commit", "run", text(&first), "--expect", "none"]);
    store.commit("run", &second);
    for expect in ["none", "v0"] {
        let args = ["commit", "run", text(&first), "--expect", expect];
        has(&store.fails(CONFLICT, &args), &["run@main"]);
    }
    store.json(&["commit", "run", text(&first), "--expect", "v1"]);
}

#[test]
fn a_store_of_another_format_is_left_alone() {
    let store = ScratchStore::new();
    store.commit("run", &checkpoint(&store, "v0", 1));
    let format = store.path("store/FORMAT");
    let original = fs::read(&format).unwrap();
    fs::write(&format, "deltaic store format 9\n").unwrap();
    has(&store.fails(1, &["log", "run"]), &["format 9"]);
    fs::write(&format, original).unwrap();
    store.verify();
}

#[test]
fn a_store_is_open_in_one_process_at_a_time() {
    let store = ScratchStore::new();
    store.commit("run", &checkpoint(&store, "v0", 1));
    let lock = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(store.path("store/lock"))
        .unwrap();
    lock.try_lock().unwrap();
    has(&store.fails(UNAVAILABLE, &["log", "run"]), &["in use"]);
    drop(lock);
    store.json(&["log", "run"]);
}

#[test]
fn half_written_packs_are_swept_and_damaged_ones_found() {
    let store = ScratchStore::new();
    let version = checkpoint(&store, "v0", 1);
    store.commit("run", &version);
    fs::write(store.path("store/tmp/0-0.pack"), b"\x89DPK\r\n\x1a\n half").unwrap();
    store.verify();
    assert_eq!(fs::read_dir(store.path("store/tmp")).unwrap().count(), 0);
    let pack = fs::read_dir(store.path("store/packs"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let whole = fs::read(&pack).unwrap();
    fs::write(&pack, &whole[..whole.len() / 3]).unwrap();
    let report = store.run(&["verify", "--read-data"]);
    assert_eq!(report.status.code(), Some(CORRUPT));
    let out = store.place("out");
    store.fails(CORRUPT, &["export", "run", "-o", &out]);
    assert!(!Path::new(&out).join("model.safetensors").exists());
    fs::write(&pack, whole).unwrap();
    store.verify();
}

#[test]
fn edits_in_a_replica_are_noticed_named_and_mended() {
    let store = ScratchStore::new();
    let versions = [1, 2].map(|seed| checkpoint(&store, &format!("v{seed}"), seed));
    versions
        .iter()
        .for_each(|version| drop(store.commit("run", version)));
    let replica = store.place("replica");
    store.json(&["pull", "run@v0", "-o", &replica]);
    let weights = Path::new(&replica).join("model.safetensors");
    let mut file = fs::read(&weights).unwrap();
    let last = file.len() - 1;
    file[last] ^= 1;
    fs::write(&weights, &file).unwrap();
    let report = store.run(&["verify", &replica]);
    assert_eq!(report.status.code(), Some(CORRUPT));
    has(&String::from_utf8_lossy(&report.stdout), &["b"]);
    let message = store.fails(CORRUPT, &["pull", "run@v1", "-o", &replica]);
    has(&message, &["b", "--repair"]);
    assert!(fs::read(&weights).unwrap() == file, "nothing was written");
    store.json(&["pull", "run@v1", "-o", &replica, "--repair"]);
    assert_same_files(replica.as_ref(), &versions[1]);
    fs::remove_file(Path::new(&replica).join("config.json")).unwrap();
    has(
        &store.fails(CORRUPT, &["pull", "run@v0", "-o", &replica]),
        &["config.json"],
    );
    store.json(&["pull", "run@v0", "-o", &replica, "--repair"]);
    assert_same_files(replica.as_ref(), &versions[0]);
}
