//! `deltaic stats`: what the store holds and what that takes.

use crate::output::{Answer, Page};
use crate::report::Result;
use crate::session::{Session, existing_repo};
use crate::units;
use clap::Args;
use deltaic_format::name::RepoName;
use deltaic_store::StoreStats;
use serde::Serialize;
use std::io;

/// Show what the store, or one repository of it, holds and how much space that takes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic stats
  deltaic stats acme/policy --json")]
pub struct StatsArgs {
    /// Count this repository only [default: all].
    repo: Option<RepoName>,
}

#[derive(Serialize)]
struct Stats {
    repo: Option<String>,
    repos: u64,
    branches: u64,
    commits: u64,
    contents: u64,
    full_bytes: u64,
    store_bytes: u64,
    base_bytes: u64,
    edge_bytes: u64,
    longest_chain: u64,
}

impl Stats {
    fn new(repo: Option<&RepoName>, stats: &StoreStats) -> Self {
        Self {
            repo: repo.map(ToString::to_string),
            repos: stats.repos,
            branches: stats.branches,
            commits: stats.commits,
            contents: stats.contents,
            full_bytes: stats.full_bytes,
            store_bytes: stats.store_bytes,
            base_bytes: stats.base_bytes,
            edge_bytes: stats.edge_bytes,
            longest_chain: stats.longest_chain,
        }
    }
}

impl Answer for Stats {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let versions = units::plural(self.commits, "version", "versions");
        let branches = units::plural(self.branches, "branch", "branches");
        match &self.repo {
            Some(repo) => page.field("Of", repo)?,
            None => page.field(
                "Of",
                units::plural(self.repos, "repository", "repositories"),
            )?,
        }
        page.field("Versions", format!("{versions} on {branches}"))?;
        let ratio = units::ratio(self.full_bytes, self.base_bytes + self.edge_bytes);
        let full = units::bytes(self.full_bytes);
        page.field("Whole", format!("{full}, were each version stored whole"))?;
        let bases = units::bytes(self.base_bytes);
        let contents = units::plural(self.contents, "content", "contents");
        page.field("Bases", format!("{bases} ({contents} in all)"))?;
        page.field("Edges", units::bytes(self.edge_bytes))?;
        page.field(
            "Saved",
            format!("bases and edges take {ratio} less than whole versions"),
        )?;
        page.field(
            "On disk",
            format!("{} for the whole store", units::bytes(self.store_bytes)),
        )?;
        let edges = units::plural(self.longest_chain, "edge", "edges");
        page.field(
            "Chain",
            format!("{edges} from a newest version to its base, at most"),
        )
    }
}

/// Run the command.
///
/// # Errors
///
/// If there is no such repository, or the store cannot be read.
pub fn run(args: &StatsArgs, session: &Session) -> Result<()> {
    let store = session.store()?;
    if let Some(repo) = &args.repo {
        existing_repo(&store, repo)?;
    }
    let stats = store.stats(args.repo.as_ref())?;
    session.answer(&Stats::new(args.repo.as_ref(), &stats))
}
