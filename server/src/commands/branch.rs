//! `deltaic branch`: make, list and delete branches.

use crate::output::{Answer, Page};
use crate::report::Result;
use crate::session::{Session, existing_repo, missing_name, taken_name};
use crate::table::Table;
use crate::units;
use clap::{Args, Subcommand};
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::RefRecord;
use deltaic_store::Selector;
use serde::Serialize;
use std::io;

/// Make, list and delete branches.
#[derive(Debug, Args)]
pub struct BranchArgs {
    #[command(subcommand)]
    command: BranchCommand,
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
    /// Delete a branch; its versions stay in the store as long as anything else leads to them.
    #[command(after_help = "Example:\n  deltaic branch delete acme/policy dev")]
    Delete {
        /// Repository.
        repo: RepoName,
        /// Name of the branch.
        name: BranchName,
    },
}

#[derive(Serialize)]
struct Branch {
    repo: String,
    name: String,
    version: u64,
    commit: String,
    time: String,
    #[serde(skip)]
    time_ms: i64,
}

impl From<RefRecord> for Branch {
    fn from(record: RefRecord) -> Self {
        Self {
            repo: record.repo.to_string(),
            name: record.branch.to_string(),
            version: record.version.0,
            commit: record.commit.to_string(),
            time: units::rfc3339(record.time_ms),
            time_ms: record.time_ms,
        }
    }
}

#[derive(Serialize)]
struct Done {
    #[serde(flatten)]
    branch: Branch,
    #[serde(skip)]
    what: &'static str,
}

impl Answer for Done {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let Branch {
            repo,
            name,
            version,
            commit,
            ..
        } = &self.branch;
        let at = format!("{repo}@{name} v{version} {}", &commit[..12]);
        page.line(&format!("{} {}", self.what, page.paint.yellow(&at)))
    }
}

#[derive(Serialize)]
struct List {
    repo: String,
    branches: Vec<Branch>,
}

impl Answer for List {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let mut table = Table::new(&["BRANCH", ">VERSION", "COMMIT", "SINCE"]);
        for branch in &self.branches {
            table.row([
                branch.name.clone(),
                format!("v{}", branch.version),
                branch.commit[..12].to_owned(),
                units::local_time(branch.time_ms),
            ]);
        }
        table.print(page)
    }
}

/// Run the command.
///
/// # Errors
///
/// If a name is taken or not there.
pub fn run(args: BranchArgs, session: &Session) -> Result<()> {
    let store = session.store()?;
    match args.command {
        BranchCommand::Create {
            repo,
            name,
            revision,
        } => {
            let commit = session.resolve(&store, &repo, &revision)?;
            let record = store
                .create_branch(&repo, &name, commit, units::now_ms())
                .map_err(taken_name)?;
            session.answer(&Done {
                branch: record.into(),
                what: "made branch",
            })
        }
        BranchCommand::List { repo } => {
            existing_repo(&store, &repo)?;
            let branches = store.branches(&repo)?;
            session.answer(&List {
                repo: repo.to_string(),
                branches: branches.into_iter().map(Branch::from).collect(),
            })
        }
        BranchCommand::Delete { repo, name } => {
            existing_repo(&store, &repo)?;
            let branches = store.branches(&repo)?.into_iter();
            let names: Vec<BranchName> = branches.map(|record| record.branch).collect();
            let record = store
                .delete_branch(&repo, &name)
                .map_err(|error| missing_name(error, &name, &names))?;
            session.answer(&Done {
                branch: record.into(),
                what: "deleted branch",
            })
        }
    }
}
