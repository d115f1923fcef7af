//! Bad input to the program: each kind has its exit code and its message, nothing is written, nothing is lost.

use crate::{each_way, scratch_store};
use deltaic_format::Dtype;
use deltaic_tests::checkpoints::{NamedTensor, safetensors_file, write_folder};
use deltaic_tests::program::watch;
use deltaic_tests::stores::{ScratchStore, assert_same_files};
use deltaic_tests::weights::Stream;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

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
    each_way(|store| {
        store.commit("run", &checkpoint(store, "v0", 1));
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
        let output = store
            .command_on(&elsewhere, &["log", "run"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(NOT_FOUND));
        has(
            &String::from_utf8_lossy(&output.stdout),
            &["nowhere", "init"],
        );
    });
}

#[test]
fn paths_that_are_no_checkpoint_are_refused() {
    each_way(|store| {
        let good = checkpoint(store, "v0", 1);
        store.commit("run", &good);
        let case = |name: &str, code: i32, prepare: &dyn Fn(&Path), parts: &[&str]| {
            let folder = checkpoint(store, name, 2);
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
    });
}

/// A safetensors file that announces `header` and has `data_len` zero bytes of data.
fn raw_file(header: &str, data_len: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data_len, 0);
    file
}

#[test]
fn every_fault_of_a_header_is_named_with_its_file() {
    each_way(|store| {
        let two = |a: &str, b: &str| format!(r#"{{"a": {a}, "b": {b}}}"#);
        let entry = |dtype: &str, shape: &str, from: u64, to: u64| {
            format!(r#"{{"dtype": "{dtype}", "shape": {shape}, "data_offsets": [{from}, {to}]}}"#)
        };
        let good = |from, to| entry("U8", "[4]", from, to);
        let announcing = |len: u64| {
            let mut file = raw_file(&two(&good(0, 4), &good(4, 8)), 8);
            file[..8].copy_from_slice(&len.to_le_bytes());
            file
        };
        let file = |header: &str| raw_file(header, 8);
        for (kind, bytes, parts) in [
            (
                "2^63",
                announcing(1 << 63),
                ["limit", "9223372036854775808"],
            ),
            (
                "over 100 MB",
                announcing(100_000_001),
                ["limit", "100000001"],
            ),
            (
                "overlap",
                file(&two(&good(0, 4), &good(2, 6))),
                ["\"b\"", "within the tensor before"],
            ),
            (
                "reversed",
                file(&two(&good(4, 0), &good(4, 8))),
                ["\"a\"", "before it begins"],
            ),
            (
                "hole",
                file(&two(&good(0, 4), &good(6, 10))),
                ["\"b\"", "belong to no tensor"],
            ),
            (
                "trailing",
                raw_file(&two(&good(0, 4), &good(4, 8)), 9),
                ["1 byte", "too many"],
            ),
            (
                "named twice",
                file(&format!(r#"{{"a": {}, "a": {}}}"#, good(0, 4), good(4, 8))),
                ["\"a\"", "twice"],
            ),
            (
                "shape overflow",
                file(&two(
                    &good(0, 4),
                    &entry("F64", "[4294967296, 4294967296]", 4, 8),
                )),
                ["\"b\"", "shape"],
            ),
            (
                "dtype",
                file(&two(&good(0, 4), &entry("F12", "[4]", 4, 8))),
                ["\"b\"", "\"F12\""],
            ),
            ("no JSON", file("{nonsense"), ["header", "not valid"]),
        ] {
            let folder = checkpoint(store, kind, 1);
            fs::create_dir_all(folder.join("sub")).unwrap();
            fs::write(folder.join("sub/bad.safetensors"), bytes).unwrap();
            let message = store.fails(1, &["commit", "run", text(&folder)]);
            has(&message, &["sub/bad.safetensors", parts[0], parts[1]]);
        }
        let repos = store.json(&["repo", "list"]);
        assert_eq!(repos["repos"].as_array().map(Vec::len), Some(0));
        store.verify();
    });
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    each_way(|store| {
        store.commit("run", &checkpoint(store, "v0", 1));
        let outside = store.path("outside.safetensors");
        fs::write(&outside, safetensors_file(&tensors(1))).unwrap();
        // In an index,
        for name in ["../outside.safetensors", text(&outside), "a\\u0000b"] {
            let folder = checkpoint(store, "index", 1);
            let index = format!(r#"{{"weight_map": {{"a": "{name}"}}}}"#);
            fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
            let message = store.fails(1, &["commit", "run", text(&folder)]);
            has(&message, &["model.safetensors.index.json"]);
        }
        // and on the command line, where an argument never has a NUL.
        let out = store.place("out");
        for path in ["../outside.safetensors", "/etc/hostname", "a/../../b"] {
            let revision = format!("run@v0:{path}");
            store.fails(2, &["export", &revision, "-o", &out]);
            store.fails(2, &["pull", &revision, "-o", &out]);
        }
        for repo in ["../run", "/run", "a/../b"] {
            store.fails(2, &["commit", repo, &store.place("v0")]);
        }
        assert!(!Path::new(&out).exists(), "nothing was written");
    });
}

#[test]
fn a_hugging_face_snapshot_is_a_checkpoint() {
    each_way(|store| {
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
    });
}

#[test]
fn a_lost_race_is_told() {
    each_way(|store| {
        let (first, second) = (checkpoint(store, "v0", 1), checkpoint(store, "v1", 2));
        store.json(&["commit", "run", text(&first), "--expect", "none"]);
        store.commit("run", &second);
        for expect in ["none", "v0"] {
            let args = ["commit", "run", text(&first), "--expect", expect];
            has(&store.fails(CONFLICT, &args), &["run@main"]);
        }
        store.json(&["commit", "run", text(&first), "--expect", "v1"]);
    });
}

#[test]
fn a_store_of_another_format_is_left_alone() {
    let store = scratch_store();
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
    let store = scratch_store();
    store.commit("run", &checkpoint(&store, "v0", 1));
    let large = store.path("large.safetensors");
    let content = Stream::new(1).bytes(32 << 20, u64::MAX);
    let tensor = NamedTensor::flat("a", Dtype::BF16, content);
    fs::write(&large, safetensors_file(&[tensor])).unwrap();
    // A commit that is halted in the middle.
    let mut other = (store.command(&["commit", "run", text(&large)]))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let scratch = store.path("store/tmp");
    let under_way = watch(&mut other, || fs::read_dir(&scratch).unwrap().count() > 0);
    let pid = Pid::from_child(&other);
    kill_process(pid, Signal::STOP).unwrap();
    let refused = store.run(&["log", "run"]);
    kill_process(pid, Signal::CONT).unwrap();
    assert!(under_way && other.wait().unwrap().success());
    assert_eq!(refused.status.code(), Some(UNAVAILABLE));
    has(
        &String::from_utf8_lossy(&refused.stdout),
        &["in use", &other.id().to_string()],
    );
    let log = store.json(&["log", "run"]);
    assert_eq!(log["commits"][0]["version"], 1, "the other one went on");
}

#[test]
fn half_written_packs_are_swept_and_damaged_ones_found() {
    let store = scratch_store();
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
    each_way(|store| {
        let versions = [1, 2].map(|seed| checkpoint(store, &format!("v{seed}"), seed));
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
        let pull = ["pull", "run@v1", "-o", &replica];
        has(&store.fails(CORRUPT, &pull), &["b"]);
        has(
            &String::from_utf8_lossy(&store.run(&pull).stdout),
            &["--repair"],
        );
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
    });
}
