//! `deltaic pull`: make a folder a replica of a version.

use crate::following::{Following, Patience};
use crate::output::{Answer, Page};
use crate::report::{Failure, Kind, Result};
use crate::repositories::Repositories;
use crate::session::{Session, first_name};
use crate::units;
use clap::{Args, ValueEnum};
use deltaic_client::{ClientError, Proof, PullOptions, PullOutcome, ReplicaFolder, Trust};
use deltaic_format::Version;
use deltaic_format::ids::CommitId;
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::{RefRecord, Snapshot};
use deltaic_format::refusal::Refusal;
use deltaic_format::revision::{DEFAULT_BRANCH, RevisionSpec};
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};

/// Make a folder a replica of a version, patching in place from the version that it holds.
///
/// Nothing is written before all that is needed is there and proven to fit; a pull that is cut off is finished or
/// undone by the next one. Between "writing" and the end of the pull the files hold neither version: no engine may read
/// weights from the folder then.
///
/// Proof: "touched" proves what changes. Patches fit the elements that they find, and all that is written reads back;
/// elements that do not change are taken to be as the last pull left them, as their files' sizes and times say. "full"
/// reads every tensor before and after, and finds silent damage anywhere.
///
/// Your own files in the folder are left alone. If a version brings a file of the same name, nothing is written; move
/// yours away, or let --repair replace it.
///
/// Disk: a new replica takes the size of the version. An update needs room beside it for a journal of what changes
/// (position and new value of each changed element, the whole of tensors that are sent whole), and for a second copy of
/// files whose tensors have other names, types or shapes than before.
///
/// A replica keeps to its repository, and to its branch in one direction: an older version is pulled only if it is named,
/// as in @v41. --switch allows both.
///
/// Trust: a patch over several versions is composed by whoever serves it. "server" takes it as it is, which the proof
/// checks against the commits' moments; "edges" fetches each version's own patches, checks them against the ids that the
/// commits list, and composes them here; "content" also hashes every tensor that changes, before anything is written.
///
/// With --follow the folder is kept at the newest version of the branch until the command is stopped: each time there
/// are new versions it goes to the newest at once, and says so in a line of its own. A server that goes away is waited for.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic pull acme/policy -o replica/           to the newest version of main
  deltaic pull acme/policy@v41 -o replica/       back to v41, by patch
  deltaic pull acme/policy -o new/ --seed old/   reuse what is the same in old/
  deltaic pull acme/policy -o replica/ --repair  fetch again what is damaged
  deltaic pull acme/policy -o replica/ --follow  and to every newer one, until stopped
  deltaic pull acme/other -o replica/ --switch   make it a replica of another repository")]
pub struct PullArgs {
    /// Repository, revision and, where only part of it is wanted, a file or folder.
    #[arg(value_name = "REPO[@REV][:PATH]", value_parser = crate::arguments::revision)]
    revision: RevisionSpec,
    /// The replica's folder: a replica, or a folder that is empty or not there yet.
    #[arg(short, long, value_name = "DIR", value_parser = crate::arguments::folder())]
    output: PathBuf,
    /// Reuse tensors of this checkpoint where their hash is right; may be given several times. One that cannot be used
    /// is skipped with a warning.
    #[arg(long, value_name = "DIR")]
    seed: Vec<PathBuf>,
    /// Say how to prove that the replica holds the version.
    #[arg(long, value_name = "HOW", default_value = "touched")]
    proof: ProofChoice,
    /// Say whom to trust with patches over several versions.
    #[arg(long, value_name = "WHOM", default_value = "server")]
    trust: TrustChoice,
    /// Go on to each newer version of the branch as it is made, until stopped.
    #[arg(long)]
    follow: bool,
    /// Check everything that is held, and fetch again what is not as the last pull left it.
    #[arg(long)]
    repair: bool,
    /// Go on if the replica is one of another repository, or holds a newer version of the branch.
    #[arg(long)]
    switch: bool,
}

/// How a pull is proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ProofChoice {
    /// By the elements that change: patches fit what they find, and what is written reads back.
    Touched,
    /// By reading every tensor before and after: silent damage is found too.
    Full,
}

impl From<ProofChoice> for Proof {
    fn from(choice: ProofChoice) -> Self {
        match choice {
            ProofChoice::Touched => Self::Touched,
            ProofChoice::Full => Self::Full,
        }
    }
}

/// Whom a pull trusts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TrustChoice {
    /// The server: composed patches are taken as they come.
    Server,
    /// The commits: each version's own patches are fetched, checked and composed here.
    Edges,
    /// The hashes: whole tensors that changed are hashed too.
    Content,
}

impl From<TrustChoice> for Trust {
    fn from(choice: TrustChoice) -> Self {
        match choice {
            TrustChoice::Server => Self::Server,
            TrustChoice::Edges => Self::Edges,
            TrustChoice::Content => Self::Content,
        }
    }
}

#[derive(Serialize)]
struct Pulled {
    repo: String,
    dir: String,
    /// Repository, version and commit that the replica held.
    from_repo: Option<String>,
    from: Option<u64>,
    from_commit: Option<String>,
    to: u64,
    commit: String,
    received_bytes: u64,
    full_bytes: u64,
    changed: u64,
    elements: u64,
    patched: u64,
    whole: u64,
    seeded: u64,
    unchanged: u64,
    repaired: Vec<String>,
    /// Seeds that could not be used, with the reason.
    seeds_skipped: Vec<String>,
    seconds: f64,
    proof: String,
    trust: String,
    #[serde(skip)]
    verbose: bool,
}

impl Pulled {
    fn new(
        repo: &RepoName,
        dir: &Path,
        before: Option<Before>,
        snapshot: &Snapshot,
        outcome: PullOutcome,
    ) -> Self {
        let (from_repo, from_commit) = before
            .map(|before| (before.repo, before.commit.to_string()))
            .unzip();
        Self {
            repo: repo.to_string(),
            dir: dir.display().to_string(),
            from_repo,
            from: outcome.from.map(|from| from.0),
            from_commit,
            to: outcome.to.0,
            commit: snapshot.id.to_string(),
            received_bytes: outcome.received_bytes,
            full_bytes: snapshot.full_bytes(),
            changed: outcome.changed,
            elements: snapshot.elements(),
            patched: outcome.patched,
            whole: outcome.whole,
            seeded: outcome.seeded,
            unchanged: outcome.unchanged,
            repaired: outcome.repaired,
            seeds_skipped: outcome.seeds_skipped,
            seconds: outcome.seconds,
            proof: outcome.proof.to_string(),
            trust: outcome.trust.to_string(),
            verbose: false,
        }
    }
}

impl Answer for Pulled {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let (dir, repo) = (&self.dir, &self.repo);
        let to = format!("v{} {}", self.to, &self.commit[..12]);
        let name = match (&self.from_repo, self.from) {
            (Some(other), Some(from)) if other != repo => {
                format!("{dir}: {other} v{from} → {repo} {to}")
            }
            (_, Some(from)) if !self.is_where_it_was() => {
                format!("{dir}: {repo} v{from} → {to}")
            }
            _ => format!("{dir}: {repo} {to}"),
        };
        let name = page.paint.yellow(&name);
        page.line(&format!("{name} · {}", self.words()))?;
        let tensors = self.tensors();
        if !tensors.is_empty() {
            let proof = match self.verbose {
                true => format!(" · proof: {}", self.proof),
                false => String::new(),
            };
            page.line(&page.paint.dim(&format!("tensors: {tensors}{proof}")))?;
        }
        for object in &self.repaired {
            page.line(&format!("repaired: {object}"))?;
        }
        Ok(())
    }

    fn print_quietly(&self, _page: &mut Page<'_>) -> io::Result<()> {
        Ok(())
    }
}

impl Pulled {
    fn is_where_it_was(&self) -> bool {
        self.from_commit.as_ref() == Some(&self.commit)
    }

    fn words(&self) -> String {
        let time = units::seconds(self.seconds);
        let (received, full) = (
            units::bytes(self.received_bytes),
            units::bytes(self.full_bytes),
        );
        if self.received_bytes == 0 && self.is_where_it_was() && self.repaired.is_empty() {
            return format!("holds it already ({time})");
        }
        let some_stayed = self.patched + self.seeded + self.unchanged > 0;
        if self.received_bytes == 0 || self.from.is_none() || !some_stayed {
            return format!("received {received} in {time}");
        }
        let ratio = units::ratio(self.full_bytes, self.received_bytes);
        format!("received {received} ({ratio} smaller than {full}) in {time}")
    }

    fn tensors(&self) -> String {
        let tensors = [
            (self.patched, "patched"),
            (self.whole, "fetched whole"),
            (self.seeded, "copied from this machine"),
            (self.unchanged, "unchanged"),
        ];
        let tensors = tensors.iter().filter(|(count, _)| *count > 0);
        let tensors = tensors.map(|(count, what)| format!("{} {what}", units::thousands(*count)));
        tensors.collect::<Vec<_>>().join(", ")
    }
}

/// Run the command.
///
/// # Errors
///
/// If there is no such revision, the folder is no replica or is not as the last pull left it, or something does not
/// fit.
pub fn run(args: &PullArgs, session: &Session) -> Result<()> {
    let branch = followed(args)?;
    let mut pull = Pull::new(args, session);
    match branch {
        None => session.answer(&pull.to(&args.revision)?),
        Some(branch) => pull.follow(branch),
    }
}

/// The branch that is to be followed, if that is wanted.
fn followed(args: &PullArgs) -> Result<Option<&BranchName>> {
    if !args.follow {
        return Ok(None);
    }
    match args.revision.selector.as_branch() {
        Some(branch) => Ok(Some(branch)),
        None => {
            let RevisionSpec { repo, selector, .. } = &args.revision;
            let message =
                format!("only a branch can be followed, and {selector} names one version");
            Err(Failure::usage(message).hint(format!("name a branch, such as {repo}@main")))
        }
    }
}

/// A folder that is being pulled to.
struct Pull<'a> {
    args: &'a PullArgs,
    session: &'a Session,
    options: PullOptions,
    /// Once it was opened.
    replica: Option<ReplicaFolder>,
}

impl<'a> Pull<'a> {
    fn new(args: &'a PullArgs, session: &'a Session) -> Self {
        Self {
            args,
            session,
            options: PullOptions {
                proof: args.proof.into(),
                trust: args.trust.into(),
                repair: args.repair,
                seeds: args.seed.clone(),
                path: args.revision.path.clone(),
                repo: args.revision.repo.to_string(),
                revision: args.revision.selector.to_string(),
            },
            replica: None,
        }
    }

    /// Make the folder hold the version that `revision` names now.
    fn to(&mut self, revision: &RevisionSpec) -> Result<Pulled> {
        let (args, session) = (self.args, self.session);
        let repositories = session.repositories()?;
        let snapshot = session.snapshot_of(&repositories, revision)?;
        let before = Before::of(self.replica()?);
        if let Some(before) = before.as_ref().filter(|_| !args.switch) {
            let repo = &revision.repo;
            let branches = repositories.branches(repo)?;
            let branch = branches
                .iter()
                .find(|record| record.branch.as_str() == self.options.revision);
            before.must_lead_to(repo, branch, &args.output)?;
        }
        self.reach(&repositories, &snapshot)
    }

    /// Make the folder hold what is newest, or at least a version of the branch that was told of.
    fn reach_newest(&mut self, (told, version): (CommitId, Version)) -> Result<Pulled> {
        let revision = &self.args.revision;
        let repositories = self.session.repositories()?;
        let newest = self.session.snapshot_of(&repositories, revision)?;
        if newest.commit.version >= version {
            return self.reach(&repositories, &newest);
        }
        // Another server told of it than the one that was just asked, which lags behind.
        match repositories.snapshot(&revision.repo, told) {
            Err(ClientError::Refused(Refusal::NotFound { .. })) => {
                let what = format!("the server does not have {version} yet, which another one has");
                Err(ClientError::from(Refusal::Unavailable { what }).into())
            }
            snapshot => self.reach(&repositories, &snapshot?),
        }
    }

    fn replica(&mut self) -> Result<&mut ReplicaFolder> {
        let (args, session) = (self.args, self.session);
        Ok(match &mut self.replica {
            Some(replica) => replica,
            none => none.insert(
                ReplicaFolder::open_or_create(&args.output, &session.progress)
                    .map_err(|error| filled_in(error.into(), args))?,
            ),
        })
    }

    fn reach(&mut self, repositories: &Repositories, snapshot: &Snapshot) -> Result<Pulled> {
        let (args, session) = (self.args, self.session);
        let repo = &args.revision.repo;
        let before = Before::of(self.replica()?);
        let source = repositories.source(repo);
        let Some(replica) = &mut self.replica else {
            unreachable!("it was opened above")
        };
        let outcome = replica
            .pull(&source, snapshot, &self.options, &session.progress)
            .map_err(|error| filled_in(not_pulled(error, replica, &self.options), args))?;
        for why in &outcome.seeds_skipped {
            session.warn(format_args!("a seed was skipped: {why}"));
        }
        let mut pulled = Pulled::new(repo, &args.output, before, snapshot, outcome);
        pulled.verbose = session.settings.verbose;
        Ok(pulled)
    }

    /// Keep the folder at the newest version of `branch` until the user stops it.
    fn follow(&mut self, branch: &BranchName) -> Result<()> {
        let (args, session) = (self.args, self.session);
        let pulled = self.to(&args.revision)?;
        session.next_answer(&pulled)?;
        // What was wrong with the folder is put right by now.
        self.options.repair = false;
        let mut held = self.held()?;
        let repo = &args.revision.repo;
        let mut following = Following::new(session, repo, branch, held.0)?;
        let mut patience = Patience::default();
        loop {
            let (id, commit) = following.next_version()?;
            // Several may have been told of since, and the newest of them was pulled.
            while commit.version > held.1 {
                match self.reach_newest((id, commit.version)) {
                    Ok(pulled) => {
                        patience.rewarded();
                        session.next_answer(&pulled)?;
                        held = self.held()?;
                    }
                    Err(failure) => patience.after(failure, session)?,
                }
            }
        }
    }

    /// The version that the folder holds.
    fn held(&self) -> Result<(CommitId, Version)> {
        let held = self.replica.as_ref().and_then(ReplicaFolder::held);
        let held = held.map(|held| (held.id, held.commit.version));
        held.ok_or_else(|| {
            let message = format!("{} holds no version", self.args.output.display());
            Failure::new(Kind::Error, message)
        })
    }
}

/// What a replica held before a pull.
struct Before {
    repo: String,
    /// The revision by which it was pulled.
    revision: String,
    version: Version,
    commit: CommitId,
}

impl Before {
    fn of(replica: &ReplicaFolder) -> Option<Self> {
        let (held, (repo, revision)) = replica.held().zip(replica.origin())?;
        Some(Self {
            repo: repo.to_owned(),
            revision: revision.to_owned(),
            version: held.commit.version,
            commit: held.id,
        })
    }

    /// Fail if a pull from `repo`, of the newest version of `branch` unless another one was named, is hardly meant: of
    /// another repository, or from a store that is behind.
    fn must_lead_to(&self, repo: &RepoName, branch: Option<&RefRecord>, dir: &Path) -> Result<()> {
        let (dir, held) = (dir.display(), self.version);
        if self.repo != repo.as_str() {
            let message = format!(
                "{dir} is a replica of {} (it holds {held}), not of {repo}",
                self.repo
            );
            return Err(Failure::new(Kind::Conflict, message).hint(format!(
                "name another folder, or make this one a replica of {repo} with --switch"
            )));
        }
        let Some(RefRecord {
            branch, version, ..
        }) = branch
        else {
            return Ok(());
        };
        if first_name(&self.revision) != branch.as_str() || *version >= held {
            return Ok(());
        }
        let named = match branch.as_str() {
            DEFAULT_BRANCH => version.to_string(),
            branch => format!("{branch}:{version}"),
        };
        let message = format!(
            "{dir} holds {held} of {repo}@{branch}, which is only at {version} in this store: is it an old copy?"
        );
        Err(Failure::new(Kind::Conflict, message).hint(format!(
            "name the older version if it is wanted, as {repo}@{named}, or go on with --switch"
        )))
    }
}

/// Why a pull failed, with a hint that knows what was asked for.
fn not_pulled(error: ClientError, replica: &ReplicaFolder, options: &PullOptions) -> Failure {
    let narrower = options.path.is_some() && replica.restriction() != options.path.as_ref();
    let hint = match error {
        ClientError::Invalid { .. } if narrower && replica.held().is_some() => Some(format!(
            "pull it into another folder; --seed {} reuses what this one has of it",
            replica.path().display()
        )),
        _ => None,
    };
    Failure::from(error).hint_if(hint)
}

/// A failure whose hint can be pasted.
fn filled_in(mut failure: Failure, args: &PullArgs) -> Failure {
    let (revision, dir) = (&args.revision, args.output.display());
    let repaired = format!("`deltaic pull {revision} -o {dir} --repair`");
    let hint = failure.hint.replace("`deltaic pull --repair`", &repaired);
    failure.hint = hint.replace("pull REPO ", &format!("pull {revision} "));
    failure
}

/// Make `dir` a replica of a version that was found already.
///
/// # Errors
///
/// As the command.
pub fn pull_snapshot(
    repositories: &Repositories,
    repo: &RepoName,
    snapshot: &Snapshot,
    dir: &Path,
    session: &Session,
) -> Result<PullOutcome> {
    let options = PullOptions {
        repo: repo.to_string(),
        revision: snapshot.commit.version.to_string(),
        ..PullOptions::default()
    };
    let mut replica = ReplicaFolder::open_or_create(dir, &session.progress)?;
    let source = repositories.source(repo);
    Ok(replica.pull(&source, snapshot, &options, &session.progress)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    #[test]
    fn only_a_branch_is_followed() {
        let branch = |revision: &str| {
            let line = ["deltaic", "pull", revision, "-o", "r", "--follow"];
            let Command::Pull(args) = Cli::parse_from(line).command else {
                panic!("it is a pull");
            };
            followed(&args).map(|branch| branch.map(ToString::to_string))
        };
        assert_eq!(branch("a/b"), Ok(Some("main".to_owned())));
        assert_eq!(branch("a/b@dev"), Ok(Some("dev".to_owned())));
        for one in ["a/b@v3", "a/b@main~1", "a/b@step=7"] {
            let failure = branch(one).expect_err(one);
            assert_eq!(failure.kind, Kind::Usage);
        }
    }

    fn before(revision: &str) -> Before {
        Before {
            repo: "acme/policy".to_owned(),
            revision: revision.to_owned(),
            version: Version(7),
            commit: CommitId([7; 32]),
        }
    }

    fn check(held_by: &str, repo: &str, branch: Option<(&str, u64)>) -> Result<()> {
        let repo: RepoName = repo.parse()?;
        let record = branch.map(|(name, version)| -> Result<RefRecord> {
            Ok(RefRecord {
                repo: repo.clone(),
                branch: name.parse()?,
                commit: CommitId([1; 32]),
                version: Version(version),
                time_ms: 0,
                expiry_ms: None,
            })
        });
        let record = record.transpose()?;
        before(held_by).must_lead_to(&repo, record.as_ref(), Path::new("replica"))
    }

    #[test]
    fn another_repository_is_not_pulled_by_mistake() {
        let failure = check("main", "acme/other", Some(("main", 9))).expect_err("another one");
        assert_eq!(failure.kind, Kind::Conflict);
        assert!(
            failure
                .message
                .contains("acme/policy (it holds v7), not of acme/other")
        );
        assert!(failure.hint.contains("--switch"));
    }

    #[test]
    fn an_older_branch_is_refused_an_older_version_that_is_named_is_not() {
        for held_by in ["main", "v7", "main~2", "step=7"] {
            let failure = check(held_by, "acme/policy", Some(("main", 3))).expect_err(held_by);
            assert_eq!(failure.kind, Kind::Conflict);
            assert!(failure.message.contains("v7") && failure.message.contains("v3"));
            assert!(failure.hint.contains("acme/policy@v3"), "{}", failure.hint);
        }
        let failure = check("dev:v7", "acme/policy", Some(("dev", 3))).expect_err("dev is behind");
        assert!(failure.hint.contains("acme/policy@dev:v3"));
        for (held_by, branch) in [
            ("main", None),
            ("main", Some(("main", 7))),
            ("main", Some(("main", 8))),
            ("dev", Some(("main", 3))),
            ("best", Some(("main", 3))),
        ] {
            assert!(check(held_by, "acme/policy", branch).is_ok(), "{held_by}");
        }
    }
}
