//! The one place where errors become words, a hint what to do next, and an exit code.

use crate::output::Paint;
use crate::units;
use deltaic_client::ClientError;
use deltaic_format::FormatError;
use deltaic_format::name::TreePath;
use deltaic_format::refusal::Refusal;
use deltaic_store::StoreError;
use serde::Serialize;
use std::error::Error;
use std::ffi::OsStr;
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
    /// Standard output cannot be written, so that the failure is told on standard error alone.
    OutputFailed,
}

impl Kind {
    /// Every kind with its name in JSON and its exit code.
    pub const TABLE: [(Self, &'static str, u8); 12] = [
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
        (Self::OutputFailed, "error", 1),
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
            message: without_numbers(message.into()),
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

    /// The same failure with another hint, if there is a better one.
    #[must_use]
    pub fn hint_if(self, hint: Option<impl Into<String>>) -> Self {
        match hint {
            Some(hint) => self.hint(hint),
            None => self,
        }
    }

    /// A file that could not be used.
    pub fn file(path: &Path, error: &io::Error) -> Self {
        let message = format!("{}: {error}", path.display());
        Self::new(kind_of_io(error), message).hint_if(hint_for_io(error))
    }

    /// Standard output that could not be written.
    pub fn output(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Kind::OutputClosed, "the output was closed"),
            _ => Self::new(
                Kind::OutputFailed,
                format!("the output cannot be written: {error}"),
            ),
        }
    }

    /// Say it: as a JSON document on standard output, or in words on standard error.
    pub fn report(&self, json: bool, paint: Paint) {
        self.report_to(
            json.then(|| io::stdout().lock()),
            io::stderr().lock(),
            paint,
        );
    }

    /// Say it on `scripts` if there is such an output and it can be written, else in words on `people`.
    fn report_to(&self, scripts: Option<impl Write>, mut people: impl Write, paint: Paint) {
        if self.kind == Kind::OutputClosed {
            return;
        }
        if self.kind != Kind::OutputFailed
            && let Some(mut out) = scripts
            && self.write_json(&mut out).is_ok()
        {
            return;
        }
        // There is nobody left to tell if this fails.
        let _ = self.write_words(&mut people, paint);
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
        write_document(
            out,
            &Document {
                error: Words {
                    kind: self.kind.name(),
                    message: &self.message,
                    hint: &self.hint,
                },
            },
        )
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
        match error {
            StoreError::Locked { .. } => {
                Self::new(Kind::Unavailable, error.to_string()).hint(LOCKED_HINT)
            }
            StoreError::StoreFormat { .. } => Self::new(Kind::Error, error.to_string())
                .hint("use a build of deltaic that reads this format"),
            StoreError::Io { path, source } => Self::file(path, source),
            error => Self::from(&Refusal::from(error)),
        }
    }
}

/// What a store says no with is told in the same words whether it is here or behind a server.
impl From<&Refusal> for Failure {
    fn from(refusal: &Refusal) -> Self {
        let (kind, hint) = match refusal {
            Refusal::NotFound { kind, name } => (Kind::NotFound, hint_for_missing(kind, name)),
            // What to do about it, the command knows.
            Refusal::Conflict { .. } => (Kind::Conflict, general_hint(Kind::Conflict).to_owned()),
            Refusal::Ambiguous { .. } => (Kind::Usage, "give more digits of the id".to_owned()),
            Refusal::Corrupt { .. } => (
                Kind::Corrupt,
                "see what else is damaged with `deltaic verify --read-data`; other versions stay usable".to_owned(),
            ),
            Refusal::NoSpace { .. } => (Kind::NoSpace, general_hint(Kind::NoSpace).to_owned()),
            Refusal::Checkpoint { .. } => (
                Kind::Error,
                "nothing was committed; see that nothing writes to the checkpoint, then commit again".to_owned(),
            ),
            Refusal::Damaged { .. } => (
                Kind::Unavailable,
                "run the command again; if it fails again, see to the network and the memory of \
                 both machines"
                    .to_owned(),
            ),
            Refusal::Upload { .. } => (
                Kind::Corrupt,
                "nothing was committed; run the command again, and see to memory and disk of this machine if it is refused \
                 again"
                    .to_owned(),
            ),
            Refusal::Invalid { .. } => (
                Kind::Usage,
                "nothing was changed; see the command's --help, and that both ends are of the same version of deltaic"
                    .to_owned(),
            ),
            Refusal::Exhausted { retry_after, .. } => (
                Kind::Unavailable,
                match retry_after {
                    Some(time) => format!("try again in {}", units::time_left(*time)),
                    None => "ask for less at once, or have the server's limit raised".to_owned(),
                },
            ),
            Refusal::Unavailable { .. } => {
                (Kind::Unavailable, general_hint(Kind::Unavailable).to_owned())
            }
            Refusal::Incompatible { .. } => (
                Kind::Error,
                "bring the older end up to date; `deltaic --version` says which one this is".to_owned(),
            ),
            Refusal::Interrupted => return interrupted(),
            _ => (Kind::Error, general_hint(Kind::Error).to_owned()),
        };
        Self::new(kind, refusal.to_string()).hint(hint)
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
                "name a folder with at least one *.safetensors file, or such a file".to_owned(),
            ),
            ClientError::Checkpoint { path, what } => {
                (Kind::Error, hint_for_checkpoint(path, what).to_owned())
            }
            ClientError::Changed { .. } => (
                Kind::Error,
                "nothing was written; stop what writes to it, then run the command again".to_owned(),
            ),
            ClientError::NotAReplica { path, .. } => (Kind::Conflict, hint_for_no_replica(path)),
            ClientError::Locked { .. } => (
                Kind::Unavailable,
                "wait until the other process ends, or name another folder".to_owned(),
            ),
            ClientError::Modified { path, .. } => (
                Kind::Corrupt,
                format!(
                    "move files of your own away; `deltaic pull --repair` writes the version's content over what differs \
                     (`deltaic verify {}` lists it)",
                    path.display()
                ),
            ),
            ClientError::Proof { .. } => (
                Kind::Corrupt,
                "nothing was written; `deltaic pull --repair` checks all that is held and fetches what differs"
                    .to_owned(),
            ),
            ClientError::Unusable { .. } => (
                Kind::Corrupt,
                "run the same pull again, which writes and checks all of it anew; if that fails too, see to the disk"
                    .to_owned(),
            ),
            ClientError::Delivery { .. } => (
                Kind::Corrupt,
                "nothing was written; see what is damaged with `deltaic verify --read-data`".to_owned(),
            ),
            ClientError::Corrupt { .. } => (
                Kind::Corrupt,
                "pull into a new folder, with --seed to reuse what is right in this one".to_owned(),
            ),
            ClientError::Invalid { .. } => (
                Kind::Usage,
                "move what is in the way elsewhere, or name another folder".to_owned(),
            ),
            ClientError::Unfinished { source, .. } => (
                Self::from(&**source).kind,
                "free space if the disk is full, then pull again, which completes it first; until then no engine may \
                 read these weights"
                    .to_owned(),
            ),
            ClientError::NoSpace { .. } => {
                (Kind::NoSpace, general_hint(Kind::NoSpace).to_owned())
            }
            ClientError::Interrupted => return interrupted(),
            ClientError::Io { path, source } => return Self::file(path, source),
            ClientError::Refused(refusal) => return Self::from(refusal),
            ClientError::Unreachable { .. } => (
                Kind::Unavailable,
                "see that the server runs (`deltaic serve`) and that its URL is right, then try again".to_owned(),
            ),
            ClientError::Stalled { .. } => (
                Kind::Unavailable,
                "see to the network and the server, then run the command again; a longer \
                 --stall-timeout is more patient"
                    .to_owned(),
            ),
            ClientError::Protocol { .. } => (
                Kind::Error,
                "see that a deltaic server answers at that URL, and that both ends are of the same version \
                 (`deltaic --version`)"
                    .to_owned(),
            ),
            ClientError::Source(inner) => return from_source(inner.as_ref()),
            _ => (Kind::Error, general_hint(Kind::Error).to_owned()),
        };
        Self::new(kind, error.to_string()).hint(hint)
    }
}

/// What a source said keeps its own kind.
fn from_source(error: &(dyn Error + Send + Sync + 'static)) -> Failure {
    match (error.downcast_ref(), error.downcast_ref()) {
        (Some(error), _) => <Failure as From<&StoreError>>::from(error),
        (_, Some(error)) => <Failure as From<&ClientError>>::from(error),
        _ => Failure::new(Kind::Error, error.to_string()),
    }
}

/// What to do about a store that another process uses.
const LOCKED_HINT: &str = "one process at a time uses a store: run the command again when the other one is done, or wait for \
     it with a longer --wait, such as --wait 10m; of a store that is served, ask the server, with --endpoint URL";

/// What revisions look like, for whoever got one wrong.
pub const REVISION_HINT: &str = "a revision is a branch or tag (main, main~3), a version (v42, dev:v42), \
     metadata (step=1200), or the beginning of a commit id";

/// A command that was stopped.
pub fn interrupted() -> Failure {
    Failure::new(Kind::Interrupted, "interrupted")
}

/// Write `document` as JSON and a line's end: all of it at once, so that nothing is written of one that is not JSON.
///
/// # Errors
///
/// If it cannot be written, or not serialised.
pub fn write_document(out: &mut dyn Write, document: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(document)?;
    text.push(b'\n');
    out.write_all(&text)?;
    out.flush()
}

/// Write `document` as one line of JSON, all of it at once.
///
/// # Errors
///
/// If it cannot be written, or not serialised.
pub fn write_line(out: &mut dyn Write, document: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(document)?;
    text.push(b'\n');
    out.write_all(&text)?;
    out.flush()
}

fn kind_of_io(error: &io::Error) -> Kind {
    match error.kind() {
        io::ErrorKind::NotFound => Kind::NotFound,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Kind::NoSpace,
        _ => Kind::Error,
    }
}

/// What the system said, without the numbers that Rust appends: ` (os error 2)`.
fn without_numbers(mut text: String) -> String {
    const NUMBER: &str = " (os error ";
    while let Some(at) = text.find(NUMBER)
        && let Some(len) = text[at..].find(')')
    {
        text.replace_range(at..=at + len, "");
    }
    text
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
        Kind::OutputFailed => "the work itself is done; see where standard output leads",
    }
}

fn hint_for_io(error: &io::Error) -> Option<&'static str> {
    Some(match error.kind() {
        io::ErrorKind::PermissionDenied => "see who owns it and what its permissions are",
        io::ErrorKind::ReadOnlyFilesystem => "name a folder on a file system that can be written",
        io::ErrorKind::NotFound => "see that the path is spelt right",
        io::ErrorKind::AlreadyExists
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::IsADirectory => {
            "something else is there, or on the way there: name another path, or move it away"
        }
        _ => return None,
    })
}

/// What to do about a `kind` of thing that is not there, which the store calls `name`, as in `v9 of acme/policy@main`.
fn hint_for_missing(kind: &str, name: &str) -> String {
    let repo = (name.rsplit_once(" of ")).and_then(|(_, of)| of.split(['@', ':', ',']).next());
    let repo = repo.unwrap_or("REPO");
    let hint = match kind {
        "store" => {
            return format!(
                "make one with `deltaic init {name}`, or name another with --store DIR"
            );
        }
        "repository" => {
            "list repositories with `deltaic repo list`; a first commit makes a new one"
        }
        "branch" => "list branches with `deltaic branch list REPO`",
        "tag" => "list tags with `deltaic tag list REPO`",
        "version" | "commit" | "branch, tag or commit" => "list versions with `deltaic log REPO`",
        "file" | "tensor" => "list what a version holds with `deltaic show REPO@REV`",
        _ => general_hint(Kind::NotFound),
    };
    hint.replace(" REPO", &format!(" {repo}"))
}

/// `hint` with `flag`, which names the store or server, in every command that needs it, so that it can be pasted.
pub fn with_place(hint: &str, flag: &str) -> String {
    const WITHOUT: [&str; 7] = ["init", "help", "man", "completions", "demo", "serve", "--"];
    let command = "`deltaic ";
    let mut parts = hint.split(command);
    let mut named = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let ends = part.find('`').unwrap_or(part.len());
        let of_command = &part[..ends];
        let needs_none = WITHOUT.iter().any(|word| part.starts_with(word))
            || ["--help", "--store", "--endpoint"]
                .iter()
                .any(|option| of_command.contains(option));
        named.push_str(command);
        if !needs_none {
            named.push_str(flag);
            named.push(' ');
        }
        named.push_str(part);
    }
    named
}

/// What to do about something in a checkpoint that cannot be committed, by what lies at `path`.
fn hint_for_checkpoint(path: &Path, what: &str) -> &'static str {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    if what.contains("UTF-8") || TreePath::new(name).is_err() {
        return "nothing was committed; rename it, or move it out of the checkpoint";
    }
    match path.symlink_metadata().map(|found| found.file_type()) {
        Ok(kind) if kind.is_symlink() => {
            "nothing was committed; put what it should lead to in its place, or remove it"
        }
        Ok(kind) if !kind.is_file() => {
            "nothing was committed; move it out of the checkpoint, which holds files and folders only"
        }
        _ if name.ends_with(".index.json") => {
            "nothing was committed; see that every shard is there and belongs to this index, then commit again"
        }
        _ => "nothing was committed; see that the file was written to its end, then commit again",
    }
}

/// What to do about a folder that is no replica, by what lies at `path`.
fn hint_for_no_replica(path: &Path) -> String {
    let shown = path.display();
    let entries = path.read_dir().map(|mut entries| entries.next().is_some());
    match entries {
        Ok(true) => format!(
            "`deltaic pull REPO -o NEW --seed {shown}` makes a replica in another folder and reuses what is the same \
             in this one"
        ),
        Ok(false) => format!("make it one with `deltaic pull REPO -o {shown}`"),
        Err(_) => "name a replica's folder; `deltaic pull REPO -o DIR` makes one".to_owned(),
    }
}

#[cfg(test)]
mod tests;
