//! `deltaic log`: the history of a revision.

use crate::output::{Answer, Page};
use crate::report::{Failure, Result};
use crate::session::Session;
use crate::units;
use crate::versions::summary;
use clap::Args;
use deltaic_format::ids::CommitId;
use deltaic_format::name::RepoName;
use deltaic_format::object::Commit;
use deltaic_store::{RevisionSpec, Store};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::io;

/// List the versions that lead to a revision, newest first.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic log acme/policy            the history of main
  deltaic log acme/policy@dev -n 10  the ten newest versions of dev
  deltaic log acme/policy --json | jq '.commits[0].commit'")]
pub struct LogArgs {
    /// Repository and revision, such as acme/policy@main~3; main if not named.
    #[arg(value_name = "REPO[@REV]")]
    revision: RevisionSpec,
    /// List no more than this many.
    #[arg(short = 'n', long, value_name = "N")]
    number: Option<usize>,
}

#[derive(Serialize)]
struct History {
    repo: String,
    commits: Vec<Entry>,
    #[serde(skip)]
    whole_ids: bool,
}

#[derive(Serialize)]
struct Entry {
    version: u64,
    commit: String,
    parents: Vec<String>,
    time: String,
    message: String,
    meta: BTreeMap<String, String>,
    refs: Vec<String>,
    #[serde(skip)]
    time_ms: i64,
}

impl Entry {
    fn new(id: CommitId, commit: Commit, refs: Vec<String>) -> Self {
        Self {
            version: commit.version.0,
            commit: id.to_string(),
            parents: commit.parents.iter().map(ToString::to_string).collect(),
            time: units::rfc3339(commit.time_ms),
            message: commit.message,
            meta: commit.meta,
            refs,
            time_ms: commit.time_ms,
        }
    }
}

impl Answer for History {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let versions = self
            .commits
            .iter()
            .map(|entry| format!("v{}", entry.version));
        let width = versions.clone().map(|v| v.len()).max().unwrap_or_default();
        for (entry, version) in self.commits.iter().zip(versions) {
            let digits = if self.whole_ids { 64 } else { 12 };
            let id = page.paint.yellow(&entry.commit[..digits]);
            let time = page.paint.dim(&units::local_time(entry.time_ms));
            let refs = match entry.refs.as_slice() {
                [] => String::new(),
                refs => page.paint.green(&format!("({})", refs.join(", "))) + " ",
            };
            let summary = summary(&entry.message, &entry.meta);
            let line = format!("{version:<width$}  {id}  {time}  {refs}{summary}");
            page.line(line.trim_end())?;
        }
        Ok(())
    }
}

/// Run the command.
///
/// # Errors
///
/// If there is no such revision, or its history cannot be read.
pub fn run(args: &LogArgs, session: &Session) -> Result<()> {
    let RevisionSpec {
        repo,
        selector,
        path,
    } = &args.revision;
    if let Some(path) = path {
        let message = format!("log lists whole versions, and cannot be asked about {path} alone");
        return Err(Failure::usage(message).hint(format!(
            "see the history with `deltaic log {repo}@{selector}`, one file of a version with `deltaic show {}`",
            args.revision
        )));
    }
    let store = session.store()?;
    let head = session.resolve(&store, repo, selector)?;
    let mut refs = refs_by_commit(&store, repo)?;
    let mut commits = Vec::new();
    for entry in store.history(head).take(args.number.unwrap_or(usize::MAX)) {
        let (id, commit) = entry?;
        session.go_on()?;
        commits.push(Entry::new(id, commit, refs.remove(&id).unwrap_or_default()));
    }
    session.answer(&History {
        repo: repo.to_string(),
        commits,
        whole_ids: session.settings.verbose,
    })
}

/// The branches and tags at each commit.
fn refs_by_commit(store: &Store, repo: &RepoName) -> Result<HashMap<CommitId, Vec<String>>> {
    let mut refs: HashMap<CommitId, Vec<String>> = HashMap::new();
    for branch in store.branches(repo)? {
        refs.entry(branch.commit)
            .or_default()
            .push(branch.branch.to_string());
    }
    for tag in store.tags(repo)? {
        refs.entry(tag.commit)
            .or_default()
            .push(format!("tag: {}", tag.name));
    }
    Ok(refs)
}
