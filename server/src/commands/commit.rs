//! `deltaic commit`: the next version of a branch, from a checkpoint on disk.

use crate::arguments::{BranchSpec, RevisionOrNone, metadata};
use crate::embedded::Committed;
use crate::files::changed_files;
use crate::output::{Answer, Page};
use crate::report::{Failure, Kind, Result};
use crate::repositories::Repositories;
use crate::session::Session;
use crate::settings::{Place, cache_dir};
use crate::spelling;
use crate::suggest;
use crate::units;
use crate::versions::{Change, VersionName, files_words, printable};
use clap::Args;
use deltaic_client::{Checkpoint, ClientError, publish};
use deltaic_format::Version;
use deltaic_format::answers::{CommitOutcome, CommitRequest, Expect};
use deltaic_format::ids::{CommitId, FileId};
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::Tree;
use deltaic_format::revision::DEFAULT_BRANCH;
use deltaic_store::Store;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Commit a checkpoint folder or a safetensors file as the next version of a branch.
///
/// Every file of the folder is committed and comes back byte for byte from an export; a Hugging Face cache
/// snapshot will do, symbolic links and all. Only what changed against the branch's newest version is stored.
///
/// Over a server, what is sent is a patch against the last version that was committed from here, of which a copy (a
/// shadow) is kept in the cache folder: the first commit makes it. It takes as much disk as the checkpoint.
///
/// Skipped is what tools keep for themselves: .git, .deltaic (of a replica), .cache/huggingface, and the folder of a
/// Deltaic store that lies in the checkpoint. Anything else that is neither file nor folder is an error.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic commit acme/policy ckpt/ -m 'after step 1200' --meta step=1200
  deltaic commit acme/policy@dev model.safetensors
  deltaic commit acme/policy ckpt/ --expect v41   fail if there is a v42
  deltaic commit acme/policy ckpt/ --expect none  fail unless it is the first
  deltaic --endpoint http://host:7421 commit acme/policy ckpt/  send what changed to a server")]
pub struct CommitArgs {
    /// Repository and branch, such as acme/policy@dev; a new repository is made, the branch is main if not named.
    #[arg(value_name = "REPO[@BRANCH]")]
    target: BranchSpec,
    /// Checkpoint folder, or one safetensors file.
    path: PathBuf,
    /// What to say about the version.
    #[arg(short, long, default_value = "", hide_default_value = true)]
    message: String,
    /// Metadata by which the version can be named, such as step=1200; may be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = metadata)]
    meta: Vec<(String, String)>,
    /// Fail unless the branch stands at this revision, or has no version yet (none).
    #[arg(long, value_name = "REV")]
    expect: Option<RevisionOrNone>,
    /// Over a server, keep what was last committed in this folder [default: one for each branch, in deltaic/shadows of
    /// $XDG_CACHE_HOME or ~/.cache].
    #[arg(long, value_name = "DIR", value_parser = crate::arguments::folder())]
    shadow: Option<PathBuf>,
}

/// A new version.
#[derive(Serialize)]
pub struct NewVersion {
    #[serde(flatten)]
    name: VersionName,
    #[serde(flatten)]
    change: Change,
    /// Files that differ from the first parent's in more than tensors, if they could be compared.
    files_changed: Option<u64>,
    new_bytes: u64,
    seconds: f64,
    /// Whether it has the same files as the version before it.
    unchanged: bool,
    /// Whether there was no such repository before.
    new_repo: bool,
}

impl NewVersion {
    /// What came of a request.
    pub fn new(
        repositories: &Repositories,
        request: &CommitRequest,
        outcome: &CommitOutcome,
        time: Duration,
    ) -> Self {
        // The version is there; that it cannot be compared is no reason to call the commit failed.
        let compared = compare(repositories, &request.repo, outcome.id).ok();
        Self {
            name: VersionName {
                repo: request.repo.clone(),
                branch: Some(request.branch.clone()),
                version: outcome.version,
                commit: outcome.id,
            },
            change: Change::from(outcome),
            files_changed: compared.map(|(files_changed, _)| files_changed),
            unchanged: compared.is_some_and(|(_, unchanged)| unchanged),
            new_repo: false,
            new_bytes: outcome.new_bytes,
            seconds: time.as_secs_f64(),
        }
    }

    /// The same version, in a repository that came with it.
    fn in_new_repo(mut self, new_repo: bool) -> Self {
        self.new_repo = new_repo;
        self
    }
}

impl Answer for NewVersion {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let name = page.paint.yellow(&self.name.to_string());
        let change = self.change.words(self.name.version);
        let grown = units::bytes(self.new_bytes);
        let time = units::seconds(self.seconds);
        if self.new_repo {
            page.line(&format!("made repository {}", self.name.repo))?;
        }
        page.line(&format!("{name} · {change}"))?;
        if let (true, Some(before)) = (self.unchanged, self.name.version.0.checked_sub(1)) {
            page.line(&format!("note: same content as {}", Version(before)))?;
        }
        let files = self.files_changed.unwrap_or_default();
        if let Some(files) = files_words(self.name.version, files) {
            page.line(&files)?;
        }
        page.line(&page.paint.dim(&format!("store grew by {grown} in {time}")))
    }

    fn print_quietly(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.line(&self.name.commit.to_string())
    }
}

/// Run the command.
///
/// # Errors
///
/// If the checkpoint cannot be read, the branch is not where it was expected, or the store is full or damaged.
pub fn run(args: CommitArgs, session: &Session) -> Result<()> {
    let begun = Instant::now();
    let meta = unique(args.meta)?;
    must_be_no_cache(&args.path, &args.target)?;
    let checkpoint = Checkpoint::open(&args.path).map_err(|error| {
        let missing = matches!(error, ClientError::NoCheckpoint { .. });
        let hint = missing
            .then(|| what_is_there(&args.path, &args.target))
            .flatten();
        Failure::from(error).hint_if(hint)
    })?;
    let to = Receiver::new(args.shadow, &args.target, session)?;
    let repositories = to.repositories(session)?;
    let expect = args
        .expect
        .as_ref()
        .map(|expect| expected(&repositories, &args.target, expect, session))
        .transpose()?;
    let request = CommitRequest {
        repo: args.target.repo,
        branch: args.target.branch,
        message: args.message,
        meta,
        time_ms: units::now_ms(),
        expect,
    };
    let repos = repositories.repos()?;
    let outcome = to
        .commit(checkpoint, &request, &repositories, session)
        .map_err(|failure| not_committed(&repositories, &request, failure))?;
    let new_repo = !repos.contains(&request.repo);
    let version = NewVersion::new(&repositories, &request, &outcome, begun.elapsed());
    session.answer(&version.in_new_repo(new_repo))?;
    to.acknowledge(outcome.id);
    if new_repo {
        let names = repos.iter().map(RepoName::as_str);
        if let Some(near) = suggest::near(request.repo.as_str(), names).first() {
            session.talk(format_args!("note: {near} exists; did you mean that?"));
        }
    }
    Ok(())
}

/// Where a commit goes.
enum Receiver {
    /// To a store on this machine, which reads the checkpoint itself.
    Store(Arc<Store>),
    /// To a server, which is sent what differs from what this folder holds.
    Server(PathBuf),
}

impl Receiver {
    fn new(shadow: Option<PathBuf>, target: &BranchSpec, session: &Session) -> Result<Self> {
        match session.settings.place()? {
            Place::Servers(urls) => Ok(Self::Server(match shadow {
                Some(shadow) => shadow,
                None => default_shadow(&urls, target)?,
            })),
            Place::Store(_) if shadow.is_some() => Err(Failure::usage(
                "--shadow is for commits over a server, and this one goes to a store on this machine",
            )
            .hint("leave it out, or name the server with --endpoint URL")),
            Place::Store(_) => Ok(Self::Store(session.store()?)),
        }
    }

    fn repositories(&self, session: &Session) -> Result<Repositories> {
        match self {
            Self::Store(store) => session.repositories_of(store.clone()),
            Self::Server(_) => session.repositories(),
        }
    }

    /// The user knows of the version: the same command makes another one now.
    fn acknowledge(&self, made: CommitId) {
        if let Self::Server(shadow) = self {
            publish::acknowledge(shadow, made);
        }
    }

    fn commit(
        &self,
        checkpoint: Checkpoint,
        request: &CommitRequest,
        repositories: &Repositories,
        session: &Session,
    ) -> Result<CommitOutcome> {
        match self {
            Self::Store(store) => {
                let committed = Committed::new(&checkpoint);
                let outcome = store.commit(request, &committed, &session.progress);
                outcome.map_err(|error| committed.failure(error))
            }
            Self::Server(shadow) => {
                let (repository, request) = (repositories.shared(), request.clone());
                let watcher = session.watcher();
                let commit =
                    publish::commit(repository, checkpoint, request, shadow.clone(), watcher);
                Ok(repositories.wait_for_end(commit)?)
            }
        }
    }
}

/// Where the last version that was committed to a branch of a server is kept, unless that is said.
fn default_shadow(urls: &str, target: &BranchSpec) -> Result<PathBuf> {
    let cache = cache_dir().ok_or_else(|| {
        Failure::usage("there is no home folder to keep what was last committed in")
            .hint("name a folder for it with --shadow DIR, or set XDG_CACHE_HOME")
    })?;
    let name = FileId::of(format!("{urls}\n{target}").as_bytes());
    Ok(cache.join("deltaic/shadows").join(&name.to_string()[..32]))
}

/// How many files of a version differ from its first parent's in more than tensors, and whether all files are the same.
fn compare(repositories: &Repositories, repo: &RepoName, id: CommitId) -> Result<(u64, bool)> {
    let version = repositories.snapshot(repo, id)?;
    let parent = version.commit.parents.first();
    let parent = parent
        .map(|&id| repositories.snapshot(repo, id))
        .transpose()?;
    let unchanged = parent
        .as_ref()
        .is_some_and(|parent| is_same(&parent.tree, &version.tree));
    let changed = changed_files(parent.as_ref(), &version).len() as u64;
    Ok((changed, unchanged))
}

/// Whether two trees give the same files; patches tell how they came to be, not what they are.
fn is_same(a: &Tree, b: &Tree) -> bool {
    let ids = |tree: &Tree| -> Vec<_> { tree.tensors.iter().map(|tensor| tensor.id).collect() };
    (a.schema, &a.weight_files, &a.files) == (b.schema, &b.weight_files, &b.files)
        && ids(a) == ids(b)
}

/// Fail if `path` is the whole folder of a model in a Hugging Face cache, with every version of it.
fn must_be_no_cache(path: &Path, target: &BranchSpec) -> Result<()> {
    let snapshots = path.join("snapshots");
    if !snapshots.is_dir() || !path.join("blobs").is_dir() {
        return Ok(());
    }
    let main = fs::read_to_string(path.join("refs/main")).map(|text| text.trim().to_owned());
    let main = main.ok().filter(|main| snapshots.join(main).is_dir());
    let first = || {
        let names = fs::read_dir(&snapshots).ok()?.flatten();
        names
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .min()
    };
    let revision = main.or_else(first).unwrap_or_else(|| "REVISION".to_owned());
    let shown = path.display();
    let message =
        format!("{shown} is the cache of a model with all of its downloads, not one checkpoint");
    let snapshot = snapshots.join(revision);
    Err(Failure::usage(message).hint(format!(
        "commit one of its snapshots: `deltaic commit {target} {}`",
        snapshot.display()
    )))
}

/// What to do about a path without a weight file, by what is there.
fn what_is_there(path: &Path, target: &BranchSpec) -> Option<String> {
    const OTHER_WEIGHTS: [&str; 6] = ["bin", "pt", "pth", "ckpt", "gguf", "npz"];
    if let Some(swapped) = spelling::swapped(target.repo.as_str(), &path.to_string_lossy()) {
        return Some(swapped);
    }
    let is_weights = |path: &Path| {
        let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
        OTHER_WEIGHTS.contains(&extension)
    };
    let mut seen: Vec<String> = match fs::read_dir(path) {
        Ok(entries) => (entries.flatten())
            .filter(|entry| is_weights(&entry.path()))
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect(),
        Err(_) if is_weights(path) && path.is_file() => vec![path.display().to_string()],
        Err(_) => Vec::new(),
    };
    seen.sort();
    let more = match seen.len() {
        0 => return None,
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    Some(format!(
        "{}{more} must be converted to safetensors first, with `save_pretrained(DIR, safe_serialization=True)` of \
         transformers or `safetensors.torch.save_file`",
        printable(&seen[0])
    ))
}

/// Metadata by its keys.
fn unique(pairs: Vec<(String, String)>) -> Result<BTreeMap<String, String>> {
    let mut meta = BTreeMap::new();
    for (key, value) in pairs {
        if let Some(what) = unfit(&key, &value) {
            let message = format!("--meta {:?}: {what}", format!("{key}={value}"));
            return Err(Failure::usage(message).hint("give KEY=VALUE, such as step=1200"));
        }
        if let Some(other) = meta.insert(key.clone(), value.clone()) {
            let message = format!("--meta gives {key} twice, as {other:?} and as {value:?}");
            return Err(Failure::usage(message).hint("give every key once"));
        }
    }
    Ok(meta)
}

/// What is wrong with metadata that could be neither selected nor shown.
fn unfit(key: &str, value: &str) -> Option<&'static str> {
    let controls = |text: &str| text.chars().any(char::is_control);
    if value.is_empty() {
        Some("a version cannot be named by an empty value")
    } else if controls(key) || controls(value) {
        Some("it holds control characters")
    } else {
        None
    }
}

/// Why a request failed, with a hint that knows the branch.
pub fn not_committed(
    repositories: &Repositories,
    request: &CommitRequest,
    failure: Failure,
) -> Failure {
    let CommitRequest { repo, branch, .. } = request;
    match failure.kind {
        Kind::NotFound => failure.hint_if(hint_for_missing_branch(repositories, repo, branch)),
        Kind::Conflict => match repositories.branch(repo, branch) {
            Ok(Some(head)) => lost_expectation(repositories, request, head.version, failure),
            _ => failure.hint(format!(
                "commit to another branch, or bring this one back with `deltaic branch create {repo} {branch} \
                 COMMIT-ID`, from the last id that it had"
            )),
        },
        // The branch and the checkpoint were read by then; what remains is what the commit says of itself.
        Kind::Usage => failure.hint("nothing was committed; give a shorter message or less metadata"),
        _ => failure,
    }
}

/// How to make a branch that the repository, which is there, does not have.
fn hint_for_missing_branch(
    repositories: &Repositories,
    repo: &RepoName,
    branch: &BranchName,
) -> Option<String> {
    let branches = repositories.branches(repo).ok()?;
    let names = branches.iter().map(|record| record.branch.as_str());
    if branches.iter().any(|record| record.branch == *branch) {
        return None;
    }
    let near = suggest::did_you_mean(branch.as_str(), names);
    let near = near.map_or_else(String::new, |near| format!("{near} else "));
    Some(format!(
        "{near}make it with `deltaic branch create {repo} {branch} main`, or another revision in place of main"
    ))
}

/// The branch stands at `stands`, which is not where the request expects it.
fn lost_expectation(
    repositories: &Repositories,
    request: &CommitRequest,
    stands: Version,
    failure: Failure,
) -> Failure {
    let target = format!("{}@{}", request.repo, request.branch);
    let message = match request.expect {
        Some(Expect::Commit(id)) => match repositories.commit(&request.repo, id) {
            Ok(commit) if commit.version == stands => format!(
                "{target} stands at another {stands}, not at {} as expected",
                id.short()
            ),
            Ok(commit) => format!(
                "{target} stands at {stands}, not at {} as expected",
                commit.version
            ),
            Err(_) => failure.message,
        },
        Some(Expect::Nothing) => {
            format!("{target} has versions already: it stands at {stands}")
        }
        None => failure.message,
    };
    Failure::new(Kind::Conflict, message).hint(format!(
        "see what came in between with `deltaic log {target}`; then --expect {} commits on top of it",
        match request.branch.as_str() {
            DEFAULT_BRANCH => stands.to_string(),
            branch => format!("{branch}:{stands}"),
        }
    ))
}

fn expected(
    repositories: &Repositories,
    target: &BranchSpec,
    expect: &RevisionOrNone,
    session: &Session,
) -> Result<Expect> {
    match expect {
        RevisionOrNone::None => Ok(Expect::Nothing),
        RevisionOrNone::Revision(selector) => {
            let id = session.resolve(repositories, &target.repo, selector)?;
            Ok(Expect::Commit(id))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_checkpoint_is_told_with_what_to_do() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let target: BranchSpec = "acme/policy".parse().expect("a valid target");
        assert!(must_be_no_cache(dir.path(), &target).is_ok());
        assert_eq!(what_is_there(dir.path(), &target), None);
        fs::write(dir.path().join("pytorch_model.bin"), b"")?;
        let hint = what_is_there(dir.path(), &target).unwrap_or_default();
        assert!(
            hint.starts_with("pytorch_model.bin must be converted"),
            "{hint}"
        );
        fs::create_dir(dir.path().join("blobs"))?;
        fs::create_dir_all(dir.path().join("snapshots/abc"))?;
        let failure = must_be_no_cache(dir.path(), &target).expect_err("it is a cache");
        assert!(failure.hint.ends_with("snapshots/abc`"), "{}", failure.hint);
        Ok(())
    }

    #[test]
    fn every_branch_of_every_server_has_a_shadow_of_its_own() {
        let target = |text: &str| text.parse::<BranchSpec>().expect("a valid target");
        let shadow = |url, text| default_shadow(url, &target(text)).expect("a home folder");
        let one = shadow("http://a:1", "acme/policy");
        assert_eq!(one, shadow("http://a:1", "acme/policy@main"));
        assert_ne!(one, shadow("http://b:1", "acme/policy"));
        assert_ne!(one, shadow("http://a:1", "acme/policy@dev"));
    }

    #[test]
    fn metadata_has_every_key_once() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let meta = unique(vec![pair("a", "1"), pair("b", "1")]).expect("two keys");
        assert_eq!(meta.len(), 2);
        for (key, value) in [("a", ""), ("a", "x\ny"), ("a\x1b", "1")] {
            let failure = unique(vec![pair(key, value)]).expect_err("it is unfit");
            assert_eq!(failure.kind, Kind::Usage);
        }
        let failure = unique(vec![pair("a", "1"), pair("a", "1")]).expect_err("one key twice");
        assert_eq!(failure.kind, Kind::Usage);
    }
}
