//! One run of the program: its settings, its outputs, its store or server.

use crate::embedded::Embedded;
use crate::interrupt::Interrupt;
use crate::output::{Answer, Output};
use crate::progress::Reporter;
use crate::report::{Failure, Kind, Result, interrupted};
use crate::repositories::Repositories;
use crate::settings::{Place, Settings};
use crate::spelling;
use crate::suggest;
use deltaic_client::{Remote, RemoteOptions, Repository, Watcher};
use deltaic_format::ids::CommitId;
use deltaic_format::name::{BranchName, RepoName, TreePath};
use deltaic_format::object::{RefRecord, Snapshot};
use deltaic_format::refusal::Refusal;
use deltaic_format::revision::{DEFAULT_BRANCH, RevisionSpec, Selector};
use deltaic_store::{Store, StoreError};
use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle, Runtime};

/// Threads that wait for servers; what takes long on this machine runs on others.
const WAITING_THREADS: usize = 2;

/// How often a watch is tried in a row before the user is told.
const WATCH_ATTEMPTS: u32 = 3;

/// How long what still goes on in the background is given to end, once the command has.
const LAST_MOMENTS: Duration = Duration::from_secs(10);

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
    runtime: OnceLock<Runtime>,
    /// The server that the settings name, once it was asked for something.
    server: OnceLock<Repositories>,
}

impl Session {
    /// A run with these settings, which is stopped by `interrupt`.
    pub fn new(settings: Settings, interrupt: Interrupt) -> Self {
        Self {
            output: Output::new(settings.json, settings.quiet, settings.color),
            progress: Reporter::new(settings.progress, interrupt.clone()),
            settings,
            interrupt,
            runtime: OnceLock::new(),
            server: OnceLock::new(),
        }
    }

    /// Open the store that the settings name, for what works on its folder.
    ///
    /// # Errors
    ///
    /// If none is named, or it cannot be opened.
    pub fn store(&self) -> Result<Arc<Store>> {
        let dir = self.settings.store_dir()?;
        Ok(Arc::new(self.wait_for(|| Store::open(&dir))?))
    }

    /// The repositories of the store or server that the settings name. A store is opened, and closed when what is
    /// returned goes; of a server, connections are kept.
    ///
    /// # Errors
    ///
    /// If none is named, or the store cannot be opened.
    pub fn repositories(&self) -> Result<Repositories> {
        match self.settings.place()? {
            Place::Store(dir) => {
                let store = self.wait_for(|| Store::open(&dir))?;
                self.repositories_of(Arc::new(store))
            }
            Place::Servers(urls) => {
                if let Some(server) = self.server.get() {
                    return Ok(server.clone());
                }
                let server = self.repositories_at(&urls)?;
                Ok(self.server.get_or_init(|| server).clone())
            }
        }
    }

    /// The store's folder or the servers' URLs that the settings name.
    ///
    /// # Errors
    ///
    /// If none is named.
    pub fn place_name(&self) -> Result<String> {
        Ok(match self.settings.place()? {
            Place::Store(dir) => dir.display().to_string(),
            Place::Servers(urls) => urls,
        })
    }

    /// The repositories of a store that is open.
    ///
    /// # Errors
    ///
    /// If the system has no threads for it.
    pub fn repositories_of(&self, store: Arc<Store>) -> Result<Repositories> {
        self.over(Arc::new(Embedded::new(store)))
    }

    /// The repositories of the servers with these URLs, the first one that answers.
    ///
    /// # Errors
    ///
    /// If a URL is none; that no server answers is told by the first call.
    pub fn repositories_at(&self, urls: &str) -> Result<Repositories> {
        let options = RemoteOptions {
            stall_timeout: self.settings.stall_timeout,
            connections: usize::from(self.settings.connections.get()),
            retry_for: self.settings.wait,
            // Whoever follows a branch is told that its server went away.
            watch_attempts: Some(WATCH_ATTEMPTS),
            software: concat!("deltaic ", env!("CARGO_PKG_VERSION")).to_owned(),
            ..RemoteOptions::new(urls.split(','))
        };
        let runtime = self.runtime()?;
        let _entered = runtime.enter();
        self.over(Arc::new(Remote::new(options)?))
    }

    fn over(&self, repository: Arc<dyn Repository>) -> Result<Repositories> {
        Ok(Repositories::new(
            repository,
            self.runtime()?,
            self.interrupt.clone(),
            self.watcher(),
        ))
    }

    /// Progress on standard error and the user's wish to stop, for what runs elsewhere meanwhile.
    pub fn watcher(&self) -> Watcher {
        Arc::new(self.progress.clone())
    }

    /// The user's wish to stop.
    pub fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// What waits for servers, and for stores, made when it is first needed.
    ///
    /// # Errors
    ///
    /// If the system has no threads for it.
    pub fn runtime(&self) -> Result<Handle> {
        if let Some(runtime) = self.runtime.get() {
            return Ok(runtime.handle().clone());
        }
        let runtime = Builder::new_multi_thread()
            .worker_threads(WAITING_THREADS)
            .thread_name("deltaic")
            .enable_all()
            .build()
            .map_err(|error| {
                Failure::new(Kind::Error, format!("threads cannot be started: {error}"))
            })?;
        Ok(self.runtime.get_or_init(|| runtime).handle().clone())
    }

    /// Wait for `time` to pass.
    ///
    /// # Errors
    ///
    /// If the user asks to stop meanwhile.
    pub fn pause(&self, time: Duration) -> Result<()> {
        let stopped = self.runtime()?.block_on(async {
            tokio::select! {
                () = self.interrupt.wait() => true,
                () = tokio::time::sleep(time) => false,
            }
        });
        if stopped { Err(interrupted()) } else { Ok(()) }
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

    /// Write one of many answers to standard output: a line of JSON where scripts read it.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn next_answer(&self, answer: &impl Answer) -> Result<()> {
        self.progress.clear();
        self.output.next_answer(answer)
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
    pub fn resolve(
        &self,
        repositories: &Repositories,
        repo: &RepoName,
        selector: &Selector,
    ) -> Result<CommitId> {
        repositories.resolve(repo, selector).map_err(|error| {
            let failure = Failure::from(error);
            let hint = (failure.kind == Kind::NotFound)
                .then(|| hint_for_missing(repositories, repo, selector));
            failure.hint_if(hint.flatten())
        })
    }

    /// The version that a revision names.
    ///
    /// # Errors
    ///
    /// As [`resolve`](Self::resolve), or if its objects cannot be read.
    pub fn snapshot(
        &self,
        repositories: &Repositories,
        repo: &RepoName,
        selector: &Selector,
    ) -> Result<Snapshot> {
        let id = self.resolve(repositories, repo, selector)?;
        Ok(repositories.snapshot(repo, id)?)
    }

    /// The version that a revision names, of which the path is checked to be there.
    ///
    /// # Errors
    ///
    /// As [`snapshot`](Self::snapshot), or if the version has nothing at the path.
    pub fn snapshot_of(
        &self,
        repositories: &Repositories,
        spec: &RevisionSpec,
    ) -> Result<Snapshot> {
        let snapshot = self.snapshot(repositories, &spec.repo, &spec.selector)?;
        if let Some(path) = &spec.path {
            must_hold(&snapshot, spec, path)?;
        }
        Ok(snapshot)
    }
}

/// What goes on in the background may hold the store open: it gets a moment to end.
impl Drop for Session {
    fn drop(&mut self) {
        drop(self.server.take());
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(LAST_MOMENTS);
        }
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

/// The branch that a revision begins at, if it begins at one that is there.
///
/// # Errors
///
/// If the branches cannot be read.
pub fn branch_of(
    repositories: &Repositories,
    repo: &RepoName,
    selector: &Selector,
) -> Result<Option<BranchName>> {
    let text = selector.to_string();
    let name = first_name(&text);
    let found = repositories.branches(repo)?.into_iter();
    Ok(found
        .map(|r| r.branch)
        .find(|branch| branch.as_str() == name))
}

/// A repository that must be there.
///
/// # Errors
///
/// If it is not; the hint then names what is near.
pub fn existing_repo(repositories: &Repositories, repo: &RepoName) -> Result<()> {
    let repos = repositories.repos()?;
    if repos.contains(repo) {
        return Ok(());
    }
    let missing = Refusal::NotFound {
        kind: "repository".to_owned(),
        name: repo.to_string(),
    };
    let names = repos.iter().map(RepoName::as_str);
    Err(Failure::from(&missing).hint_if(suggest::did_you_mean(repo.as_str(), names)))
}

/// The repository of a store or server that has one.
///
/// # Errors
///
/// If it has none, or several: the hint then tells how `command` names one.
pub fn only_repo(repositories: &Repositories, command: &str) -> Result<RepoName> {
    let mut repos = repositories.repos()?;
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
fn hint_for_missing(
    repositories: &Repositories,
    repo: &RepoName,
    selector: &Selector,
) -> Option<String> {
    if let Err(failure) = existing_repo(repositories, repo) {
        return Some(failure.hint);
    }
    let branches = repositories.branches(repo).ok()?;
    let text = selector.to_string();
    if let Some(right) = spelling::corrected(&text)
        && let Ok(right) = right.parse::<Selector>()
        && repositories.resolve(repo, &right).is_ok()
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
    let tags = repositories.tags(repo).ok()?;
    let names = || {
        let branches = branches.iter().map(|r| r.branch.as_str());
        branches.chain(tags.iter().map(|tag| tag.name.as_str()))
    };
    if let Some(hint) = suggest::did_you_mean(name, names()) {
        return Some(hint);
    }
    if let Some(id) = begins_with(repositories, repo, &branches, name) {
        return Some(format!(
            "an id is named by at least 4 of its digits: did you mean {repo}@{}?",
            id.short()
        ));
    }
    let all: Vec<&str> = names().take(8).collect();
    (!all.is_empty()).then(|| format!("{repo} has the branches and tags {}", all.join(", ")))
}

/// The newest commit of a branch whose id begins with so few digits that no revision is made of them.
fn begins_with(
    repositories: &Repositories,
    repo: &RepoName,
    branches: &[RefRecord],
    digits: &str,
) -> Option<CommitId> {
    const LOOKED_AT: u64 = 10_000;
    let few = digits.len() < 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let digits = digits.to_ascii_lowercase();
    let mut commits = (branches.iter().filter(|_| few))
        .flat_map(|branch| repositories.history(repo, branch.commit, Some(LOOKED_AT)));
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
