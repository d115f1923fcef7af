//! `deltaic pull`: make a folder a replica of a version.

use crate::embedded::StoreSource;
use crate::output::{Answer, Page};
use crate::report::Result;
use crate::session::Session;
use crate::units;
use clap::{Args, ValueEnum};
use deltaic_client::{Proof, PullOptions, PullOutcome, ReplicaFolder};
use deltaic_format::name::RepoName;
use deltaic_format::object::Snapshot;
use deltaic_store::{RevisionSpec, Store};
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Make a folder a replica of a version, patching in place from the version that it holds.
///
/// Nothing is written before all that is needed is there and proven to fit; a pull that is cut off is finished or
/// undone by the next one. Files that the version does not have are left alone.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic pull acme/policy -o replica/           to the newest version of main
  deltaic pull acme/policy@v41 -o replica/       back to v41, by patch
  deltaic pull acme/policy -o new/ --seed old/   reuse what is the same in old/
  deltaic pull acme/policy -o replica/ --repair  fetch again what is damaged")]
pub struct PullArgs {
    /// Repository, revision and, where only part of it is wanted, a file or folder.
    #[arg(value_name = "REPO[@REV][:PATH]")]
    revision: RevisionSpec,
    /// The replica's folder: a replica, or a folder that is empty or not there yet.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Reuse tensors of this checkpoint where their hash is right; may be given several times.
    #[arg(long, value_name = "DIR")]
    seed: Vec<PathBuf>,
    /// Say how to prove that the replica holds the version.
    #[arg(long, value_name = "HOW", default_value = "touched")]
    proof: ProofChoice,
    /// Check everything that is held, and fetch again what is not as the last pull left it.
    #[arg(long)]
    repair: bool,
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

#[derive(Serialize)]
struct Pulled {
    repo: String,
    dir: PathBuf,
    from: Option<u64>,
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
    seconds: f64,
    proof: String,
}

impl Pulled {
    fn new(repo: &RepoName, dir: &Path, snapshot: &Snapshot, outcome: PullOutcome) -> Self {
        Self {
            repo: repo.to_string(),
            dir: dir.to_owned(),
            from: outcome.from.map(|from| from.0),
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
            seconds: outcome.seconds,
            proof: outcome.proof.to_string(),
        }
    }
}

impl Answer for Pulled {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let (dir, repo) = (self.dir.display(), &self.repo);
        let to = format!("v{} {}", self.to, &self.commit[..12]);
        let name = match self.from {
            Some(from) if from != self.to => format!("{dir}: {repo} v{from} → {to}"),
            _ => format!("{dir}: {repo} {to}"),
        };
        let name = page.paint.yellow(&name);
        page.line(&format!("{name} · {}", self.words()))?;
        let tensors = self.tensors();
        if !tensors.is_empty() {
            let proof = &self.proof;
            page.line(
                &page
                    .paint
                    .dim(&format!("tensors: {tensors} · proof: {proof}")),
            )?;
        }
        for object in &self.repaired {
            page.line(&format!("repaired: {object}"))?;
        }
        Ok(())
    }
}

impl Pulled {
    fn words(&self) -> String {
        let time = units::duration(Duration::try_from_secs_f64(self.seconds).unwrap_or_default());
        let (received, full) = (
            units::bytes(self.received_bytes),
            units::bytes(self.full_bytes),
        );
        if self.received_bytes == 0 && self.from == Some(self.to) && self.repaired.is_empty() {
            return format!("holds it already ({time})");
        }
        if self.received_bytes == 0 || self.from.is_none() || self.whole > 0 {
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
    let store = session.store()?;
    let RevisionSpec {
        repo,
        selector,
        path,
    } = &args.revision;
    let snapshot = session.snapshot_of(&store, &args.revision)?;
    let options = PullOptions {
        proof: args.proof.into(),
        repair: args.repair,
        seeds: args.seed.clone(),
        path: path.clone(),
        repo: repo.to_string(),
        revision: selector.to_string(),
    };
    let outcome = pull_with(&store, &snapshot, &args.output, &options, session)?;
    session.answer(&Pulled::new(repo, &args.output, &snapshot, outcome))
}

/// Make `dir` a replica of a version that was found already.
///
/// # Errors
///
/// As the command.
pub fn pull_snapshot(
    store: &Store,
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
    pull_with(store, snapshot, dir, &options, session)
}

fn pull_with(
    store: &Store,
    snapshot: &Snapshot,
    dir: &Path,
    options: &PullOptions,
    session: &Session,
) -> Result<PullOutcome> {
    let mut replica = ReplicaFolder::open_or_create(dir)?;
    Ok(replica.pull(&StoreSource(store), snapshot, options, &session.progress)?)
}
