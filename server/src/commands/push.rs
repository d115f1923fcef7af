//! `deltaic push`: the history of a branch to a server.

use crate::arguments::{BranchSpec, endpoint};
use crate::output::{Answer, Page};
use crate::report::{Failure, Kind, Result};
use crate::repositories::Repositories;
use crate::session::Session;
use crate::units;
use crate::versions::VersionName;
use clap::Args;
use deltaic_client::transfer::{Copied, copy_branch};
use serde::Serialize;
use std::io;
use std::time::Instant;

/// Copy the history of a branch to a server: the versions that it does not have.
///
/// Versions keep their commits, and so their ids. What travels is a patch for each; pushing again after a cut sends what
/// is still missing. A branch that has gone its own way on the server is never overwritten.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic push acme/policy --to http://other:7421      the branch main
  deltaic push acme/policy@dev --to http://other:7421  another branch
  deltaic --endpoint http://here:7421 push acme/policy --to http://other:7421
                                                       from server to server")]
pub struct PushArgs {
    /// Repository and branch, such as acme/policy@dev; the branch is main if not named.
    #[arg(value_name = "REPO[@BRANCH]")]
    target: BranchSpec,
    /// The server that gets it.
    #[arg(long, value_name = "URL", value_parser = endpoint)]
    to: String,
}

/// A branch that was copied.
#[derive(Serialize)]
pub struct CopiedBranch {
    #[serde(flatten)]
    name: VersionName,
    from: String,
    to: String,
    /// Versions that the receiver did not have.
    versions: u64,
    sent_bytes: u64,
    seconds: f64,
}

impl CopiedBranch {
    /// `target` was copied.
    pub fn new(target: BranchSpec, ends: [String; 2], copied: &Copied, begun: Instant) -> Self {
        let [from, to] = ends;
        Self {
            name: VersionName {
                repo: target.repo,
                branch: Some(target.branch),
                version: copied.version,
                commit: copied.head,
            },
            from,
            to,
            versions: copied.versions,
            sent_bytes: copied.sent_bytes,
            seconds: begun.elapsed().as_secs_f64(),
        }
    }
}

impl Answer for CopiedBranch {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let (to, time) = (&self.to, units::seconds(self.seconds));
        let name = page.paint.yellow(&self.name.to_string());
        page.line(&match self.versions {
            0 => format!("{name} · {to} has it already ({time})"),
            versions => format!(
                "{name} · {} to {to}, {} in {time}",
                units::plural(versions, "version", "versions"),
                units::bytes(self.sent_bytes)
            ),
        })
    }

    fn print_quietly(&self, _page: &mut Page<'_>) -> io::Result<()> {
        Ok(())
    }
}

/// Run the command.
///
/// # Errors
///
/// If there is no such branch, the server has one that went another way, or it cannot be reached.
pub fn run(args: PushArgs, session: &Session) -> Result<()> {
    let begun = Instant::now();
    let from = session.repositories()?;
    let to = session.repositories_at(&args.to)?;
    let copied = copy(&from, &to, &args.target, session)?;
    let ends = [session.place_name()?, args.to];
    session.answer(&CopiedBranch::new(args.target, ends, &copied, begun))
}

/// Copy a branch.
///
/// # Errors
///
/// As the command.
pub fn copy(
    from: &Repositories,
    to: &Repositories,
    target: &BranchSpec,
    session: &Session,
) -> Result<Copied> {
    let BranchSpec { repo, branch } = target;
    let copy = copy_branch(from.shared(), to.shared(), repo, branch, session.watcher());
    from.wait_for_end(copy).map_err(|error| {
        let failure = Failure::from(error);
        match failure.kind {
            Kind::Conflict => failure.hint(format!(
                "the branch has gone two ways: give one of them another name with `deltaic branch create {repo} NAME {branch}`"
            )),
            _ => failure,
        }
    })
}
