//! `deltaic verify`: whether the store, or a replica, is sound.

use crate::arguments::percentage;
use crate::output::{Answer, Page};
use crate::report::{Failure, Kind, Result};
use crate::repositories::Repositories;
use crate::session::Session;
use crate::table::Table;
use crate::units;
use crate::versions::printable;
use clap::Args;
use deltaic_client::ReplicaFolder;
use deltaic_format::answers::VerifyOptions;
use deltaic_format::ids::CommitId;
use deltaic_format::name::BranchName;
use deltaic_format::object::Snapshot;
use deltaic_format::revision::{DEFAULT_BRANCH, RevisionSpec};
use serde::Serialize;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Check that the store is sound, or that a replica's files are those of its version.
///
/// Of the store, here or behind a server, every object, edge and connection that a branch or tag reaches is checked; with --read-data every
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
    kind: Cow<'static, str>,
    object: String,
    /// The file of a replica that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    what: String,
    /// Versions of the store that have it, as far as that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    versions: Option<Vec<String>>,
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
            kind: kind.into(),
            object,
            path: Some(path),
            what,
            versions: None,
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
        if let Checked::Store { commits, .. } = self.checked
            && !self.ok
        {
            return self.print_store_problems(commits, page);
        }
        let mut table = Table::new(&["PROBLEM", "OBJECT", "WHAT"]);
        for problem in &self.problems {
            table.row([
                problem.kind.to_string(),
                printable(&problem.subject()),
                printable(&problem.what),
            ]);
        }
        table.print(page)
    }

    fn print_quietly(&self, page: &mut Page<'_>) -> io::Result<()> {
        match self.ok {
            true => Ok(()),
            false => self.print(page),
        }
    }
}

impl Verified {
    fn print_store_problems(&self, commits: u64, page: &mut Page<'_>) -> io::Result<()> {
        let mut table = Table::new(&["PROBLEM", "OBJECT", "VERSIONS", "WHAT"]);
        for problem in &self.problems {
            table.row([
                problem.kind.to_string(),
                printable(&problem.subject()),
                few(problem.versions.as_deref().unwrap_or_default()),
                printable(&problem.what),
            ]);
        }
        table.print(page)?;
        let problems = self.problems.iter();
        let named = problems
            .filter_map(|problem| problem.versions.as_ref())
            .flatten();
        let affected = named.collect::<BTreeSet<_>>().len() as u64;
        let objects = units::plural(self.problems.len() as u64, "object", "objects");
        let commits = units::plural(commits, "version", "versions");
        page.line(&match affected {
            0 => format!("{objects} with problems; which versions need them is not known"),
            affected => format!(
                "{objects} with problems; {} of {commits} affected",
                units::thousands(affected)
            ),
        })
    }
}

/// The first of some names, and how many more there are.
fn few(names: &[String]) -> String {
    const LISTED: usize = 3;
    let listed = names
        .iter()
        .take(LISTED)
        .cloned()
        .collect::<Vec<_>>()
        .join(" ");
    match names.len().saturating_sub(LISTED) {
        0 => listed,
        more => format!("{listed} +{more}"),
    }
}

/// The versions of a store by the ids of what they have.
struct Holders(HashMap<String, Vec<String>>);

impl Holders {
    /// Look for those of `wanted`; what cannot be read has no holders.
    fn find(repositories: &Repositories, wanted: &HashSet<String>) -> Self {
        let mut holders = Self(HashMap::new());
        let mut seen = HashSet::new();
        for repo in repositories.repos().unwrap_or_default() {
            let mut heads: Vec<(BranchName, CommitId)> = Vec::new();
            let branches = repositories.branches(&repo).unwrap_or_default().into_iter();
            heads.extend(branches.map(|record| (record.branch, record.commit)));
            let tags = repositories.tags(&repo).unwrap_or_default().into_iter();
            heads.extend(tags.map(|tag| (tag.name, tag.commit)));
            // Versions go by main where that has them.
            heads.sort_by_key(|(name, _)| name.as_str() != DEFAULT_BRANCH);
            for (name, head) in heads {
                for entry in repositories.history(&repo, head, None) {
                    let Ok((id, commit)) = entry else { break };
                    if !seen.insert((repo.clone(), id)) {
                        break;
                    }
                    let version = match name.as_str() {
                        DEFAULT_BRANCH => format!("{repo}@{}", commit.version),
                        name => format!("{repo}@{name}:{}", commit.version),
                    };
                    let ids = [id.to_string(), commit.tree.to_string()];
                    let inner = repositories
                        .snapshot(&repo, id)
                        .map(|snapshot| ids_in(&snapshot));
                    for id in ids.into_iter().chain(inner.unwrap_or_default()) {
                        if wanted.contains(&id) {
                            holders.0.entry(id).or_default().push(version.clone());
                        }
                    }
                }
            }
        }
        holders
    }

    /// Those of anything that `object` names, each once.
    fn of(&self, object: &str) -> Vec<String> {
        let mut versions = Vec::new();
        for id in ids_named(object) {
            for version in self.0.get(id).into_iter().flatten() {
                if !versions.contains(version) {
                    versions.push(version.clone());
                }
            }
        }
        versions
    }
}

/// Ids of all that a version has.
fn ids_in(snapshot: &Snapshot) -> Vec<String> {
    let tree = &snapshot.tree;
    let tensors = tree.tensors.iter().map(|tensor| tensor.id.to_string());
    let headers = tree.weight_files.iter().map(|file| file.header.to_string());
    let files = tree.files.iter().map(|file| file.id.to_string());
    let ids = tensors
        .chain(headers)
        .chain(files)
        .chain([tree.schema.to_string()]);
    let ids: BTreeSet<String> = ids.collect();
    ids.into_iter().collect()
}

/// The ids in the words for an object; of an edge, that of the content it leads to.
fn ids_named(object: &str) -> impl Iterator<Item = &str> {
    let ids = object.split(|c: char| !c.is_ascii_hexdigit());
    let skip = usize::from(object.starts_with("edge from"));
    ids.filter(|id| id.len() == 64).skip(skip)
}

/// What is wrong with the objects of a store, each told of once.
fn by_object(problems: Vec<deltaic_format::answers::Problem>) -> Vec<Problem> {
    let mut found: Vec<Problem> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for deltaic_format::answers::Problem { kind, object, what } in problems {
        match places.get(&object) {
            Some(&at) => {
                let known = &mut found[at].what;
                if !known.split("; ").any(|part| part == what) {
                    known.push_str("; ");
                    known.push_str(&what);
                }
            }
            None => {
                places.insert(object.clone(), found.len());
                found.push(Problem {
                    kind,
                    object,
                    path: None,
                    what,
                    versions: None,
                });
            }
        }
    }
    found
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
                "hint:  versions that are not affected stay usable; committing the same checkpoint again stores its damaged contents anew"
            }
            Checked::Replica { .. } => "hint:  fetch what is wrong again: the pull that made it, with --repair",
        });
    }
    Ok(ExitCode::from(if verified.ok {
        0
    } else {
        Kind::Corrupt.code()
    }))
}

fn verify_store(read_data_percent: Option<f64>, session: &Session) -> Result<Verified> {
    let repositories = session.repositories()?;
    let report = repositories.verify(VerifyOptions { read_data_percent })?;
    let ok = report.ok();
    let mut problems = by_object(report.problems);
    let wanted = problems
        .iter()
        .flat_map(|problem| ids_named(&problem.object));
    let wanted: HashSet<String> = wanted.map(str::to_owned).collect();
    if !wanted.is_empty() {
        let holders = Holders::find(&repositories, &wanted);
        for problem in &mut problems {
            problem.versions = Some(holders.of(&problem.object));
        }
    }
    Ok(Verified {
        ok,
        checked: Checked::Store {
            commits: report.commits,
            contents: report.contents,
            edges: report.edges,
            contents_read: report.contents_read,
            bytes_read: report.bytes_read,
        },
        problems,
    })
}

fn verify_replica(dir: &Path, session: &Session) -> Result<Verified> {
    dir.metadata().map_err(|error| {
        let repo = dir.to_str().and_then(|text| text.parse::<RevisionSpec>().ok());
        let hint = repo.map(|_| {
            "verify takes a replica's folder, or nothing to check the whole store with all its repositories"
        });
        Failure::file(dir, &error).hint_if(hint)
    })?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_told_of_once() {
        let problem = |object: &str, what: &str| deltaic_format::answers::Problem {
            kind: "damaged".into(),
            object: object.to_owned(),
            what: what.to_owned(),
        };
        let found = by_object(vec![
            problem("a", "x"),
            problem("b", "x"),
            problem("a", "x"),
            problem("a", "y"),
        ]);
        let found: Vec<_> = found
            .iter()
            .map(|p| (p.object.as_str(), p.what.as_str()))
            .collect();
        assert_eq!(found, [("a", "x; y"), ("b", "x")]);
    }

    #[test]
    fn objects_name_ids() {
        let (a, b) = ("a".repeat(64), "b".repeat(64));
        let ids = |object: &str| ids_named(object).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(ids(&format!("content {a} (BF16)")), [a.as_str()]);
        assert_eq!(
            ids(&format!("edge from content {a} (BF16) to {b}")),
            [b.as_str()]
        );
        assert!(ids("pack abc").is_empty());
        let names: Vec<String> = ["x", "y", "z", "u"].map(str::to_owned).into();
        assert_eq!(few(&names), "x y z +1");
    }
}
