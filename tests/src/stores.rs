//! Stores as users have them: a folder, and the `deltaic` program working on it.

use crate::program::{Measured, Program, measured};
use crate::servers::Serving;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use tempfile::TempDir;

/// How the program gets at a scratch store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It opens the folder.
    Folder,
    /// A server has the folder open, and the program talks to it.
    Server,
}

/// A store in a scratch folder, removed when dropped, with room beside it for replicas and exports.
#[derive(Debug)]
pub struct ScratchStore {
    program: Program,
    /// The server, if the store has one. Before the folder, so that it ends before that goes.
    server: Mutex<Option<Serving>>,
    folder: TempDir,
}

impl ScratchStore {
    /// An empty store that `program` works on.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    pub fn new(program: Program) -> Self {
        Self::with_access(program, Access::Folder)
    }

    /// An empty store that `program` works on in one of the ways that there are.
    ///
    /// # Panics
    ///
    /// If it cannot be made or served.
    pub fn with_access(program: Program, access: Access) -> Self {
        let folder = TempDir::new().expect("a scratch folder can be made");
        std::fs::create_dir(folder.path().join("home")).expect("it can be written");
        let store = Self {
            program,
            server: Mutex::default(),
            folder,
        };
        store.json(&["init"]);
        if access == Access::Server {
            store.serve();
        }
        store
    }

    /// Let a server have the store; from now on commands talk to it. If there was one, it is another one now.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn serve(&self) {
        // The one that there was gives the store up first.
        *self.server() = None;
        let serving = Serving::start(&self.program, &self.path("home"), &self.path("store"), &[]);
        *self.server() = Some(serving);
    }

    /// How commands get at the store.
    pub fn access(&self) -> Access {
        match *self.server() {
            Some(_) => Access::Server,
            None => Access::Folder,
        }
    }

    /// The server, if there is one.
    ///
    /// # Panics
    ///
    /// Never: a test that panicked left nothing half-done.
    pub fn server(&self) -> std::sync::MutexGuard<'_, Option<Serving>> {
        (self.server.lock()).unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// A path in the scratch folder, as text.
    pub fn place(&self, name: &str) -> String {
        self.path(name)
            .to_str()
            .expect("scratch paths are UTF-8")
            .to_owned()
    }

    /// A path in the scratch folder.
    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// The program, as a user runs it who has no settings and is in an empty home folder.
    pub fn bare_command(&self, args: &[&str]) -> Command {
        let mut command = self.program.command(&self.path("home"));
        command.args(args);
        command
    }

    /// The program on this store, answering in JSON.
    pub fn command(&self, args: &[&str]) -> Command {
        let url = self.server().as_ref().map(|server| server.url().to_owned());
        match url {
            None => self.command_on(&self.place("store"), args),
            Some(url) => {
                let settings = ["--endpoint", &url, "--json", "--progress", "none"];
                let mut command = self.bare_command(&settings);
                command.args(args);
                command
            }
        }
    }

    /// The program on another store.
    pub fn command_on(&self, store: &str, args: &[&str]) -> Command {
        let settings = [
            "--store",
            store,
            "--json",
            "--progress",
            "none",
            "--wait",
            "0s",
        ];
        let mut command = self.bare_command(&settings);
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

    /// As [`json`](Self::json), with the most memory in bytes that was resident at any time.
    ///
    /// # Panics
    ///
    /// As there.
    pub fn measured(&self, args: &[&str]) -> (Value, u64) {
        let Measured { output, peak_bytes } =
            measured(&mut self.command(args)).expect("the program starts and is watched");
        (answer(args, &output), peak_bytes)
    }

    /// Run a command that fails with exit code `code`; returns the error's message.
    ///
    /// # Panics
    ///
    /// If it succeeds, fails in another way, or prints no error with a message and a hint.
    pub fn fails(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        let text = String::from_utf8_lossy(&output.stdout);
        let talk = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}{talk}");
        let error: Value = serde_json::from_str(&text)
            .unwrap_or_else(|e| panic!("{args:?} printed {text:?}: {e}"));
        let field = |name: &str| error["error"][name].as_str().unwrap_or_default().to_owned();
        assert!(
            !field("kind").is_empty() && !field("hint").is_empty(),
            "{args:?}: {text}"
        );
        field("message")
    }

    /// Commit a checkpoint to `repo`.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub fn commit(&self, repo: &str, checkpoint: &Path) -> Value {
        let path = checkpoint.to_str().expect("checkpoint paths are UTF-8");
        self.json(&["commit", repo, path, "-m", "step"])
    }

    /// The store checks out, every byte of it read.
    ///
    /// # Panics
    ///
    /// If it does not.
    pub fn verify(&self) {
        let report = self.json(&["verify", "--read-data"]);
        assert_eq!(report["ok"], true, "{report}");
    }
}

/// What a run that succeeded printed.
///
/// # Panics
///
/// If it failed or printed no JSON.
pub fn answer(args: &[&str], output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{args:?} failed: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?} printed {text:?}: {e}"))
}

/// Two folders hold the same files with the same bytes, the replica's own records apart.
///
/// # Panics
///
/// If they do not, naming a file that differs.
pub fn assert_same_files(found: &Path, expected: &Path) {
    let list = |root: &Path| {
        let mut files = std::collections::BTreeMap::new();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("the folder can be listed") {
                let path = entry.expect("it can be listed").path();
                let name = path.strip_prefix(root).expect("it lies below").to_owned();
                if name == Path::new(".deltaic") {
                    continue;
                }
                if path.is_dir() {
                    folders.push(path);
                } else {
                    files.insert(name, path);
                }
            }
        }
        files
    };
    let (found, expected) = (list(found), list(expected));
    assert!(
        found.keys().eq(expected.keys()),
        "{:?} against {:?}",
        found.keys(),
        expected.keys()
    );
    for (name, path) in &expected {
        let read = |path: &Path| std::fs::read(path).expect("the file can be read");
        assert!(
            read(path) == read(&found[name]),
            "{} differs",
            name.display()
        );
    }
}
