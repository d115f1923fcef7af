//! The one place where errors become words, a hint what to do next, and an exit code.

use crate::output::Paint;
use deltaic_client::ClientError;
use deltaic_format::FormatError;
use deltaic_store::StoreError;
use serde::Serialize;
use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// What kind of failure it was. Scripts rely on the names and exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Anything else.
    Error,
    /// What was asked for makes no sense.
    Usage,
    /// Something that was named is not there.
    NotFound,
    /// Something is not as the caller expected, or a name is taken.
    Conflict,
    /// Access was denied.
    Auth,
    /// Data is damaged.
    Corrupt,
    /// A version existed and was removed.
    Pruned,
    /// A disk is full.
    NoSpace,
    /// The store or a service cannot be used now.
    Unavailable,
    /// The user asked to stop.
    Interrupted,
    /// Whoever read the output went away, which is no failure and is not reported.
    OutputClosed,
}

impl Kind {
    /// Every kind with its name in JSON and its exit code.
    pub const TABLE: [(Self, &'static str, u8); 11] = [
        (Self::Error, "error", 1),
        (Self::Usage, "usage", 2),
        (Self::NotFound, "not_found", 10),
        (Self::Conflict, "conflict", 11),
        (Self::Auth, "auth", 12),
        (Self::Corrupt, "corrupt", 13),
        (Self::Pruned, "pruned", 14),
        (Self::NoSpace, "no_space", 15),
        (Self::Unavailable, "unavailable", 16),
        (Self::Interrupted, "interrupted", 130),
        (Self::OutputClosed, "output_closed", 0),
    ];

    fn row(self) -> (&'static str, u8) {
        let row = Self::TABLE.iter().find(|(kind, ..)| *kind == self);
        row.map_or(("error", 1), |&(_, name, code)| (name, code))
    }

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// The exit code of a program that ends with it.
    pub fn code(self) -> u8 {
        self.row().1
    }
}

/// Why a command failed, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What kind it is.
    pub kind: Kind,
    /// What happened.
    pub message: String,
    /// What to do next.
    pub hint: String,
}

/// Result of a command.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A failure with the hint that suits its kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: general_hint(kind).to_owned(),
        }
    }

    /// What was asked for makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// The same failure with another hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// A file that could not be used.
    pub fn file(path: &Path, error: &io::Error) -> Self {
        let message = format!("{}: {}", path.display(), plain_io(error));
        let failure = Self::new(kind_of_io(error), message);
        match error.kind() {
            io::ErrorKind::PermissionDenied => {
                failure.hint("see who owns the file and what its permissions are")
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                failure.hint("give a folder on a file system that can be written")
            }
            io::ErrorKind::NotFound => failure.hint("see that the path is spelt right"),
            _ => failure,
        }
    }

    /// Standard output that could not be written.
    pub fn output(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Kind::OutputClosed, "the output was closed"),
            _ => Self::new(
                kind_of_io(&error),
                format!("the output cannot be written: {}", plain_io(&error)),
            )
            .hint("the work itself is done; see where standard output leads"),
        }
    }

    /// Say it: as a JSON document on standard output, or in words on standard error.
    pub fn report(&self, json: bool, paint: Paint) {
        if self.kind == Kind::OutputClosed {
            return;
        }
        // There is nobody left to tell if this fails.
        let _ = if json {
            self.write_json(&mut io::stdout().lock())
        } else {
            self.write_words(&mut io::stderr().lock(), paint)
        };
    }

    fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        #[derive(Serialize)]
        struct Document<'a> {
            error: Words<'a>,
        }
        #[derive(Serialize)]
        struct Words<'a> {
            kind: &'static str,
            message: &'a str,
            hint: &'a str,
        }
        let document = Document {
            error: Words {
                kind: self.kind.name(),
                message: &self.message,
                hint: &self.hint,
            },
        };
        serde_json::to_writer_pretty(&mut *out, &document)?;
        writeln!(out)
    }

    fn write_words(&self, out: &mut dyn Write, paint: Paint) -> io::Result<()> {
        writeln!(out, "{} {}", paint.red("error:"), self.message)?;
        writeln!(out, "{}  {}", paint.bold("hint:"), self.hint)
    }

    /// The exit code.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.kind.code())
    }
}

/// Names and metadata that the user gave.
impl From<FormatError> for Failure {
    fn from(error: FormatError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::from(&error)
    }
}

impl From<&StoreError> for Failure {
    fn from(error: &StoreError) -> Self {
        let (kind, hint) = match error {
            StoreError::NotFound { kind, .. } => (Kind::NotFound, hint_for_missing(kind)),
            StoreError::Conflict { .. } => (
                Kind::Conflict,
                "see what is there with `deltaic log REPO@BRANCH`, then commit on top of that",
            ),
            StoreError::Ambiguous { .. } => (Kind::Usage, "give more digits of the id"),
            StoreError::Corrupt { .. } => (
                Kind::Corrupt,
                "see what else is damaged with `deltaic verify --read-data`; other versions stay usable",
            ),
            StoreError::NoSpace { .. } => (Kind::NoSpace, general_hint(Kind::NoSpace)),
            StoreError::Locked { .. } => (
                Kind::Unavailable,
                "one process at a time opens an embedded store: wait until it ends, or stop it",
            ),
            StoreError::StoreFormat { .. } => {
                (Kind::Error, "use a build of deltaic that reads this format")
            }
            StoreError::Checkpoint { .. } => (
                Kind::Error,
                "nothing was committed; see that the file is whole and nothing writes to it, then commit again",
            ),
            StoreError::Invalid { .. } => (Kind::Usage, REVISION_HINT),
            StoreError::Interrupted => return interrupted(),
            StoreError::Io { path, source } => return Self::file(path, source),
            _ => (Kind::Error, general_hint(Kind::Error)),
        };
        Self::new(kind, error.to_string()).hint(hint)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::from(&error)
    }
}

impl From<&ClientError> for Failure {
    fn from(error: &ClientError) -> Self {
        let (kind, hint) = match error {
            ClientError::NoCheckpoint { .. } => (
                Kind::NotFound,
                "name a checkpoint folder or a safetensors file",
            ),
            ClientError::Checkpoint { .. } => (
                Kind::Error,
                "nothing was committed; see that the file was written to its end, then commit again",
            ),
            ClientError::Changed { .. } => (
                Kind::Error,
                "stop what writes to it, then run the command again",
            ),
            ClientError::NotAReplica { .. } => (
                Kind::Conflict,
                "name a replica, or a folder that is empty or not there yet",
            ),
            ClientError::Locked { .. } => (
                Kind::Unavailable,
                "wait until the other process ends, or name another folder",
            ),
            ClientError::Modified { .. }
            | ClientError::Proof { .. }
            | ClientError::Unusable { .. } => (
                Kind::Corrupt,
                "list all that differs with `deltaic verify DIR`, fetch it again with `deltaic pull --repair`",
            ),
            ClientError::Delivery { .. } => (Kind::Corrupt, general_hint(Kind::Corrupt)),
            ClientError::Corrupt { .. } => (
                Kind::Corrupt,
                "pull into a new folder, with --seed to reuse what is right in this one",
            ),
            ClientError::Invalid { .. } => (Kind::Usage, general_hint(Kind::Usage)),
            ClientError::NoSpace { .. } => (Kind::NoSpace, general_hint(Kind::NoSpace)),
            ClientError::Interrupted => return interrupted(),
            ClientError::Io { path, source } => return Self::file(path, source),
            ClientError::Source(inner) => return from_source(inner.as_ref()),
            _ => (Kind::Error, general_hint(Kind::Error)),
        };
        Self::new(kind, error.to_string()).hint(hint)
    }
}

/// What a source said keeps its own kind.
fn from_source(error: &(dyn Error + Send + Sync + 'static)) -> Failure {
    match error.downcast_ref::<StoreError>() {
        Some(error) => Failure::from(error),
        None => Failure::new(Kind::Error, error.to_string()),
    }
}

/// What revisions look like, for whoever got one wrong.
pub const REVISION_HINT: &str = "a revision is a branch or tag (main, main~3), a version (v42, dev:v42), \
     metadata (step=1200), or the beginning of a commit id";

/// A command that was stopped.
pub fn interrupted() -> Failure {
    Failure::new(Kind::Interrupted, "interrupted")
}

fn kind_of_io(error: &io::Error) -> Kind {
    match error.kind() {
        io::ErrorKind::NotFound => Kind::NotFound,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Kind::NoSpace,
        _ => Kind::Error,
    }
}

/// What the system said, without the number that Rust appends.
pub fn plain_io(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_owned(),
        None => text,
    }
}

fn general_hint(kind: Kind) -> &'static str {
    match kind {
        Kind::Error => "see whether this machine and the store are fit with `deltaic doctor`",
        Kind::Usage => "see `deltaic help`",
        Kind::NotFound => "see that the name is spelt right",
        Kind::Conflict => "see what is there now, then decide again",
        Kind::Auth => "see that the token is the right one, and what it allows",
        Kind::Corrupt => "see what is damaged with `deltaic verify --read-data`",
        Kind::Pruned => "choose a version that `deltaic log` lists",
        Kind::NoSpace => "nothing visible has changed; run the command again once there is room",
        Kind::Unavailable => "try again later",
        Kind::Interrupted => "nothing was left half done; run the command again to go on",
        Kind::OutputClosed => "",
    }
}

fn hint_for_missing(kind: &str) -> &'static str {
    match kind {
        "store" => "make one with `deltaic init DIR`, or name another with --store DIR",
        "repository" => {
            "list repositories with `deltaic repo list`; a first commit makes a new one"
        }
        "branch" => "list branches with `deltaic branch list REPO`",
        "tag" => "list tags with `deltaic tag list REPO`",
        "version" | "commit" | "branch, tag or commit" => "list versions with `deltaic log REPO`",
        "file" | "tensor" => "list what a version holds with `deltaic show REPO@REV`",
        _ => "see that the name is spelt right",
    }
}

#[cfg(test)]
mod tests;
