//! Servers as users run them: the program `deltaic serve` in a process of its own.

use crate::program::Program;
use crate::stores::{ScratchStore, answer};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};

/// A server that runs; killed when dropped.
#[derive(Debug)]
pub struct Serving {
    child: Child,
    url: String,
    log: PathBuf,
}

impl Serving {
    /// Let `program` serve `store` with these further arguments, on a port that is free.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(program: &Program, home: &Path, store: &Path, args: &[&str]) -> Self {
        Self::start_at(program, home, store, "127.0.0.1:0", args)
    }

    /// The same at an address.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start_at(
        program: &Program,
        home: &Path,
        store: &Path,
        listen: &str,
        args: &[&str],
    ) -> Self {
        let log = store.with_extension("log");
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log);
        let mut child = program
            .command(home)
            .arg("--store")
            .arg(store)
            .args(["--json", "--wait", "30s", "serve", "--listen", listen])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file.expect("the log can be written"))
            .spawn()
            .expect("the program starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("it can be read");
        let talk = || std::fs::read_to_string(&log).unwrap_or_default();
        let said: Value = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("serve said {line:?}: {error}\n{}", talk()));
        let url = said["listening"]
            .as_str()
            .unwrap_or_else(|| panic!("serve said {line:?}\n{}", talk()));
        Self {
            url: url.to_owned(),
            child,
            log,
        }
    }

    /// Where it is reached, `http://HOST:PORT`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged, with what earlier servers of the same store had.
    ///
    /// # Panics
    ///
    /// If that cannot be read.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("the log can be read")
    }

    /// Send it a signal.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the server runs");
    }

    /// Wait until it has ended, and tell its exit code.
    ///
    /// # Panics
    ///
    /// If it cannot be waited for.
    pub fn wait(&mut self) -> Option<i32> {
        self.child
            .wait()
            .expect("the server can be waited for")
            .code()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server of a scratch store, and the program over it.
#[derive(Debug)]
pub struct RunningServer<'a> {
    store: &'a ScratchStore,
    serving: Serving,
    /// Where it is.
    pub url: String,
}

impl<'a> RunningServer<'a> {
    /// Serve the store that `store` is about, on a free port.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn new(store: &'a ScratchStore) -> Self {
        Self::start(store, "store", "127.0.0.1:0")
    }

    /// Serve the store in the folder `name` of the scratch folder at `listen`.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(store: &'a ScratchStore, name: &str, listen: &str) -> Self {
        let (home, folder) = (store.path("home"), store.path(name));
        let serving = Serving::start_at(store.program(), &home, &folder, listen, &[]);
        Self {
            store,
            url: serving.url().to_owned(),
            serving,
        }
    }

    /// The address alone, `127.0.0.1:PORT`.
    ///
    /// # Panics
    ///
    /// If the server's URL is none of HTTP.
    pub fn address(&self) -> &str {
        let address = self.url.strip_prefix("http://");
        address.expect("it speaks HTTP")
    }

    /// The program over this server, answering in JSON.
    pub fn command(&self, args: &[&str]) -> Command {
        let settings = ["--endpoint", &self.url, "--json", "--progress", "none"];
        let mut command = self.store.bare_command(&settings);
        command.args(args);
        command
    }

    /// Run to the end.
    ///
    /// # Panics
    ///
    /// If the program cannot be started.
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the program starts")
    }

    /// Run a command that succeeds, and read what it prints.
    ///
    /// # Panics
    ///
    /// If it fails or prints no JSON.
    pub fn json(&self, args: &[&str]) -> Value {
        answer(args, &self.run(args))
    }

    /// Ask it to end, and wait until it has; tells its exit code.
    ///
    /// # Panics
    ///
    /// If the system does not let it.
    pub fn stop(mut self) -> Option<i32> {
        self.serving.signal(Signal::TERM);
        self.serving.wait()
    }
}

/// A command that goes on until it is stopped, and says one JSON document per line; killed when dropped.
#[derive(Debug)]
pub struct Going {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Going {
    /// Start it.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn new(mut command: Command) -> Self {
        let mut child = (command.stdin(Stdio::null()).stdout(Stdio::piped()))
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let stdout = child.stdout.take().expect("it is piped");
        let lines = BufReader::new(stdout).lines();
        Self { child, lines }
    }

    /// Wait for the next document.
    ///
    /// # Panics
    ///
    /// If it ends before, or says something else.
    pub fn next_document(&mut self) -> Value {
        let line = self.lines.next().expect("it goes on");
        let line = line.expect("it can be read");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("it printed {line:?}: {error}"))
    }

    /// Send it SIGINT, and wait until it has ended.
    ///
    /// # Panics
    ///
    /// If the system does not let it.
    pub fn stop(mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it is a child");
        self.child.wait().expect("a child can be waited for")
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
