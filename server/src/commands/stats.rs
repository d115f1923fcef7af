//! `deltaic stats`: what the store holds and what that takes.

use crate::output::{Answer, Page};
use crate::report::Result;
use crate::session::{Session, existing_repo};
use crate::units;
use clap::Args;
use deltaic_format::answers::StoreStats;
use deltaic_format::name::RepoName;
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
    /// How much less the store takes than whole versions would, in words; nothing where there is no version.
    fn saved(&self) -> Option<String> {
        // The store's own bytes are of all repositories: of one, those of its bases and patches are known.
        let taken = match self.repo {
            None => self.store_bytes,
            Some(_) => self.base_bytes + self.edge_bytes,
        };
        match (self.full_bytes, taken) {
            (0, _) => None,
            // Chains lead out of what is counted, so that its sums say nothing.
            (_, taken)
                if taken == 0
                    || (self.repo.is_some() && self.edge_bytes == 0 && self.longest_chain > 0) =>
            {
                Some(
                    "not known: contents of other repositories or deleted branches serve these too"
                        .to_owned(),
                )
            }
            (full, taken) if full <= taken => {
                Some("nothing yet: whole versions would take no more".to_owned())
            }
            (full, taken) => Some(format!(
                "{} smaller than whole versions ({} less)",
                units::ratio(full, taken),
                units::bytes(full - taken)
            )),
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
        page.field(
            "Whole",
            format!("{full}, if each version were stored whole"),
        )?;
        let contents = units::plural(
            self.contents,
            "different tensor or large file",
            "different tensors and large files",
        );
        page.field("Holds", contents)?;
        page.field(
            "Bases",
            match (self.base_bytes, self.contents) {
                (0, 0) => "none yet".to_owned(),
                (0, _) => {
                    "none of its own: other repositories or deleted branches have them".to_owned()
                }
                (bytes, _) => format!(
                    "{} for those of them that are stored whole",
                    units::bytes(bytes)
                ),
            },
        )?;
        page.field(
            "Patches",
            format!("{} for the others", units::bytes(self.edge_bytes)),
        )?;
        if let Some(saved) = self.saved() {
            page.field("Saved", saved)?;
        }
        page.field(
            "On disk",
            format!("{} for the whole store", units::bytes(self.store_bytes)),
        )?;
        let patches = units::plural(self.longest_chain, "patch", "patches");
        page.field(
            "Chain",
            format!("at most {patches} from a base to a newest version"),
        )
    }
}

/// Run the command.
///
/// # Errors
///
/// If there is no such repository, or the store cannot be read.
pub fn run(args: &StatsArgs, session: &Session) -> Result<()> {
    let repositories = session.repositories()?;
    if let Some(repo) = &args.repo {
        existing_repo(&repositories, repo)?;
    }
    let stats = repositories.stats(args.repo.as_ref())?;
    session.answer(&Stats::new(args.repo.as_ref(), &stats))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_reads_right_whatever_there_is() {
        let name: RepoName = "acme/policy".parse().expect("a valid name");
        let saved = |repo, full_bytes, base_bytes, edge_bytes, longest_chain| {
            let stats = StoreStats {
                full_bytes,
                store_bytes: base_bytes + edge_bytes + 100,
                base_bytes,
                edge_bytes,
                longest_chain,
                ..StoreStats::default()
            };
            Stats::new(repo, &stats).saved().unwrap_or_default()
        };
        let of = |full, bases, edges, chain| saved(Some(&name), full, bases, edges, chain);
        assert_eq!(of(0, 0, 0, 0), "");
        assert!(of(1000, 0, 0, 0).starts_with("not known"));
        assert!(of(1000, 10, 0, 1).starts_with("not known"));
        assert!(of(1000, 1000, 5, 1).starts_with("nothing yet"));
        assert_eq!(
            of(3400, 900, 100, 2),
            "3.4x smaller than whole versions (2.3 KiB less)"
        );
        assert_eq!(
            saved(None, 3300, 900, 100, 2),
            "3.0x smaller than whole versions (2.1 KiB less)"
        );
    }
}
