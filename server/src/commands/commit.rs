//! `deltaic commit`: the next version of a branch, from a checkpoint on disk.

use crate::arguments::{BranchSpec, RevisionOrNone, metadata};
use crate::embedded::Committed;
use crate::output::{Answer, Page};
use crate::report::Result;
use crate::session::Session;
use crate::units;
use crate::versions::{Change, VersionName};
use clap::Args;
use deltaic_client::Checkpoint;
use deltaic_store::{CommitOutcome, CommitRequest, Expect, Store};
use serde::Serialize;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Commit a checkpoint folder or a safetensors file as the next version of a branch.
///
/// Every file of the folder is committed and comes back byte for byte from an export; a Hugging Face cache
/// snapshot will do, symbolic links and all. Only what changed against the branch's newest version is stored.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic commit acme/policy ckpt/ -m 'after step 1200' --meta step=1200
  deltaic commit acme/policy@dev model.safetensors
  deltaic commit acme/policy ckpt/ --expect v41   fail if there is a v42
  deltaic commit acme/policy ckpt/ --expect none  fail unless it is the first")]
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
}

/// A new version.
#[derive(Serialize)]
pub struct NewVersion {
    #[serde(flatten)]
    name: VersionName,
    #[serde(flatten)]
    change: Change,
    new_bytes: u64,
    seconds: f64,
}

impl NewVersion {
    /// What came of a request.
    pub fn new(request: &CommitRequest, outcome: &CommitOutcome, time: Duration) -> Self {
        Self {
            name: VersionName {
                repo: request.repo.clone(),
                branch: Some(request.branch.clone()),
                version: outcome.version,
                commit: outcome.id,
            },
            change: Change::from(outcome),
            new_bytes: outcome.new_bytes,
            seconds: time.as_secs_f64(),
        }
    }
}

impl Answer for NewVersion {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let name = page.paint.yellow(&self.name.to_string());
        let change = self.change.words(self.name.version);
        let grown = units::bytes(self.new_bytes);
        let time = units::duration(Duration::from_secs_f64(self.seconds));
        page.line(&format!("{name} · {change}"))?;
        page.line(&page.paint.dim(&format!("store grew by {grown} in {time}")))
    }
}

/// Run the command.
///
/// # Errors
///
/// If the checkpoint cannot be read, the branch is not where it was expected, or the store is full or damaged.
pub fn run(args: CommitArgs, session: &Session) -> Result<()> {
    let begun = Instant::now();
    let checkpoint = Checkpoint::open(&args.path)?;
    let store = session.store()?;
    let expect = args
        .expect
        .as_ref()
        .map(|expect| expected(&store, &args.target, expect, session))
        .transpose()?;
    let request = CommitRequest {
        repo: args.target.repo,
        branch: args.target.branch,
        message: args.message,
        meta: args.meta.into_iter().collect(),
        time_ms: units::now_ms(),
        expect,
    };
    let outcome = store.commit(&request, &Committed::new(&checkpoint), &session.progress)?;
    session.answer(&NewVersion::new(&request, &outcome, begun.elapsed()))
}

fn expected(
    store: &Store,
    target: &BranchSpec,
    expect: &RevisionOrNone,
    session: &Session,
) -> Result<Expect> {
    match expect {
        RevisionOrNone::None => Ok(Expect::Nothing),
        RevisionOrNone::Revision(selector) => {
            let id = session.resolve(store, &target.repo, selector)?;
            Ok(Expect::Commit(id))
        }
    }
}
