//! `deltaic revert`: an old version's content as the next version.

use super::commit::{NewVersion, not_committed};
use crate::arguments::BranchSpec;
use crate::report::Result;
use crate::session::Session;
use crate::units;
use clap::Args;
use deltaic_store::{CommitRequest, Selector};
use std::collections::BTreeMap;
use std::time::Instant;

/// Commit the content of an earlier version as the next one.
///
/// Numbers go on, so that workers that follow the branch go back by an ordinary patch.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic revert acme/policy v41    the next version of main is v41 again
  deltaic revert acme/policy@dev dev~2 -m 'back to before the spike'")]
pub struct RevertArgs {
    /// Repository and branch, such as acme/policy@main; the branch is main if not named.
    #[arg(value_name = "REPO[@BRANCH]")]
    target: BranchSpec,
    /// The revision whose content is wanted again.
    #[arg(value_name = "REV")]
    revision: Selector,
    /// What to say about the version [default: "Revert to vN"].
    #[arg(short, long)]
    message: Option<String>,
}

/// Run the command.
///
/// # Errors
///
/// If there is no such branch or revision, or the store is full or damaged.
pub fn run(args: RevertArgs, session: &Session) -> Result<()> {
    let begun = Instant::now();
    let store = session.store()?;
    let BranchSpec { repo, branch } = args.target;
    let target = session.resolve(&store, &repo, &args.revision)?;
    let version = store.read_commit(target)?.version;
    let request = CommitRequest {
        repo,
        branch,
        message: args
            .message
            .unwrap_or_else(|| format!("Revert to {version} ({})", target.short())),
        meta: BTreeMap::new(),
        time_ms: units::now_ms(),
        expect: None,
    };
    let outcome = store
        .revert(&request, target, &session.progress)
        .map_err(|error| not_committed(&store, &request, error.into()))?;
    session.answer(&NewVersion::new(
        &store,
        &request,
        &outcome,
        begun.elapsed(),
    ))
}
