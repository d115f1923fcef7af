//! `kill -9` of servers and of clients at random moments of commits, pulls and pushes: a hundred rounds. What this
//! prevents: a version that was acknowledged and is lost, a number that is left out or given twice, a commit that is made twice,
//! a replica that is no version, spools that stay behind.
//!
//! A server that was killed is started again at once at the same address, and the client has to get through by itself; a
//! client that was killed is run again with the same words.

use crate::scratch_store;
use deltaic_format::Dtype;
use deltaic_tests::checkpoints::{NamedTensor, write_folder};
use deltaic_tests::servers::{Going, Serving};
use deltaic_tests::stores::{ScratchStore, answer, assert_same_files};
use deltaic_tests::weights::Stream;
use serde_json::Value;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const COMMITS: u64 = 36;
const PULLS: u64 = 40;
const PUSHES: u64 = 24;

fn text(path: &Path) -> &str {
    path.to_str().expect("scratch paths are UTF-8")
}

/// Version `version` of a checkpoint: two dtypes, every tensor changed here and there, and one that is always new.
fn checkpoint(folder: &Path, version: u64) {
    let changed = |seed: u64, len: usize| {
        let mut content = Stream::new(seed).bytes(len, 0x3fff_3fff_3fff_3fff);
        let step = 80 + version as usize % 50;
        content
            .iter_mut()
            .step_by(step)
            .for_each(|byte| *byte ^= version as u8 + 1);
        content
    };
    let bf16 = (0..6).map(|i| {
        NamedTensor::flat(
            &format!("layers.{i}.weight"),
            Dtype::BF16,
            changed(i, 400_000),
        )
    });
    let f32 = (0..2)
        .map(|i| NamedTensor::flat(&format!("norm.{i}"), Dtype::F32, changed(20 + i, 200_000)));
    let new = Stream::new(1000 + version).bytes(300_000, u64::MAX);
    let new = NamedTensor::flat("head.weight", Dtype::BF16, new);
    let tensors = bf16.chain(f32).chain([new]).collect();
    write_folder(folder, &[("model.safetensors", tensors)]).unwrap();
    fs::write(folder.join("notes.txt"), format!("version {version}")).unwrap();
}

/// A server of a store, killed and started again at the same address.
struct Killable<'a> {
    store: &'a ScratchStore,
    folder: PathBuf,
    serving: Option<Serving>,
    url: String,
}

impl<'a> Killable<'a> {
    fn new(store: &'a ScratchStore, folder: &str) -> Self {
        let folder = store.path(folder);
        let serving = Serving::start(store.program(), &store.path("home"), &folder, &[]);
        let url = serving.url().to_owned();
        Self {
            store,
            folder,
            serving: Some(serving),
            url,
        }
    }

    fn kill_and_restart(&mut self) {
        // Dropping it kills it.
        self.serving = None;
        let address = self.url.strip_prefix("http://").expect("it speaks HTTP");
        let (program, home) = (self.store.program(), self.store.path("home"));
        let serving = Serving::start_at(program, &home, &self.folder, address, &[]);
        self.serving = Some(serving);
    }

    fn command(&self, args: &[&str]) -> Command {
        let settings = ["--endpoint", &self.url, "--json", "--progress", "none"];
        let mut command = self.store.bare_command(&settings);
        command.args(args);
        command
    }

    fn json(&self, args: &[&str]) -> Value {
        answer(args, &self.command(args).output().expect("it starts"))
    }

    /// Spools that lie in the store.
    fn spools(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.join("uploads"))
            .into_iter()
            .flatten();
        entries.flatten().map(|entry| entry.path()).collect()
    }

    /// Run a command, kill one of its two ends after a while, and see to it that it is done in the end.
    fn round(&mut self, kill: Kill, tally: &mut Tally, args: &[&str], command: Command) -> Value {
        let again = clone_of(&command);
        let child = spawn(command);
        wait(kill.after);
        match kill.victim {
            Victim::Server => {
                self.kill_and_restart();
                let output = child.wait_with_output().expect("it ends");
                tally.add(kill, true);
                answer(args, &output)
            }
            Victim::Client => {
                let (output, killed) = kill_child(child);
                tally.add(kill, killed);
                if !killed {
                    return answer(args, &output);
                }
                // It had said what came of it, and was about to end.
                if let Ok(said) = serde_json::from_slice(&output.stdout) {
                    return said;
                }
                let mut again = again;
                answer(args, &again.output().expect("it starts"))
            }
        }
    }
}

fn clone_of(command: &Command) -> Command {
    let mut other = Command::new(command.get_program());
    other.args(command.get_args()).env_clear();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            other.env(name, value);
        }
    }
    if let Some(folder) = command.get_current_dir() {
        other.current_dir(folder);
    }
    other
}

fn spawn(mut command: Command) -> Child {
    (command.stdout(Stdio::piped()).stderr(Stdio::piped()))
        .spawn()
        .expect("the program starts")
}

fn wait(time: Duration) {
    // Nothing is ever sent: this waits.
    let (_sender, receiver) = mpsc::channel::<()>();
    let _ = receiver.recv_timeout(time);
}

/// Kill it; says whether that ended it, and not its own end.
fn kill_child(mut child: Child) -> (Output, bool) {
    let _ = child.kill();
    let output = child.wait_with_output().expect("it has ended");
    let killed = output.status.signal() == Some(9);
    (output, killed)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Server,
    Client,
}

#[derive(Debug, Clone, Copy)]
struct Kill {
    victim: Victim,
    after: Duration,
}

/// Whom to kill and when, at random but the same every time: from the beginning of an operation that takes `takes` to a little
/// after its end.
struct Killer {
    random: Stream,
    takes: Duration,
}

impl Killer {
    fn new(seed: u64, takes: Duration) -> Self {
        Self {
            random: Stream::new(seed),
            takes,
        }
    }

    fn next(&mut self) -> Kill {
        Kill {
            victim: match self.random.below(2) {
                0 => Victim::Server,
                _ => Victim::Client,
            },
            after: self.takes.mul_f64(1.1 * self.random.unit()),
        }
    }
}

/// How many were killed before they had ended.
#[derive(Debug, Default)]
struct Tally {
    servers: u64,
    clients: u64,
    late: u64,
}

impl Tally {
    fn add(&mut self, kill: Kill, killed: bool) {
        match (killed, kill.victim) {
            (false, _) => self.late += 1,
            (true, Victim::Server) => self.servers += 1,
            (true, Victim::Client) => self.clients += 1,
        }
    }

    fn check(&self, rounds: u64) {
        println!("{self:?}");
        assert!(
            self.servers >= rounds / 4 && self.clients >= rounds / 5,
            "{self:?}"
        );
    }
}

/// The shorter of two runs' times.
fn shorter(mut run: impl FnMut(u64)) -> Duration {
    let time = |number| {
        let begun = Instant::now();
        run(number);
        begun.elapsed()
    };
    [0, 1].map(time).into_iter().min().expect("two runs")
}

/// Versions and ids of a branch, newest first, as a log says.
fn log(document: &Value) -> Vec<(u64, String)> {
    let commits = document["commits"].as_array().expect("a list").iter();
    commits
        .map(|commit| {
            let version = commit["version"].as_u64().expect("a number");
            (version, commit["commit"].to_string())
        })
        .collect()
}

#[test]
fn commits_survive_the_death_of_either_end() {
    let store = scratch_store();
    let mut server = Killable::new(&store, "store");
    let shadow = store.place("shadow");
    let folder = |version: u64| store.path(&format!("v{version}"));
    let args = |version: u64| {
        let folder = store.place(&format!("v{version}"));
        let step = format!("step={version}");
        let words = ["commit", "acme/policy", &folder, "--shadow", &shadow];
        let mut args = words.map(str::to_owned).to_vec();
        args.extend([
            "-m".to_owned(),
            "a step".to_owned(),
            "--meta".to_owned(),
            step,
        ]);
        args
    };
    fn borrowed(args: &[String]) -> Vec<&str> {
        args.iter().map(String::as_str).collect()
    }
    for version in 0..COMMITS + 3 {
        checkpoint(&folder(version), version);
    }
    server.json(&borrowed(&args(0)));
    let takes = shorter(|run| {
        server.json(&borrowed(&args(1 + run)));
    });
    let mut killer = Killer::new(1, takes);
    let mut tally = Tally::default();
    for version in 3..COMMITS + 3 {
        let kill = killer.next();
        let args = args(version);
        let args = borrowed(&args);
        let command = server.command(&args);
        let made = server.round(kill, &mut tally, &args, command);
        assert_eq!(made["version"], version, "{kill:?}: {made}");
        assert_eq!(server.spools(), Vec::<PathBuf>::new(), "{kill:?}");
    }
    tally.check(COMMITS);
    let found = log(&server.json(&["log", "acme/policy", "-n", "1000"]));
    let numbers = found.iter().map(|(version, _)| *version);
    assert!(numbers.eq((0..COMMITS + 3).rev()), "{found:?}");
    for version in 0..COMMITS + 3 {
        let out = store.path(&format!("out{version}"));
        let revision = format!("acme/policy@v{version}");
        server.json(&["export", &revision, "-o", text(&out)]);
        assert_same_files(&out, &folder(version));
        fs::remove_dir_all(out).unwrap();
    }
    let verified = server.json(&["verify", "--read-data"]);
    assert_eq!(verified["ok"], true, "{verified}");
}

#[test]
fn pulls_survive_the_death_of_either_end() {
    const VERSIONS: u64 = 5;
    let store = scratch_store();
    let folder = |version: u64| store.path(&format!("v{version}"));
    for version in 0..VERSIONS {
        checkpoint(&folder(version), version);
        store.commit("acme/policy", &folder(version));
    }
    let mut server = Killable::new(&store, "store");
    let replica = store.path("replica");
    let args = |version: u64, out: &Path| {
        let revision = format!("acme/policy@v{version}");
        ["pull", &revision, "-o", text(out)].map(str::to_owned)
    };
    let pull = |server: &Killable<'_>, version: u64, out: &Path| {
        server.json(&args(version, out).each_ref().map(String::as_str))
    };
    let first = shorter(|run| {
        pull(&server, run, &store.path(&format!("first{run}")));
    });
    pull(&server, 0, &replica);
    let takes = shorter(|run| {
        pull(&server, 4 - 4 * run, &replica);
    });
    let (mut killer, mut first) = (Killer::new(2, takes), Killer::new(3, first));
    let mut choice = Stream::new(4);
    let mut tally = Tally::default();
    let mut held = 0;
    for number in 0..PULLS {
        // Every fourth one has nothing yet.
        let is_first = number % 4 == 3;
        let target = match is_first {
            true => choice.below(VERSIONS),
            false => (held + 1 + choice.below(VERSIONS - 1)) % VERSIONS,
        };
        let out = match is_first {
            true => store.path(&format!("fresh{number}")),
            false => replica.clone(),
        };
        let kill = if is_first {
            first.next()
        } else {
            killer.next()
        };
        let words = args(target, &out);
        let words = words.each_ref().map(String::as_str);
        if kill.victim == Victim::Client && !is_first {
            let (_, killed) = {
                let child = spawn(server.command(&words));
                wait(kill.after);
                kill_child(child)
            };
            tally.add(kill, killed);
            // Whatever reads it next finds the old version or the new one.
            let verified = server.json(&["verify", text(&out)]);
            assert_eq!(verified["ok"], true, "{kill:?}: {verified}");
            let found = verified["version"].as_u64();
            assert!(
                found == Some(held) || found == Some(target),
                "{held} to {target}: {verified}"
            );
            assert_same_files(&out, &folder(found.expect("a version")));
            pull(&server, target, &out);
        } else {
            let command = server.command(&words);
            server.round(kill, &mut tally, &words, command);
        }
        assert_same_files(&out, &folder(target));
        match is_first {
            true => fs::remove_dir_all(out).unwrap(),
            false => held = target,
        }
    }
    tally.check(PULLS);
    let verified = server.json(&["verify", "--read-data"]);
    assert_eq!(verified["ok"], true, "{verified}");
    assert_eq!(server.json(&["verify", text(&replica)])["ok"], true);
}

#[test]
fn pushes_survive_the_death_of_either_end() {
    let store = scratch_store();
    for version in 0..3 {
        let folder = store.path(&format!("v{version}"));
        checkpoint(&folder, version);
        store.commit("acme/policy", &folder);
    }
    let other = store.place("other");
    let init = ["init"];
    answer(&init, &store.command_on(&other, &init).output().unwrap());
    let mut server = Killable::new(&store, "other");
    let url = server.url.clone();
    let words = ["push", "acme/policy", "--to", &url, "--wait", "1m"];
    let mut versions = 3;
    // Back to this and that version: every one of them is a patch from the one before.
    let mut more = || {
        for _ in 0..2 {
            let target = format!("v{}", versions % 3);
            store.json(&[
                "revert",
                "acme/policy",
                &target,
                "-m",
                &versions.to_string(),
            ]);
            versions += 1;
        }
        versions
    };
    store.json(&words);
    let takes = shorter(|_| {
        more();
        store.json(&words);
    });
    let mut killer = Killer::new(5, takes / 2);
    let mut tally = Tally::default();
    for _ in 0..PUSHES {
        let versions = more();
        let kill = killer.next();
        let pushed = server.round(kill, &mut tally, &words, store.command(&words));
        assert_eq!(pushed["version"], versions - 1, "{kill:?}: {pushed}");
        assert_eq!(server.spools(), Vec::<PathBuf>::new(), "{kill:?}");
    }
    tally.check(PUSHES);
    let args = ["log", "acme/policy", "-n", "1000"];
    let (here, there) = (log(&store.json(&args)), log(&server.json(&args)));
    assert_eq!(here, there);
    assert_eq!(there.len() as u64, more() - 2);
    let verified = server.json(&["verify", "--read-data"]);
    assert_eq!(verified["ok"], true, "{verified}");
}

#[test]
fn a_watch_misses_nothing_and_doubles_nothing_when_its_server_is_killed() {
    let store = scratch_store();
    for version in 0..2 {
        let folder = store.path(&format!("v{version}"));
        checkpoint(&folder, version);
        store.commit("acme/policy", &folder);
    }
    let mut server = Killable::new(&store, "store");
    let mut watch = Going::new(server.command(&["watch", "acme/policy", "--after", "v0"]));
    let mut newest = 1;
    for round in 0..6 {
        for _ in 0..round % 3 {
            newest += 1;
            server.json(&["revert", "acme/policy", &format!("v{}", newest % 2)]);
        }
        server.kill_and_restart();
        newest += 1;
        server.json(&["revert", "acme/policy", &format!("v{}", newest % 2)]);
    }
    for version in 1..=newest {
        assert_eq!(watch.next_document()["version"], version);
    }
    assert_eq!(watch.stop().code(), Some(130));
}

#[test]
fn a_server_that_others_could_reach_has_to_be_allowed_to() {
    let store = scratch_store();
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let message = store.fails(2, &["serve", "--listen", listen]);
        assert!(message.contains("other machines"), "{message}");
    }
    let _one = Killable::new(&store, "store");
    let message = store.fails(16, &["serve", "--listen", "127.0.0.1:0"]);
    assert!(message.contains("in use"), "{message}");
}
