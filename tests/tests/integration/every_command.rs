//! Every command with `--json`, end to end: it succeeds and prints one document with the keys that scripts rely on
//! (DESIGN §9).

use crate::each_way;
use deltaic_format::Dtype;
use deltaic_tests::checkpoints::{NamedTensor, write_folder};
use deltaic_tests::servers::{Going, RunningServer};
use deltaic_tests::stores::{Access, ScratchStore, answer, assert_same_files};
use deltaic_tests::weights::Stream;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;

const NEW_VERSION: &[&str] = &[
    "repo",
    "branch",
    "version",
    "commit",
    "elements",
    "changed",
    "full_bytes",
    "patch_bytes",
    "new_bytes",
];
const REF: &[&str] = &["repo", "name", "version", "commit", "time"];
const COPIED: &[&str] = &[
    "repo",
    "branch",
    "version",
    "commit",
    "versions",
    "sent_bytes",
    "from",
    "to",
];
const WATCHED: [&str; 7] = [
    "repo", "branch", "version", "commit", "message", "meta", "time",
];
const PULL: &[&str] = &[
    "from",
    "to",
    "received_bytes",
    "changed",
    "seconds",
    "proof",
];

/// Checks answers, and remembers which commands gave one.
struct Checker<'a> {
    store: &'a ScratchStore,
    seen: RefCell<BTreeSet<String>>,
}

impl Checker<'_> {
    /// Run a command and check that its answer has `keys`: names, or JSON pointers to what lies deeper.
    fn check(&self, args: &[&str], keys: &[&str]) -> Value {
        let answer = self.store.json(args);
        for key in keys {
            let pointer = if key.starts_with('/') {
                (*key).to_owned()
            } else {
                format!("/{key}")
            };
            assert!(
                answer.pointer(&pointer).is_some(),
                "{args:?} has no {key}: {answer}"
            );
        }
        self.seen.borrow_mut().insert(args[0].to_owned());
        answer
    }
}

/// The commands that the help lists.
fn listed(store: &ScratchStore) -> BTreeSet<String> {
    let help = store.bare_command(&["--help"]).output().unwrap();
    assert!(help.status.success());
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, list) = help.split_once("Commands:\n").expect("a list of commands");
    (list.lines())
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  "))
        // What is indented further goes on with the line before.
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| Some(line.split_whitespace().next()?.to_owned()))
        .filter(|name| name != "help")
        .collect()
}

fn checkpoints(store: &ScratchStore) -> [PathBuf; 2] {
    [0, 1].map(|version| {
        let content = |seed: u64| {
            let mut content = Stream::new(seed).bytes(20_000, 0x3fff_3fff_3fff_3fff);
            content.iter_mut().step_by(500).for_each(|b| *b ^= version);
            content
        };
        let tensors = (0..3).map(|i| {
            let name = format!("model.layers.{i}.weight");
            NamedTensor::flat(&name, Dtype::BF16, content(i))
        });
        let folder = store.path(&format!("v{version}"));
        write_folder(&folder, &[("model.safetensors", tensors.collect())]).unwrap();
        folder
    })
}

#[test]
fn answers_with_the_keys_that_scripts_rely_on() {
    each_way(|store| {
        let checker = Checker {
            store,
            seen: RefCell::default(),
        };
        let check = |args: &[&str], keys: &[&str]| checker.check(args, keys);
        let folders = checkpoints(store);
        let path = |version: usize| folders[version].to_str().expect("UTF-8");
        let (replica, out) = (store.place("replica"), store.place("out"));

        let in_folder = store.access() == Access::Folder;
        if in_folder {
            let made = check(&["init"], &["store", "created"]);
            assert_eq!(made["created"], false, "it is there already");
        }
        let first = check(
            &["commit", "acme/policy", path(0), "-m", "base"],
            NEW_VERSION,
        );
        assert_eq!(first["version"], 0);
        let second = check(
            &[
                "commit",
                "acme/policy@main",
                path(1),
                "--meta",
                "step=7",
                "--expect",
                "v0",
            ],
            NEW_VERSION,
        );
        assert_eq!(
            (&second["version"], &second["elements"], &second["changed"]),
            (&1.into(), &30_000.into(), &120.into())
        );

        let log = check(
            &["log", "acme/policy"],
            &[
                "/commits/0/version",
                "/commits/0/commit",
                "/commits/0/parents",
                "/commits/0/time",
                "/commits/0/message",
                "/commits/0/meta/step",
            ],
        );
        assert_eq!(
            log["commits"][0]["commit"], second["commit"],
            "newest first"
        );
        assert_eq!(log["commits"][1]["message"], "base");
        let show = check(
            &["show", "acme/policy@step=7"],
            &[
                "/tensors/0/name",
                "/tensors/0/dtype",
                "/tensors/0/shape",
                "/tensors/0/id",
                "/tensors/0/changed",
                "/tensors/0/patch_bytes",
            ],
        );
        for key in NEW_VERSION.iter().filter(|key| **key != "branch") {
            assert_eq!(show[key], second[key], "{key} of show and commit");
        }
        let diff = check(
            &["diff", "acme/policy@v0..v1"],
            &[
                "from",
                "to",
                "changed",
                "/tensors/0/name",
                "/tensors/0/changed",
            ],
        );
        assert_eq!((&diff["from"], &diff["changed"]), (&0.into(), &120.into()));
        let plan = check(
            &["plan", "acme/policy", "v0", "v1"],
            &["from", "to", "bytes", "coding", "route"],
        );

        check(
            &["export", "acme/policy@v0", "-o", &out],
            &["files", "bytes"],
        );
        assert_same_files(out.as_ref(), &folders[0]);
        let joined = check(&["pull", "acme/policy@v0", "-o", &replica], PULL);
        assert_eq!(joined["from"], Value::Null);
        let pulled = check(&["pull", "acme/policy", "-o", &replica], PULL);
        assert_eq!(
            (
                &pulled["from"],
                &pulled["to"],
                &pulled["received_bytes"],
                &pulled["proof"]
            ),
            (&0.into(), &1.into(), &plan["bytes"], &"touched".into())
        );
        assert_same_files(replica.as_ref(), &folders[1]);
        let reverted = check(&["revert", "acme/policy", "v0"], NEW_VERSION);
        assert_eq!(
            (&reverted["version"], &reverted["changed"]),
            (&2.into(), &120.into())
        );

        check(&["branch", "create", "acme/policy", "dev", "v1"], REF);
        check(&["branch", "list", "acme/policy"], &["/branches/1/name"]);
        let deleted = check(&["branch", "delete", "acme/policy", "dev"], REF);
        // As people are told it, by its beginning.
        let id = &deleted["commit"].as_str().expect("an id")[..12];
        let again = check(&["branch", "create", "acme/policy", "dev", id], REF);
        assert_eq!(again["commit"], deleted["commit"], "a deletion is undone");
        check(&["tag", "create", "acme/policy", "best", "dev"], REF);
        let tags = check(&["tag", "list", "acme/policy"], &["/tags/0/name"]);
        assert_eq!(tags["tags"][0]["commit"], second["commit"]);
        check(&["tag", "delete", "acme/policy", "best"], REF);
        let repos = check(&["repo", "list"], &["/repos/0/repo"]);
        assert_eq!(repos["repos"][0]["repo"], "acme/policy");

        for args in [vec!["verify", "--read-data"], vec!["verify", &replica]] {
            let verified = check(&args, &["ok", "problems"]);
            assert_eq!(verified["ok"], true, "{verified}");
        }
        let stats = check(
            &["stats"],
            &[
                "commits",
                "store_bytes",
                "base_bytes",
                "edge_bytes",
                "longest_chain",
            ],
        );
        assert_eq!(stats["commits"], 3);

        assert_eq!(check(&["doctor"], &["/checks/0"])["ok"], true);
        for shell in ["bash", "zsh", "fish"] {
            let completions = check(&["completions", shell], &["shell", "script"]);
            let script = completions["script"].as_str().expect("a text");
            assert!(
                script.contains("deltaic") && script.contains("commit"),
                "{shell}"
            );
            assert!(!script.contains("under-test"), "{shell}");
        }
        let manual = check(&["man"], &["/pages/0/file"]);
        assert_eq!(manual["pages"][0]["file"], "deltaic.1");
        let demo = check(
            &["demo", "--params", "2M", "--commits", "3"],
            &["/versions/2/patch_bytes", "/pulls/0/received_bytes"],
        );
        assert_eq!(demo["ok"], true, "{demo}");

        let other = store.place("other");
        let args = ["init"];
        answer(&args, &store.command_on(&other, &args).output().unwrap());
        // It has said where it listens.
        let server = RunningServer::start(store, "other", "127.0.0.1:0");
        checker.seen.borrow_mut().insert("serve".to_owned());
        let pushed = check(&["push", "acme/policy", "--to", &server.url], COPIED);
        assert_eq!(pushed["versions"], 3);
        let source = format!("{}/acme/policy", server.url);
        if in_folder {
            let cloned = check(&["clone", &source], COPIED);
            assert_eq!(cloned["versions"], 0, "they are here already");
        }
        let args = ["watch", "acme/policy", "--after", "v1"];
        let mut watch = Going::new(server.command(&args));
        let seen = watch.next_document();
        for key in WATCHED {
            assert!(seen.get(key).is_some(), "{key}: {seen}");
        }
        checker.seen.borrow_mut().insert("watch".to_owned());

        let mut seen = checker.seen.into_inner();
        if !in_folder {
            // They make a store, which is done on the machine that has it.
            seen.extend(["init", "clone"].map(str::to_owned));
        }
        assert_eq!(seen, listed(store), "every command");
    });
}

#[test]
fn what_a_seed_holds_is_not_received() {
    each_way(|store| {
        let folders = checkpoints(store);
        store.commit("run", &folders[0]);
        let seed = folders[0].to_str().expect("UTF-8");
        let replica = store.place("replica");
        let pulled = store.json(&["pull", "run", "-o", &replica, "--seed", seed]);
        assert_eq!(
            (&pulled["seeded"], &pulled["whole"], &pulled["patched"]),
            (&3.into(), &0.into(), &0.into())
        );
        // Of weights nothing is received; the header of their file may be.
        let file = std::fs::read(folders[0].join("model.safetensors")).unwrap();
        let header = file.len() as u64 - 3 * 20_000;
        let received = pulled["received_bytes"].as_u64().expect("a number");
        assert!(received <= header, "{received} of at most {header}");
        assert_same_files(replica.as_ref(), &folders[0]);
    });
}
