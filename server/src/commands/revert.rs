//! `deltaic revert`: an old version's content as the next version.

use super::commit::{NewVersion, not_committed};
use crate::arguments::BranchSpec;
use crate::report::Result;
use crate::session::{Session, branch_of};
use crate::units;
use clap::Args;
use deltaic_format::Version;
use deltaic_format::answers::CommitRequest;
use deltaic_format::ids::CommitId;
use deltaic_format::name::BranchName;
use deltaic_format::revision::Selector;
use std::collections::BTreeMap;
use std::time::Instant;

/// Commit the content of an earlier version as the next one.
///
/// Numbers go on, so that workers that follow the branch go back by an ordinary patch.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic revert acme/policy v41      the next version of main is v41 again
  deltaic revert acme/policy@dev v41  the next version of dev is v41 of dev again
  deltaic revert acme/policy@dev dev~2 -m 'back to before the spike'")]
pub struct RevertArgs {
    /// Repository and branch, such as acme/policy@main; the branch is main if not named.
    #[arg(value_name = "REPO[@BRANCH]")]
    target: BranchSpec,
    /// The revision whose content is wanted again; vN is that version of the branch that is reverted.
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
    let repositories = session.repositories()?;
    let BranchSpec { repo, branch } = args.target;
    let revision = args.revision.within(&branch);
    let target = session.resolve(&repositories, &repo, &revision)?;
    let version = repositories.commit(&repo, target)?.version;
    let from = branch_of(&repositories, &repo, &revision)?;
    let said = (args.message).unwrap_or_else(|| message(&branch, from.as_ref(), version, target));
    let request = CommitRequest {
        repo,
        branch,
        message: said,
        meta: BTreeMap::new(),
        time_ms: units::now_ms(),
        expect: None,
    };
    let outcome = repositories
        .revert(&request, target)
        .map_err(|error| not_committed(&repositories, &request, error.into()))?;
    session.answer(&NewVersion::new(
        &repositories,
        &request,
        &outcome,
        begun.elapsed(),
    ))
}

/// What is said of a revert on `branch` where nothing else is: the branch that the version is of, if it is another one.
fn message(
    branch: &BranchName,
    from: Option<&BranchName>,
    version: Version,
    target: CommitId,
) -> String {
    let id = target.short();
    match from {
        Some(other) if other != branch => format!("Revert to {version} of {other} ({id})"),
        _ => format!("Revert to {version} ({id})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_branch_is_named() {
        let name = |text: &str| BranchName::new(text).expect("a valid name");
        let (main, dev, id) = (name("main"), name("dev"), CommitId([0; 32]));
        let say = |from: Option<&BranchName>| message(&dev, from, Version(6), id);
        assert!(say(Some(&main)).starts_with("Revert to v6 of main (0000"));
        assert!(say(Some(&dev)).starts_with("Revert to v6 (0000"));
        assert!(say(None).starts_with("Revert to v6 (0000"));
    }
}
