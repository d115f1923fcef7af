//! `deltaic tag`: make, list and delete tags.

use super::refs::{
    Done, List, NamedVersion, Names, missing_name, must_lose_nothing, reached_by_tag_alone,
    taken_name,
};
use crate::report::Result;
use crate::session::{Session, existing_repo, only_repo};
use crate::units;
use clap::{Args, Subcommand};
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::revision::Selector;

/// Make, list and delete tags, which name one version for ever.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = false)]
pub struct TagArgs {
    #[command(subcommand)]
    command: Option<TagCommand>,
    /// List the tags of this repository [default: the only one].
    repo: Option<RepoName>,
}

#[derive(Debug, Subcommand)]
enum TagCommand {
    /// Give a version a name that stays with it.
    #[command(after_help = "\
Examples:
  deltaic tag create acme/policy best        the newest version of main
  deltaic tag create acme/policy rc1 dev:v7  a version of another branch")]
    Create {
        /// Repository.
        repo: RepoName,
        /// Name of the tag.
        name: BranchName,
        /// What it names.
        #[arg(value_name = "REV", default_value = "main")]
        revision: Selector,
    },
    /// List the tags of a repository.
    #[command(after_help = "Example:\n  deltaic tag list acme/policy")]
    List {
        /// Repository.
        repo: RepoName,
    },
    /// Delete a tag, unless versions would be lost with it.
    ///
    /// If no branch or other tag leads to its version, nothing is deleted without --force. The command that brings the
    /// tag back is printed.
    #[command(after_help = "\
Examples:
  deltaic tag delete acme/policy best
  deltaic tag delete acme/policy best --force  even if its version is lost")]
    Delete {
        /// Repository.
        repo: RepoName,
        /// Name of the tag.
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
pub fn run(args: TagArgs, session: &Session) -> Result<()> {
    let repositories = session.repositories()?;
    let command = match args.command {
        Some(command) => command,
        None => TagCommand::List {
            repo: args
                .repo
                .map_or_else(|| only_repo(&repositories, "tag list"), Ok)?,
        },
    };
    match command {
        TagCommand::Create {
            repo,
            name,
            revision,
        } => {
            let commit = session.resolve(&repositories, &repo, &revision)?;
            let tag = repositories
                .create_tag(&repo, &name, commit, units::now_ms())
                .map_err(|error| taken_name(&repositories, &repo, &name, error.into()))?;
            let tag = NamedVersion::of_tag(&repositories, &repo, &tag)?;
            session.answer(&Done::made("tag", tag))
        }
        TagCommand::List { repo } => {
            existing_repo(&repositories, &repo)?;
            let tags = repositories.tags(&repo)?;
            let tags = tags
                .iter()
                .map(|tag| NamedVersion::of_tag(&repositories, &repo, tag));
            session.answer(&List {
                repo: repo.to_string(),
                names: Names::Tags(tags.collect::<Result<_>>()?),
            })
        }
        TagCommand::Delete { repo, name, force } => {
            existing_repo(&repositories, &repo)?;
            let tags = repositories.tags(&repo)?;
            let names: Vec<BranchName> = tags.iter().map(|tag| tag.name.clone()).collect();
            // Afterwards perhaps nothing leads to its version any more.
            let named = tags.iter().find(|tag| tag.name == name);
            let named = named
                .map(|tag| NamedVersion::of_tag(&repositories, &repo, tag))
                .transpose()?;
            if named.is_some() && !force {
                let lost = reached_by_tag_alone(&repositories, &repo, &name)?;
                let others = names.len() - 1 + repositories.branches(&repo)?.len();
                must_lose_nothing(&repo, &name, &lost, others)?;
            }
            let tag = repositories
                .delete_tag(&repo, &name)
                .map_err(|error| missing_name(error.into(), &name, &names))?;
            let named = match named {
                Some(named) => named,
                None => NamedVersion::of_tag(&repositories, &repo, &tag)?,
            };
            session.answer(&Done::deleted("tag", named))
        }
    }
}
