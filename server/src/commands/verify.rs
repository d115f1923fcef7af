//! `deltaic verify`: whether the store, or a replica, is sound.

use crate::arguments::percentage;
use crate::output::{Answer, Page};
use crate::report::{Failure, Kind, Result};
use crate::session::Session;
use crate::table::Table;
use crate::units;
use crate::versions::printable;
use clap::Args;
use deltaic_client::ReplicaFolder;
use deltaic_format::object::Snapshot;
use deltaic_store::VerifyOptions;
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Check that the store is sound, or that a replica's files are those of its version.
///
/// Of the store, every object, edge and connection that a branch or tag reaches is checked; with --read-data every
/// content is read and hashed too. Of a replica, every file is hashed. The exit code is 13 if anything is wrong.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic verify                  objects and connections of the store
  deltaic verify --read-data      and every content
  deltaic verify --read-data=5    and five percent of the contents
  deltaic verify replica/         a replica's files")]
pub struct VerifyArgs {
    /// A replica's folder [default: the store].
    dir: Option<PathBuf>,
    /// Read and hash contents of the store as well, all of them or this share in percent.
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, require_equals = true,
          default_missing_value = "100", value_parser = percentage, conflicts_with = "dir")]
    read_data: Option<f64>,
}

#[derive(Serialize)]
struct Verified {
    ok: bool,
    problems: Vec<Problem>,
    #[serde(flatten)]
    checked: Checked,
}

#[derive(Serialize)]
struct Problem {
    kind: &'static str,
    object: String,
    /// The file of a replica that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    what: String,
}

impl Problem {
    /// A problem of a replica's version `held`: a tensor goes by its name, with its file beside it.
    fn of_replica(problem: deltaic_client::replica::Problem, held: Option<&Snapshot>) -> Self {
        let deltaic_client::replica::Problem { kind, object, what } = problem;
        let tensor = held.filter(|_| kind == "tensor");
        let (object, path) = match tensor.and_then(|held| name_and_path(held, &object)) {
            Some((name, path)) => (name, path),
            None => (object.clone(), object),
        };
        Self {
            kind,
            object,
            path: Some(path),
            what,
        }
    }

    /// What it is about, in words.
    fn subject(&self) -> String {
        match &self.path {
            Some(path) if *path != self.object => format!("{} ({path})", self.object),
            _ => self.object.clone(),
        }
    }
}

/// Name and file of the tensor that is called `tensor NAME (PATH)`.
fn name_and_path(held: &Snapshot, called: &str) -> Option<(String, String)> {
    let called = called.strip_prefix("tensor ").unwrap_or(called);
    // Names may hold blanks and brackets themselves.
    let files = held.schema.files.iter();
    files
        .filter_map(|file| {
            let name = called.strip_suffix(&format!(" ({})", file.path))?;
            let known = file.tensors.iter().any(|tensor| tensor.name == name);
            known.then(|| (name.to_owned(), file.path.to_string()))
        })
        .next()
}

/// What was checked.
#[derive(Serialize)]
#[serde(untagged)]
enum Checked {
    Store {
        commits: u64,
        contents: u64,
        edges: u64,
        contents_read: u64,
        bytes_read: u64,
    },
    Replica {
        dir: String,
        version: Option<u64>,
        commit: Option<String>,
        /// Files that the version does not have, which do no harm.
        extra: Vec<String>,
    },
}

impl Answer for Verified {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let verdict = match self.problems.len() as u64 {
            0 => page.paint.green("ok"),
            count => page.paint.red(&units::plural(count, "problem", "problems")),
        };
        page.line(&format!("{verdict} · {}", self.checked.words()))?;
        let mut table = Table::new(&["PROBLEM", "OBJECT", "WHAT"]);
        for problem in &self.problems {
            table.row([
                problem.kind.to_owned(),
                printable(&problem.subject()),
                printable(&problem.what),
            ]);
        }
        table.print(page)
    }
}

impl Checked {
    fn words(&self) -> String {
        match self {
            Self::Store {
                commits,
                contents,
                edges,
                contents_read,
                bytes_read,
            } => {
                let [commits, contents, edges] = [
                    units::plural(*commits, "version", "versions"),
                    units::plural(*contents, "content", "contents"),
                    units::plural(*edges, "edge", "edges"),
                ];
                let read = match contents_read {
                    0 => "no content read (--read-data reads them)".to_owned(),
                    count => {
                        let count = units::plural(*count, "content", "contents");
                        format!("{count} read and hashed, {}", units::bytes(*bytes_read))
                    }
                };
                format!("{commits}, {contents}, {edges} checked; {read}")
            }
            Self::Replica {
                dir,
                version,
                commit,
                extra,
            } => {
                let version =
                    version.map_or("no version".to_owned(), |version| format!("v{version}"));
                let commit = commit
                    .as_deref()
                    .and_then(|id| id.get(..12))
                    .unwrap_or_default();
                let extra = match extra.len() as u64 {
                    0 => String::new(),
                    count => format!("; {} besides it", units::plural(count, "file", "files")),
                };
                format!("{dir} as {version} {commit}{extra}")
            }
        }
    }
}

/// Run the command; the exit code says whether anything is wrong.
///
/// # Errors
///
/// If the check cannot be finished.
pub fn run(args: &VerifyArgs, session: &Session) -> Result<ExitCode> {
    let verified = match &args.dir {
        Some(dir) => verify_replica(dir, session)?,
        None => verify_store(args.read_data, session)?,
    };
    session.answer(&verified)?;
    if !verified.ok && !session.output.is_json() {
        session.talk(match verified.checked {
            Checked::Store { .. } => {
                "hint:  versions that are not named here stay usable; commit or revert anew what is damaged"
            }
            Checked::Replica { .. } => "hint:  fetch what is wrong again with `deltaic pull --repair`",
        });
    }
    Ok(ExitCode::from(if verified.ok {
        0
    } else {
        Kind::Corrupt.code()
    }))
}

fn verify_store(read_data_percent: Option<f64>, session: &Session) -> Result<Verified> {
    let store = session.store()?;
    let options = VerifyOptions { read_data_percent };
    let report = store.verify(&options, &session.progress)?;
    Ok(Verified {
        ok: report.ok(),
        checked: Checked::Store {
            commits: report.commits,
            contents: report.contents,
            edges: report.edges,
            contents_read: report.contents_read,
            bytes_read: report.bytes_read,
        },
        problems: (report.problems.into_iter())
            .map(|problem| Problem {
                kind: problem.kind,
                object: problem.object,
                path: None,
                what: problem.what,
            })
            .collect(),
    })
}

fn verify_replica(dir: &Path, session: &Session) -> Result<Verified> {
    dir.metadata().map_err(|error| Failure::file(dir, &error))?;
    let replica = ReplicaFolder::open(dir, &session.progress)?;
    let report = replica.verify(&session.progress)?;
    let ok = report.is_ok();
    let problems = report.problems.into_iter();
    let problems = problems.map(|problem| Problem::of_replica(problem, replica.held()));
    let (extra, problems): (Vec<_>, Vec<_>) = problems.partition(|problem| problem.kind == "extra");
    Ok(Verified {
        ok,
        problems,
        checked: Checked::Replica {
            dir: dir.display().to_string(),
            version: replica.held().map(|held| held.commit.version.0),
            commit: replica.held().map(|held| held.id.to_string()),
            extra: extra.into_iter().map(|problem| problem.object).collect(),
        },
    })
}
