//! The program over a server: the same commands, answers, messages and exit codes as on the store itself. What this
//! prevents: two command lines that drift apart.

use crate::scratch_store;
use deltaic_format::Dtype;
use deltaic_tests::checkpoints::{NamedTensor, write_folder};
use deltaic_tests::servers::{Going, RunningServer};
use deltaic_tests::stores::{ScratchStore, answer, assert_same_files};
use deltaic_tests::weights::Stream;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// A checkpoint that differs from those of other versions in a few elements.
fn checkpoint(store: &ScratchStore, version: u8) -> PathBuf {
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
    fs::write(folder.join("config.json"), format!("{{\"v\": {version}}}")).unwrap();
    folder
}

fn text(path: &Path) -> &str {
    path.to_str().expect("scratch paths are UTF-8")
}

/// A store with three versions, a branch with one of its own, and a tag.
fn filled() -> ScratchStore {
    let store = scratch_store();
    for version in 0..3 {
        store.commit("acme/policy", &checkpoint(&store, version));
    }
    store.json(&["branch", "create", "acme/policy", "dev", "v1"]);
    store.json(&["revert", "acme/policy@dev", "v0"]);
    store.json(&["tag", "create", "acme/policy", "best", "v2"]);
    store
}

/// What a command says, apart from what is measured.
fn said(output: &std::process::Output) -> (Option<i32>, Value) {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut value: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
        let talk = String::from_utf8_lossy(&output.stderr);
        panic!("{text:?}: {error}; {talk}")
    });
    for measured in ["store_bytes", "seconds", "dir"] {
        if let Some(value) = value.as_object_mut() {
            value.remove(measured);
        }
    }
    if let Some(hint) = value.pointer_mut("/error/hint") {
        // Commands in hints name the place that was named for this one.
        let words = hint.as_str().unwrap_or_default().split("`deltaic ");
        let words = words.map(|part| match part.strip_prefix("--") {
            Some(flag) => flag.splitn(3, ' ').last().unwrap_or_default(),
            None => part,
        });
        *hint = words.collect::<Vec<_>>().join("`deltaic ").into();
    }
    (output.status.code(), value)
}

#[test]
fn everything_reads_the_same() {
    let store = filled();
    let out = |place: &str, name: &str| store.place(&format!("{place}-{name}"));
    let commands: Vec<Vec<&str>> = [
        "log acme/policy",
        "log acme/policy@dev -n 1 --stat",
        "show acme/policy@v1",
        "show acme/policy:config.json",
        "diff acme/policy@v0..v2",
        "plan acme/policy v0 v2",
        "plan acme/policy none main",
        "stats",
        "stats acme/policy",
        "repo list",
        "branch list acme/policy",
        "tag list",
        "verify --read-data",
        "log acme/polic",
        "log acme/policy@v9",
        "log acme/policy@mian",
        "show acme/policy@main:nothing",
        "diff acme/policy@v0..none",
        "branch create acme/policy dev",
        "branch delete acme/policy nothing",
        "tag delete acme/policy nothing",
        "tag create acme/policy best",
        "branch delete acme/policy dev",
        "revert acme/policy v9",
        "revert acme/policy@nothing v1",
    ]
    .map(|line| line.split(' ').collect())
    .into();
    let mut of_store = Vec::new();
    for args in &commands {
        of_store.push(said(&store.run(args)));
    }
    for name in ["v0", "main"] {
        let revision = format!("acme/policy@{name}");
        let exported = store.json(&["export", &revision, "-o", &out("store", name)]);
        assert_eq!(exported["files"], 2);
    }
    let pulls = ["v0", "v2", "v1"].map(|version| format!("acme/policy@{version}"));
    let replicas = ["store", "server"].map(|place| out(place, "replica"));
    for revision in &pulls {
        of_store.push(said(&store.run(&["pull", revision, "-o", &replicas[0]])));
    }

    let server = RunningServer::new(&store);
    let mut expected = of_store.into_iter();
    for args in &commands {
        let found = said(&server.run(args));
        assert_eq!(Some(found), expected.next(), "{args:?}");
    }
    for name in ["v0", "main"] {
        let revision = format!("acme/policy@{name}");
        server.json(&["export", &revision, "-o", &out("server", name)]);
        let [found, made] = ["server", "store"].map(|place| out(place, name));
        assert_same_files(found.as_ref(), made.as_ref());
    }
    for revision in &pulls {
        let found = said(&server.run(&["pull", revision, "-o", &replicas[1]]));
        assert_eq!(Some(found), expected.next(), "{revision}");
    }
    assert_same_files(replicas[1].as_ref(), &store.path("v1"));
    assert_eq!(server.json(&["verify", &replicas[1]])["ok"], true);
    assert_eq!(server.json(&["doctor"])["ok"], true);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn commits_travel_as_patches_and_come_back_as_they_were() {
    let store = scratch_store();
    let server = RunningServer::new(&store);
    let shadow = store.place("shadow");
    let folders = [0, 1, 2].map(|version| checkpoint(&store, version));
    for (version, folder) in folders.iter().enumerate() {
        let args = ["commit", "acme/policy", text(folder), "--shadow", &shadow];
        let made = server.json(&args);
        assert_eq!(made["version"], version, "{made}");
        assert_eq!(made["elements"], 30_000);
    }
    let reverted = server.json(&["revert", "acme/policy", "v0"]);
    assert_eq!(reverted["version"], 3);
    let failed = said(&server.run(&[
        "commit",
        "acme/policy",
        text(&folders[1]),
        "--shadow",
        &shadow,
        "--expect",
        "v1",
    ]));
    assert_eq!(failed.0, Some(11), "{}", failed.1);
    // Where the user's cache is: here that is the scratch folder.
    let made = server.json(&["commit", "acme/policy", text(&folders[2])]);
    assert_eq!(made["version"], 4);
    assert!(store.path("home/.cache/deltaic/shadows").is_dir());
    for (version, folder) in [(0, 0), (1, 1), (2, 2), (3, 0), (4, 2)] {
        let out = store.place(&format!("out{version}"));
        let revision = format!("acme/policy@v{version}");
        server.json(&["export", &revision, "-o", &out]);
        assert_same_files(out.as_ref(), &folders[folder]);
    }
    assert_eq!(server.stop(), Some(0));
    store.verify();
}

#[test]
fn a_watch_tells_of_every_version_once() {
    let store = filled();
    let server = RunningServer::new(&store);
    let address = server.address().to_owned();
    let list = store.place("list");
    let exec = format!("echo $DELTAIC_REPO $DELTAIC_BRANCH $DELTAIC_VERSION >> {list}; exit 1");
    let args = ["watch", "acme/policy", "--after", "v0", "--exec", &exec];
    let mut watch = Going::new(server.command(&args));
    let version = |document: Value| document["version"].as_u64().expect("a number");
    assert_eq!(version(watch.next_document()), 1);
    let second = watch.next_document();
    assert_eq!(second["message"], "step");
    assert_eq!(version(second), 2);
    server.json(&["revert", "acme/policy", "v0"]);
    assert_eq!(version(watch.next_document()), 3);
    assert_eq!(server.stop(), Some(0));
    store.commit("acme/policy", &checkpoint(&store, 4));
    let server = RunningServer::start(&store, "store", &address);
    assert_eq!(
        version(watch.next_document()),
        4,
        "made while there was no server"
    );
    server.json(&["revert", "acme/policy", "v1"]);
    assert_eq!(version(watch.next_document()), 5);
    assert_eq!(watch.stop().code(), Some(130));
    let list = fs::read_to_string(list).unwrap();
    let expected: Vec<String> = (1..=5).map(|v| format!("acme/policy main {v}")).collect();
    let found: Vec<&str> = list.lines().collect();
    // The last command may not have run when the watch was stopped.
    assert!(
        found.len() >= 4 && expected.iter().zip(&found).all(|(a, b)| a == b),
        "{found:?}"
    );
}

#[test]
fn a_replica_that_follows_goes_to_the_newest_version() {
    let store = filled();
    let server = RunningServer::new(&store);
    let address = server.address().to_owned();
    let replica = store.place("replica");
    let args = ["pull", "acme/policy", "-o", &replica, "--follow"];
    let mut follow = Going::new(server.command(&args));
    let first = follow.next_document();
    assert_eq!((&first["from"], &first["to"]), (&Value::Null, &2.into()));
    server.json(&["revert", "acme/policy", "v0"]);
    let next = follow.next_document();
    assert_eq!((&next["from"], &next["to"]), (&2.into(), &3.into()));
    assert_eq!(server.stop(), Some(0));
    for version in [4, 5] {
        store.commit("acme/policy", &checkpoint(&store, version));
    }
    let server = RunningServer::start(&store, "store", &address);
    let next = follow.next_document();
    assert_eq!(
        (&next["from"], &next["to"]),
        (&3.into(), &5.into()),
        "at once"
    );
    assert_eq!(follow.stop().code(), Some(130));
    assert_same_files(replica.as_ref(), &store.path("v5"));
    assert_eq!(server.json(&["verify", &replica])["ok"], true);
}

#[test]
fn a_store_is_followed_too_and_stays_free_for_others() {
    let store = filled();
    let replica = store.place("replica");
    let mut follow = store.command(&["pull", "acme/policy", "-o", &replica, "--follow"]);
    // Whoever looks into it for a moment is waited for.
    let patient = ["--wait", "1m"];
    follow.args(patient);
    let mut follow = Going::new(follow);
    assert_eq!(follow.next_document()["to"], 2);
    let args = ["revert", "acme/policy", "v0", "--wait", "1m"];
    store.json(&args);
    assert_eq!(follow.next_document()["to"], 3);
    assert_eq!(follow.stop().code(), Some(130));
}

#[test]
fn a_history_is_pushed_and_cloned_with_its_ids() {
    let store = filled();
    let other = store.place("other");
    let args = ["init"];
    answer(&args, &store.command_on(&other, &args).output().unwrap());
    let server = RunningServer::start(&store, "other", "127.0.0.1:0");
    let pushed = store.json(&["push", "acme/policy", "--to", &server.url]);
    assert_eq!(
        (&pushed["versions"], &pushed["version"]),
        (&3.into(), &2.into())
    );
    let again = store.json(&["push", "acme/policy", "--to", &server.url]);
    assert_eq!(
        (&again["versions"], &again["sent_bytes"]),
        (&0.into(), &0.into())
    );
    let pushed = store.json(&["push", "acme/policy@dev", "--to", &server.url]);
    assert_eq!(
        (&pushed["versions"], &pushed["version"]),
        (&1.into(), &2.into()),
        "of its own"
    );
    let third = store.place("third");
    let source = format!("{}/acme/policy", server.url);
    let args = ["clone", &source];
    let cloned = answer(&args, &store.command_on(&third, &args).output().unwrap());
    assert_eq!(cloned["versions"], 3);
    let args = ["log", "acme/policy", "-n", "3"];
    let log = |output: std::process::Output| {
        let mut log = answer(&args, &output);
        let commits = log["commits"].as_array_mut().expect("a list");
        for commit in commits {
            commit["refs"].take();
        }
        log
    };
    let here = log(store.run(&args));
    assert_eq!(log(server.run(&args)), here);
    assert_eq!(log(store.command_on(&third, &args).output().unwrap()), here);
    let out = store.place("out");
    let args = ["export", "acme/policy@v1", "-o", &out];
    answer(&args, &store.command_on(&third, &args).output().unwrap());
    assert_same_files(out.as_ref(), &store.path("v1"));
    // Both have gone on, each in its own way.
    store.json(&["revert", "acme/policy", "v0"]);
    server.json(&["revert", "acme/policy", "v1"]);
    let (code, said) = said(&store.run(&["push", "acme/policy", "--to", &server.url]));
    assert_eq!(code, Some(11), "{said}");
}

#[test]
fn a_server_that_is_not_there_is_unavailable() {
    let store = scratch_store();
    let url = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let args = ["--endpoint", &url, "--json", "--wait", "0s", "repo", "list"];
    let (code, error) = said(&store.bare_command(&args).output().unwrap());
    assert_eq!(code, Some(16), "{error}");
    assert_eq!(error["error"]["kind"], "unavailable");
    let server = RunningServer::new(&store);
    let both = format!("{url},{}", server.url);
    let args = ["--endpoint", &both, "--json", "repo", "list"];
    let (code, repos) = said(&store.bare_command(&args).output().unwrap());
    assert_eq!(
        (code, &repos["repos"]),
        (Some(0), &Value::Array(Vec::new()))
    );
}

#[test]
fn a_server_is_named_by_flag_environment_or_config_file() {
    let store = filled();
    let server = RunningServer::new(&store);
    let repos = |command: &mut std::process::Command| said(&command.output().unwrap());
    let there = |(code, said): (Option<i32>, Value)| {
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(said["repos"][0]["repo"], "acme/policy");
    };
    let list = ["--json", "repo", "list"];
    there(repos(
        store
            .bare_command(&list)
            .env("DELTAIC_ENDPOINT", &server.url),
    ));
    there(repos(
        (store.bare_command(&list).args(["--endpoint", &server.url]))
            .env("DELTAIC_STORE", "/nowhere"),
    ));
    let folder = store.path("home/.config/deltaic");
    fs::create_dir_all(&folder).unwrap();
    let config = format!("endpoint = {:?}\nstall_timeout = \"5s\"\n", server.url);
    fs::write(folder.join("config.toml"), config).unwrap();
    there(repos(&mut store.bare_command(&list)));
    let both = store.place("store");
    let mut command = store.bare_command(&list);
    command.args(["--endpoint", &server.url, "--store", &both]);
    assert_eq!(repos(&mut command).0, Some(2));
    let mut command = store.bare_command(&list);
    command.envs([("DELTAIC_ENDPOINT", &server.url), ("DELTAIC_STORE", &both)]);
    assert_eq!(repos(&mut command).0, Some(2));
}
