//! `deltaic branch`: make, list and delete branches.

use super::refs::{Done, List, NamedVersion, Names, missing_name, must_lose_nothing, taken_name};
use crate::report::Result;
use crate::session::{Session, existing_repo, only_repo};
use crate::units;
use clap::{Args, Subcommand};
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::revision::Selector;

/// Make, list and delete branches.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = false)]
pub struct BranchArgs {
    #[command(subcommand)]
    command: Option<BranchCommand>,
    /// List the branches of this repository [default: the only one].
    repo: Option<RepoName>,
}

#[derive(Debug, Subcommand)]
enum BranchCommand {
    /// Make a branch at a revision; its next version is the one after that.
    #[command(after_help = "\
Examples:
  deltaic branch create acme/policy dev        at the newest version of main
  deltaic branch create acme/policy old v12    at v12 of main")]
    Create {
        /// Repository.
        repo: RepoName,
        /// Name of the branch.
        name: BranchName,
        /// Where it begins.
        #[arg(value_name = "REV", default_value = "main")]
        revision: Selector,
    },
    /// List the branches of a repository.
    #[command(after_help = "Example:\n  deltaic branch list acme/policy")]
    List {
        /// Repository.
        repo: RepoName,
    },
    /// Delete a branch, unless versions would be lost with it.
    ///
    /// If no other branch or tag leads to some of its versions, nothing is deleted without --force. The command that
    /// brings the branch back is printed.
    #[command(after_help = "\
Examples:
  deltaic branch delete acme/policy dev
  deltaic branch delete acme/policy dev --force  even if versions are lost")]
    Delete {
        /// Repository.
        repo: RepoName,
        /// Name of the branch.
        name: BranchName,
        /// Delete it even if versions are then reached by nothing.
        #[arg(long)]
        force: bool,
    },
}

/// Run the command.
///
/// # Errors
///
/// If a name is taken or not there, or versions would be lost.
pub fn run(args: BranchArgs, session: &Session) -> Result<()> {
    let repositories = session.repositories()?;
    let command = match args.command {
        Some(command) => command,
        None => BranchCommand::List {
            repo: args
                .repo
                .map_or_else(|| only_repo(&repositories, "branch list"), Ok)?,
        },
    };
    match command {
        BranchCommand::Create {
            repo,
            name,
            revision,
        } => {
            let commit = session.resolve(&repositories, &repo, &revision)?;
            let record = repositories
                .create_branch(&repo, &name, commit, units::now_ms())
                .map_err(|error| taken_name(&repositories, &repo, &name, error.into()))?;
            session.answer(&Done::made("branch", record.into()))
        }
        BranchCommand::List { repo } => {
            existing_repo(&repositories, &repo)?;
            let branches = repositories.branches(&repo)?.into_iter();
            session.answer(&List {
                repo: repo.to_string(),
                names: Names::Branches(branches.map(NamedVersion::from).collect()),
            })
        }
        BranchCommand::Delete { repo, name, force } => {
            existing_repo(&repositories, &repo)?;
            let branches = repositories.branches(&repo)?.into_iter();
            let mut examined = None;
            let names: Vec<BranchName> = branches
                .inspect(|record| {
                    if record.branch == name {
                        examined = Some(record.commit);
                    }
                })
                .map(|record| record.branch)
                .collect();
            let lost = repositories
                .unreached_without(&repo, &name)
                .map_err(|error| missing_name(error.into(), &name, &names))?;
            if !force {
                let others = names.len() - 1 + repositories.tags(&repo)?.len();
                must_lose_nothing(&repo, &name, &lost, others)?;
            }
            let record = repositories.delete_branch(&repo, &name, examined)?;
            session.answer(&Done::deleted("branch", record.into()))
        }
    }
}
