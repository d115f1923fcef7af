//! `deltaic plan`: what a fetch would take.

use crate::arguments::{Ends, RangeTarget, RevisionOrNone, two_ends};
use crate::output::{Answer, Page};
use crate::report::{Failure, Result};
use crate::session::Session;
use crate::units;
use clap::Args;
use deltaic_format::fetch::{FetchPlan, FetchRequest, wishes_between};
use deltaic_format::ids::TensorId;
use deltaic_format::name::RepoName;
use deltaic_format::object::{Snapshot, TensorView};
use deltaic_format::revision::Selector;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::io;

/// Show what somebody who holds version M would be sent for version N: by which route, in how many bytes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic plan acme/policy v3 v42    from v3 to v42, in one composed patch
  deltaic plan acme/policy v42 v3    and back
  deltaic plan acme/policy v3..v42   the same as in diff
  deltaic plan acme/policy none main a new worker, which holds nothing")]
pub struct PlanArgs {
    /// Repository.
    #[arg(value_name = "REPO")]
    target: RangeTarget,
    /// The revision that is held, or none.
    #[arg(value_name = "M")]
    held: Option<Ends>,
    /// The revision that is wanted; main if not named.
    #[arg(value_name = "N")]
    wanted: Option<Selector>,
}

#[derive(Serialize)]
struct Planned {
    repo: String,
    from: Option<u64>,
    from_commit: Option<String>,
    to: u64,
    to_commit: String,
    /// All that would be sent.
    bytes: u64,
    /// Of that, what is no tensor: other files, and headers of weight files.
    files_bytes: u64,
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
        let tensors = |count| units::plural(count, "tensor", "tensors");
        let Route {
            unchanged,
            patched,
            whole,
            longest_path,
        } = self.route;
        if patched > 0 {
            let over = match longest_path {
                0 | 1 => String::new(),
                steps => format!(
                    ", over up to {}",
                    units::plural(steps, "version", "versions")
                ),
            };
            page.field("Patches", format!("{}{over}", tensors(patched)))?;
        }
        if whole > 0 {
            page.field("Whole", format!("{} sent whole", tensors(whole)))?;
        }
        if unchanged > 0 {
            page.field(
                "Same",
                format!("{}, of which nothing is sent", tensors(unchanged)),
            )?;
        }
        match self.files_bytes {
            0 => Ok(()),
            files => page.field(
                "Files",
                format!("{} beside the tensors", units::bytes(files)),
            ),
        }
    }
}

/// Run the command.
///
/// # Errors
///
/// If there are no such revisions, or what lies between them cannot be read.
pub fn run(args: &PlanArgs, session: &Session) -> Result<()> {
    let repo = &args.target.repo;
    let (held, wanted) = two_ends(&args.target, args.held.as_ref(), args.wanted.as_ref())
        .map_err(|what| Failure::usage(what).hint("see `deltaic plan --help`"))?;
    let repositories = session.repositories()?;
    let held = match held {
        RevisionOrNone::None => None,
        RevisionOrNone::Revision(held) => Some(session.snapshot(&repositories, repo, held)?),
    };
    let main = Selector::default();
    let wanted = session.snapshot(&repositories, repo, wanted.unwrap_or(&main))?;
    let here = Here::new(held.as_ref());
    let mut wishes = wishes_between(held.as_ref(), &wanted);
    let views = wanted.tensors();
    for wish in &mut wishes {
        let view = &views[wish.tensor];
        if here.has(view) {
            wish.have = Some(view.entry.id);
        }
    }
    let request = FetchRequest::new(repo.clone(), &wanted, held.as_ref(), &wishes);
    let plan = repositories.plan_exactly(&request)?;
    let files_bytes = here.files_bytes(&wanted);
    session.answer(&planned(repo, held.as_ref(), &wanted, &plan, files_bytes))
}

/// What a replica has on its disk when it holds a version.
struct Here<'a> {
    held: Option<&'a Snapshot>,
    tensors: HashSet<TensorId>,
}

impl<'a> Here<'a> {
    fn new(held: Option<&'a Snapshot>) -> Self {
        let tensors = held.map(|held| held.tree.tensors.iter().map(|tensor| tensor.id).collect());
        Self {
            held,
            tensors: tensors.unwrap_or_default(),
        }
    }

    /// Whether a tensor is copied from what is there, under whatever name, or has no bytes.
    fn has(&self, view: &TensorView<'_>) -> bool {
        self.tensors.contains(&view.entry.id) || view.spec.byte_len() == 0
    }

    /// What is sent beside tensors, as a pull asks for it: files that differ, headers of weight files that differ or
    /// are written anew.
    fn files_bytes(&self, wanted: &Snapshot) -> u64 {
        let held_files: HashSet<_> = (self.held.iter())
            .flat_map(|held| held.files())
            .map(|file| (&file.path, file.mode as u8, file.id))
            .collect();
        let files = (wanted.files().iter())
            .filter(|file| !held_files.contains(&(&file.path, file.mode as u8, file.id)))
            .map(|file| file.size);
        let held_headers: HashMap<_, _> = (self.held.iter())
            .flat_map(|held| held.weight_files())
            .map(|(spec, entry)| (&spec.path, entry.header))
            .collect();
        let copied = self.copied_bytes(wanted);
        let headers = (wanted.weight_files().zip(copied))
            .filter(|((spec, entry), copied)| {
                // What is mostly replaced by whole tensors is written anew, header and all.
                held_headers.get(&spec.path) != Some(&entry.header) || 2 * copied > spec.data_len()
            })
            .map(|((_, entry), _)| entry.header_len);
        files.chain(headers).sum()
    }

    /// For each weight file the bytes of tensors that are copied from elsewhere in what is held.
    fn copied_bytes(&self, wanted: &Snapshot) -> Vec<u64> {
        let mut copied = vec![0; wanted.schema.files.len()];
        let places = self.held.map(Snapshot::tensors_by_name).unwrap_or_default();
        for view in wanted.tensors() {
            let place = places.get(&(view.path.as_str(), view.spec.name.as_str()));
            let stays = place.is_some_and(|held| held.entry.id == view.entry.id);
            if !stays && self.tensors.contains(&view.entry.id) {
                copied[view.file] += view.spec.byte_len();
            }
        }
        copied
    }
}

fn planned(
    repo: &RepoName,
    held: Option<&Snapshot>,
    wanted: &Snapshot,
    plan: &FetchPlan,
    files_bytes: u64,
) -> Planned {
    Planned {
        repo: repo.to_string(),
        from: held.map(|held| held.commit.version.0),
        from_commit: held.map(|held| held.id.to_string()),
        to: wanted.commit.version.0,
        to_commit: wanted.id.to_string(),
        bytes: plan.bytes + files_bytes,
        files_bytes,
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
