//! `deltaic repo`: the repositories of the store or server.

use crate::output::{Answer, Page};
use crate::report::Result;
use crate::repositories::Repositories;
use crate::session::Session;
use crate::table::Table;
use crate::units;
use clap::{Args, Subcommand};
use deltaic_format::name::RepoName;
use deltaic_format::revision::DEFAULT_BRANCH;
use serde::Serialize;
use std::io;

/// List the repositories of the store.
#[derive(Debug, Args)]
pub struct RepoArgs {
    #[command(subcommand)]
    command: RepoCommand,
}

#[derive(Debug, Subcommand)]
enum RepoCommand {
    /// List the repositories of the store; a first commit makes one.
    #[command(after_help = "Example:\n  deltaic repo list --json")]
    List,
}

#[derive(Serialize)]
struct List {
    repos: Vec<Repo>,
}

#[derive(Serialize)]
struct Repo {
    repo: String,
    /// Newest version of main.
    version: Option<u64>,
    branches: usize,
    tags: usize,
    /// When a branch last moved.
    time: Option<String>,
    #[serde(skip)]
    time_ms: Option<i64>,
}

impl Answer for List {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let mut table = Table::new(&["REPOSITORY", ">MAIN", ">BRANCHES", ">TAGS", "LAST CHANGE"]);
        for repo in &self.repos {
            let version = repo.version.map(|version| format!("v{version}"));
            table.row([
                repo.repo.clone(),
                version.unwrap_or_default(),
                units::thousands(repo.branches as u64),
                units::thousands(repo.tags as u64),
                repo.time_ms.map(units::local_time).unwrap_or_default(),
            ]);
        }
        table.print(page)
    }
}

/// Run the command.
///
/// # Errors
///
/// If the store cannot be read.
pub fn run(args: &RepoArgs, session: &Session) -> Result<()> {
    let repositories = session.repositories()?;
    match args.command {
        RepoCommand::List => {
            let repos = repositories.repos()?;
            let repos = repos.iter().map(|repo| describe(&repositories, repo));
            let repos = repos.collect::<Result<Vec<_>>>()?;
            if repos.is_empty() {
                session.talk("the store has no repository yet; a first commit makes one");
            }
            session.answer(&List { repos })
        }
    }
}

fn describe(repositories: &Repositories, repo: &RepoName) -> Result<Repo> {
    let branches = repositories.branches(repo)?;
    let main = branches
        .iter()
        .find(|record| record.branch.as_str() == DEFAULT_BRANCH);
    let time_ms = branches.iter().map(|record| record.time_ms).max();
    Ok(Repo {
        repo: repo.to_string(),
        version: main.map(|record| record.version.0),
        branches: branches.len(),
        tags: repositories.tags(repo)?.len(),
        time: time_ms.map(units::rfc3339),
        time_ms,
    })
}
