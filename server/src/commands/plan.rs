//! `deltaic plan`: what a fetch would take.

use crate::arguments::RevisionOrNone;
use crate::output::{Answer, Page};
use crate::report::Result;
use crate::session::Session;
use crate::units;
use clap::Args;
use deltaic_format::fetch::{FetchPlan, wishes_between};
use deltaic_format::name::RepoName;
use deltaic_format::object::Snapshot;
use deltaic_store::Selector;
use serde::Serialize;
use std::io;

/// Show what somebody who holds version M would be sent for version N: by which route, in how many bytes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic plan acme/policy v3 v42    from v3 to v42, in one composed patch
  deltaic plan acme/policy v42 v3    and back
  deltaic plan acme/policy none main a new worker, which holds nothing")]
pub struct PlanArgs {
    /// Repository.
    repo: RepoName,
    /// The revision that is held, or none.
    #[arg(value_name = "M")]
    held: RevisionOrNone,
    /// The revision that is wanted.
    #[arg(value_name = "N")]
    wanted: Selector,
}

#[derive(Serialize)]
struct Planned {
    repo: String,
    from: Option<u64>,
    from_commit: Option<String>,
    to: u64,
    to_commit: String,
    bytes: u64,
    full_bytes: u64,
    coding: &'static str,
    route: Route,
}

/// How many tensors come in which way.
#[derive(Serialize)]
struct Route {
    unchanged: u64,
    patched: u64,
    whole: u64,
    longest_path: u64,
}

impl Answer for Planned {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let from = match self.from {
            Some(version) => format!("v{version}"),
            None => "nothing".to_owned(),
        };
        let (bytes, full) = (units::bytes(self.bytes), units::bytes(self.full_bytes));
        let title = format!("{} from {from} to v{}", self.repo, self.to);
        let ratio = match self.bytes {
            0 => String::new(),
            bytes => format!(
                ", {} smaller than {full}",
                units::ratio(self.full_bytes, bytes)
            ),
        };
        page.line(&format!("{} · {bytes}{ratio}", page.paint.yellow(&title)))?;
        page.field("Coding", self.coding)?;
        let tensors = |count| units::plural(count, "tensor", "tensors");
        page.field("Unchanged", tensors(self.route.unchanged))?;
        let edges = units::plural(self.route.longest_path, "edge", "edges");
        let path = match self.route.patched {
            0 => String::new(),
            _ => format!(", composed of up to {edges} each"),
        };
        page.field("Patched", format!("{}{path}", tensors(self.route.patched)))?;
        page.field("Whole", tensors(self.route.whole))
    }
}

/// Run the command.
///
/// # Errors
///
/// If there are no such revisions, or what lies between them cannot be read.
pub fn run(args: &PlanArgs, session: &Session) -> Result<()> {
    let store = session.store()?;
    let held = match &args.held {
        RevisionOrNone::None => None,
        RevisionOrNone::Revision(held) => Some(session.snapshot(&store, &args.repo, held)?),
    };
    let wanted = session.snapshot(&store, &args.repo, &args.wanted)?;
    let wishes = wishes_between(held.as_ref(), &wanted);
    let plan = store.plan_exactly(&wanted, &wishes, &session.progress)?;
    session.answer(&planned(&args.repo, held.as_ref(), &wanted, &plan))
}

fn planned(
    repo: &RepoName,
    held: Option<&Snapshot>,
    wanted: &Snapshot,
    plan: &FetchPlan,
) -> Planned {
    Planned {
        repo: repo.to_string(),
        from: held.map(|held| held.commit.version.0),
        from_commit: held.map(|held| held.id.to_string()),
        to: wanted.commit.version.0,
        to_commit: wanted.id.to_string(),
        bytes: plan.bytes,
        full_bytes: wanted.full_bytes(),
        coding: coding(plan),
        route: Route {
            unchanged: plan.unchanged,
            patched: plan.patched,
            whole: plan.whole,
            longest_path: plan.longest_path,
        },
    }
}

fn coding(plan: &FetchPlan) -> &'static str {
    match (plan.patched, plan.whole) {
        (0, 0) => "none",
        (_, 0) => "plain",
        (0, _) => "base",
        _ => "plain+base",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coding_says_what_travels() {
        let plan = |patched, whole| FetchPlan {
            patched,
            whole,
            ..FetchPlan::default()
        };
        assert_eq!(coding(&plan(0, 0)), "none");
        assert_eq!(coding(&plan(3, 0)), "plain");
        assert_eq!(coding(&plan(0, 3)), "base");
        assert_eq!(coding(&plan(1, 3)), "plain+base");
    }
}
