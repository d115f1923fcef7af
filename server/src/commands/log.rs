//! `deltaic log`: the history of a revision.

use crate::output::{Answer, Page, terminal_width};
use crate::report::{Failure, Result};
use crate::repositories::Repositories;
use crate::session::Session;
use crate::units;
use crate::versions::{Change, summary};
use clap::Args;
use deltaic_format::ids::CommitId;
use deltaic_format::name::RepoName;
use deltaic_format::object::Commit;
use deltaic_format::revision::RevisionSpec;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::io;

/// List the versions that lead to a revision, newest first.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic log acme/policy            the history of main
  deltaic log acme/policy@dev -n 10  the ten newest versions of dev
  deltaic log acme/policy --stat     with what each version changed
  deltaic log acme/policy --json | jq '.commits[0].commit'")]
pub struct LogArgs {
    /// Repository and revision, such as acme/policy@main~3; main if not named.
    #[arg(value_name = "REPO[@REV]", value_parser = crate::arguments::revision)]
    revision: RevisionSpec,
    /// List no more than this many.
    #[arg(short = 'n', long, value_name = "N")]
    number: Option<u64>,
    /// Show how much of the weights each version changed, and what its patch takes.
    #[arg(long)]
    stat: bool,
}

#[derive(Serialize)]
struct History {
    repo: String,
    commits: Vec<Entry>,
    /// Whether to print whole ids and messages.
    #[serde(skip)]
    whole: bool,
    /// Columns of the terminal, if it is one.
    #[serde(skip)]
    width: Option<usize>,
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
    /// What changed, if that was asked for.
    #[serde(flatten)]
    change: Option<Change>,
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
            change: None,
            time_ms: commit.time_ms,
        }
    }
}

impl Answer for History {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let versions = self.commits.iter().map(|entry| entry.version);
        let version_width = versions.map(|v| format!("v{v}").len()).max();
        let version_width = version_width.unwrap_or_default();
        if self.commits.iter().any(|entry| entry.change.is_some()) {
            let digits = if self.whole { 64 } else { 12 };
            let time = self
                .commits
                .iter()
                .map(|entry| units::local_time(entry.time_ms).len())
                .max();
            let time = time.unwrap_or_default();
            let heading = format!(
                "{:<version_width$}  {:<digits$}  {:<time$}  {:>9}  {:>8}  MESSAGE",
                "", "COMMIT", "TIME", "CHANGED", "PATCH"
            );
            page.line(&page.paint.bold(&heading))?;
        }
        for entry in &self.commits {
            let digits = if self.whole { 64 } else { 12 };
            let (version, id) = (format!("v{}", entry.version), &entry.commit[..digits]);
            let time = units::local_time(entry.time_ms);
            let stat = entry
                .change
                .map_or_else(String::new, |change| stat_cells(entry, &change));
            let refs = match entry.refs.as_slice() {
                [] => String::new(),
                refs => format!("({}) ", refs.join(", ")),
            };
            let before = format!("{version:<version_width$}  {id}  {time}  {stat}{refs}");
            let room = self.width.filter(|_| !self.whole);
            let room = room.map(|width| {
                width
                    .saturating_sub(before.chars().count())
                    .max(LEAST_MESSAGE)
            });
            let summary = cut(summary(&entry.message, &entry.meta), room);
            let (id, time) = (page.paint.yellow(id), page.paint.dim(&time));
            let refs = page.paint.green(&refs);
            let line = format!("{version:<version_width$}  {id}  {time}  {stat}{refs}{summary}");
            page.line(line.trim_end())?;
        }
        Ok(())
    }
}

/// Characters of a message that are shown however narrow the terminal is.
const LEAST_MESSAGE: usize = 20;

/// Share of the elements that changed, and what the patch takes; blank where there was nothing before.
fn stat_cells(entry: &Entry, change: &Change) -> String {
    let (share, patch) = match (entry.parents.is_empty(), change.changed) {
        (true, _) => (String::new(), units::bytes(change.patch_bytes)),
        (false, 0) => ("0 %".to_owned(), String::new()),
        (false, changed) => (
            units::percent(changed, change.elements),
            units::bytes(change.patch_bytes),
        ),
    };
    format!("{share:>9}  {patch:>8}  ")
}

/// The first characters of `text` that there is `room` for, with an ellipsis for the others.
fn cut(text: String, room: Option<usize>) -> String {
    match room {
        Some(room) if text.chars().count() > room => {
            let first: String = text.chars().take(room.saturating_sub(1)).collect();
            format!("{}…", first.trim_end())
        }
        _ => text,
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
    let repositories = session.repositories()?;
    let head = session.resolve(&repositories, repo, selector)?;
    let mut refs = refs_by_commit(&repositories, repo)?;
    let mut commits = Vec::new();
    for entry in repositories.history(repo, head, args.number) {
        let (id, commit) = entry?;
        session.go_on()?;
        let mut entry = Entry::new(id, commit, refs.remove(&id).unwrap_or_default());
        if args.stat {
            let version = repositories.snapshot(repo, id)?;
            entry.change = Some(Change::from(&repositories.version_stats(repo, &version)?));
        }
        commits.push(entry);
    }
    session.answer(&History {
        repo: repo.to_string(),
        commits,
        whole: session.settings.verbose,
        width: terminal_width(),
    })
}

/// The branches and tags at each commit.
fn refs_by_commit(
    repositories: &Repositories,
    repo: &RepoName,
) -> Result<HashMap<CommitId, Vec<String>>> {
    let mut refs: HashMap<CommitId, Vec<String>> = HashMap::new();
    for branch in repositories.branches(repo)? {
        refs.entry(branch.commit)
            .or_default()
            .push(branch.branch.to_string());
    }
    for tag in repositories.tags(repo)? {
        refs.entry(tag.commit)
            .or_default()
            .push(format!("tag: {}", tag.name));
    }
    Ok(refs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_where_there_is_no_room() {
        let text = || "one two three".to_owned();
        assert_eq!(cut(text(), None), text());
        assert_eq!(cut(text(), Some(13)), text());
        assert_eq!(cut(text(), Some(6)), "one t…");
        assert_eq!(cut("äöü äöü".to_owned(), Some(5)), "äöü…");
    }
}
