//! One run of the program: its settings, its outputs, its store.

use crate::interrupt::Interrupt;
use crate::output::{Answer, Output};
use crate::progress::Reporter;
use crate::report::{Failure, Kind, Result, interrupted};
use crate::settings::Settings;
use crate::spelling;
use crate::suggest;
use deltaic_format::ids::CommitId;
use deltaic_format::name::{BranchName, RepoName, TreePath};
use deltaic_format::object::{RefRecord, Snapshot};
use deltaic_store::{DEFAULT_BRANCH, RevisionSpec, Selector, Store, StoreError};
use std::fmt;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// One run of the program.
#[derive(Debug)]
pub struct Session {
    /// What applies to every command.
    pub settings: Settings,
    /// Standard output.
    pub output: Output,
    /// Progress on standard error, and the user's wish to stop.
    pub progress: Reporter,
    interrupt: Interrupt,
}

impl Session {
    /// A run with these settings, which is stopped by `interrupt`.
    pub fn new(settings: Settings, interrupt: Interrupt) -> Self {
        Self {
            output: Output::new(settings.json, settings.quiet, settings.color),
            progress: Reporter::new(settings.progress, interrupt.clone()),
            settings,
            interrupt,
        }
    }

    /// Open the store that the settings name.
    ///
    /// # Errors
    ///
    /// If none is named, or it cannot be opened.
    pub fn store(&self) -> Result<Store> {
        let dir = self.settings.store_dir()?;
        self.wait_for(|| Store::open(&dir))
    }

    /// Do what needs a store, again and again while another process uses that, as long as the settings wait for it.
    ///
    /// # Errors
    ///
    /// If it fails, also for lack of patience, or the user stops.
    pub fn wait_for<T>(&self, open: impl Fn() -> deltaic_store::Result<T>) -> Result<T> {
        const AGAIN: Duration = Duration::from_millis(50);
        let begun = Instant::now();
        let mut told = false;
        loop {
            match open() {
                Err(StoreError::Locked { holder, .. }) if begun.elapsed() < self.settings.wait => {
                    if !told {
                        self.talk(format_args!("waiting for the store: in use by {holder}"));
                        told = true;
                    }
                    self.go_on()?;
                    let left = self.settings.wait.saturating_sub(begun.elapsed());
                    std::thread::sleep(AGAIN.min(left));
                }
                other => return Ok(other?),
            }
        }
    }

    /// Write the answer to standard output.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn answer(&self, answer: &impl Answer) -> Result<()> {
        self.progress.clear();
        self.output.answer(answer)
    }

    /// Say something on standard error, unless the user wants quiet.
    pub fn talk(&self, text: impl fmt::Display) {
        if !self.settings.quiet {
            self.progress.clear();
            // A closed standard error does not stop the work.
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    /// Warn of something on standard error, unless the user wants quiet.
    pub fn warn(&self, text: impl fmt::Display) {
        let paint = self.settings.color.paint(&io::stderr());
        self.talk(format_args!("{} {text}", paint.yellow("warning:")));
    }

    /// Fail if the user has asked to stop.
    ///
    /// # Errors
    ///
    /// If so.
    pub fn go_on(&self) -> Result<()> {
        if self.interrupt.asked() {
            return Err(interrupted());
        }
        Ok(())
    }

    /// The commit that a revision names.
    ///
    /// # Errors
    ///
    /// If there is none; the hint then names what is near.
    pub fn resolve(&self, store: &Store, repo: &RepoName, selector: &Selector) -> Result<CommitId> {
        store.resolve(repo, selector).map_err(|error| {
            let hint = match &error {
                StoreError::NotFound { .. } => hint_for_missing(store, repo, selector),
                _ => None,
            };
            Failure::from(error).hint_if(hint)
        })
    }

    /// The version that a revision names.
    ///
    /// # Errors
    ///
    /// As [`resolve`](Self::resolve), or if its objects cannot be read.
    pub fn snapshot(
        &self,
        store: &Store,
        repo: &RepoName,
        selector: &Selector,
    ) -> Result<Snapshot> {
        let id = self.resolve(store, repo, selector)?;
        Ok(store.snapshot(id)?)
    }

    /// The version that a revision names, of which the path is checked to be there.
    ///
    /// # Errors
    ///
    /// As [`snapshot`](Self::snapshot), or if the version has nothing at the path.
    pub fn snapshot_of(&self, store: &Store, spec: &RevisionSpec) -> Result<Snapshot> {
        let snapshot = self.snapshot(store, &spec.repo, &spec.selector)?;
        if let Some(path) = &spec.path {
            must_hold(&snapshot, spec, path)?;
        }
        Ok(snapshot)
    }
}

/// Fail if a version has no file at or below a path.
fn must_hold(snapshot: &Snapshot, spec: &RevisionSpec, path: &TreePath) -> Result<()> {
    let weight_files = snapshot.weight_files().map(|(spec, _)| &spec.path);
    let mut files = weight_files.chain(snapshot.files().iter().map(|file| &file.path));
    if files.any(|file| file.lies_in(path)) {
        return Ok(());
    }
    let revision = format!("{}@{}", spec.repo, spec.selector);
    let message = format!("{revision} has no file or folder {path}");
    let hint = format!("list its files with `deltaic show {revision}`");
    Err(Failure::new(Kind::NotFound, message).hint(hint))
}

/// The name of the branch, or tag, that a revision begins at: versions and metadata are looked for on main.
pub fn first_name(revision: &str) -> &str {
    let first = revision.split(['~', ':']).next().unwrap_or_default();
    if is_version(first) || revision.contains('=') {
        return DEFAULT_BRANCH;
    }
    first
}

/// The branch of the store that a revision begins at, if it does.
///
/// # Errors
///
/// If the store cannot be read.
pub fn branch_of(
    store: &Store,
    repo: &RepoName,
    selector: &Selector,
) -> Result<Option<BranchName>> {
    let text = selector.to_string();
    let name = first_name(&text);
    let found = store.branches(repo)?.into_iter();
    Ok(found
        .map(|r| r.branch)
        .find(|branch| branch.as_str() == name))
}

/// A repository that must be there.
///
/// # Errors
///
/// If it is not; the hint then names what is near.
pub fn existing_repo(store: &Store, repo: &RepoName) -> Result<()> {
    let repos = store.repos()?;
    if repos.contains(repo) {
        return Ok(());
    }
    let missing = StoreError::NotFound {
        kind: "repository",
        name: repo.to_string(),
    };
    let names = repos.iter().map(RepoName::as_str);
    Err(Failure::from(missing).hint_if(suggest::did_you_mean(repo.as_str(), names)))
}

/// The repository of a store that has one.
///
/// # Errors
///
/// If it has none, or several: the hint then tells how `command` names one.
pub fn only_repo(store: &Store, command: &str) -> Result<RepoName> {
    let mut repos = store.repos()?;
    match repos.len() {
        0 => Err(
            Failure::new(Kind::NotFound, "the store has no repository yet")
                .hint("make one with `deltaic commit REPO PATH`"),
        ),
        1 => Ok(repos.remove(0)),
        _ => {
            let names: Vec<&str> = repos.iter().map(RepoName::as_str).take(8).collect();
            let message = format!("name a repository: the store has {}", names.join(", "));
            let hint = format!("such as `deltaic {command} {}`", names[0]);
            Err(Failure::usage(message).hint(hint))
        }
    }
}

fn is_version(text: &str) -> bool {
    let digits = text.strip_prefix('v').unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// What is near a revision that was not found. Failures to read on leave the general hint in place.
fn hint_for_missing(store: &Store, repo: &RepoName, selector: &Selector) -> Option<String> {
    if let Err(failure) = existing_repo(store, repo) {
        return Some(failure.hint);
    }
    let branches = store.branches(repo).ok()?;
    let text = selector.to_string();
    if let Some(right) = spelling::corrected(&text)
        && let Ok(right) = right.parse::<Selector>()
        && store.resolve(repo, &right).is_ok()
    {
        return Some(format!("did you mean {repo}@{right}?"));
    }
    if text.contains('=') {
        return Some(format!(
            "see what metadata versions have with `deltaic log {repo}`"
        ));
    }
    let (name, version) = match text.split_once(':') {
        Some((name, _)) => (name, true),
        None if is_version(&text) => (DEFAULT_BRANCH, true),
        None => (text.split('~').next().unwrap_or_default(), false),
    };
    let branch = branches.iter().find(|r| r.branch.as_str() == name);
    if let (Some(branch), true) = (branch, version || text.contains('~')) {
        let (branch, newest) = (&branch.branch, branch.version);
        return Some(format!(
            "{repo}@{branch} has versions up to {newest}; see `deltaic log {repo}@{branch}`"
        ));
    }
    let tags = store.tags(repo).ok()?;
    let names = || {
        let branches = branches.iter().map(|r| r.branch.as_str());
        branches.chain(tags.iter().map(|tag| tag.name.as_str()))
    };
    if let Some(hint) = suggest::did_you_mean(name, names()) {
        return Some(hint);
    }
    if let Some(id) = begins_with(store, &branches, name) {
        return Some(format!(
            "an id is named by at least 4 of its digits: did you mean {repo}@{}?",
            id.short()
        ));
    }
    let all: Vec<&str> = names().take(8).collect();
    (!all.is_empty()).then(|| format!("{repo} has the branches and tags {}", all.join(", ")))
}

/// The newest commit of a branch whose id begins with so few digits that no revision is made of them.
fn begins_with(store: &Store, branches: &[RefRecord], digits: &str) -> Option<CommitId> {
    const LOOKED_AT: usize = 10_000;
    let few = digits.len() < 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let digits = digits.to_ascii_lowercase();
    let mut commits = (branches.iter().filter(|_| few))
        .flat_map(|branch| store.history(branch.commit).take(LOOKED_AT));
    commits.find_map(|entry| {
        let (id, _) = entry.ok()?;
        id.to_string().starts_with(&digits).then_some(id)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_begin_at_a_branch() {
        for (revision, name) in [
            ("main", "main"),
            ("dev~3", "dev"),
            ("dev/x:v7", "dev/x"),
            ("v42", "main"),
            ("v42~1", "main"),
            ("step=12", "main"),
            ("3f9a", "3f9a"),
        ] {
            assert_eq!(first_name(revision), name, "{revision}");
        }
    }
}
