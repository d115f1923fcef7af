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

impl Stats {
    /// What storing changes instead of whole versions saves, in words; nothing where there is no version.
    fn saved(&self) -> Option<String> {
        let taken = self.base_bytes + self.edge_bytes;
        match (self.full_bytes, taken) {
            (0, _) => None,
            // Chains lead out of what is counted, so that its sums say nothing.
            (_, taken) if taken == 0 || (self.edge_bytes == 0 && self.longest_chain > 0) => Some(
                "not known: contents of other repositories or deleted branches serve these too"
                    .to_owned(),
            ),
            (full, taken) if full <= taken => {
                Some("nothing yet: bases and edges take as much as whole versions".to_owned())
            }
            (full, taken) => {
                let ratio = units::ratio(full, taken);
                Some(format!(
                    "whole versions would take {ratio} what bases and edges do"
                ))
            }
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
        let full = units::bytes(self.full_bytes);
        page.field("Whole", format!("{full}, were each version stored whole"))?;
        let bases = units::bytes(self.base_bytes);
        let contents = units::plural(self.contents, "content", "contents");
        page.field(
            "Bases",
            match (self.base_bytes, self.contents) {
                (0, 0) => "none yet".to_owned(),
                (0, _) => format!("none of its own for its {contents}"),
                _ => format!("{bases}, from which {contents} are made"),
            },
        )?;
        page.field("Edges", units::bytes(self.edge_bytes))?;
        if let Some(saved) = self.saved() {
            page.field("Saved", saved)?;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_reads_right_whatever_there_is() {
        let saved = |full_bytes, base_bytes, edge_bytes, longest_chain| {
            let stats = StoreStats {
                full_bytes,
                base_bytes,
                edge_bytes,
                longest_chain,
                ..StoreStats::default()
            };
            Stats::new(None, &stats).saved().unwrap_or_default()
        };
        assert_eq!(saved(0, 0, 0, 0), "");
        assert!(saved(1000, 0, 0, 0).starts_with("not known"));
        assert!(saved(1000, 10, 0, 1).starts_with("not known"));
        assert!(saved(1000, 1000, 5, 1).starts_with("nothing yet"));
        assert_eq!(
            saved(3400, 900, 100, 2),
            "whole versions would take 3.4x what bases and edges do"
        );
    }
}
