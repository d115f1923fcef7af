//! Sizes and differences on the wire.

use super::proto;
use crate::answers::{
    CommitOutcome, Problem, StoreStats, Tag, TensorChange, TensorDiff, TensorStats, VerifyReport,
    VersionStats,
};
use crate::error::{FormatError, Result};
use crate::fetch::FetchPlan;
use crate::name::BranchName;
use crate::object::{Snapshot, TensorView};
use crate::version::Version;

impl From<&Tag> for proto::Tag {
    fn from(tag: &Tag) -> Self {
        Self {
            name: tag.name.to_string(),
            commit: super::id_bytes(&tag.commit),
            time_ms: tag.time_ms,
        }
    }
}

impl TryFrom<proto::Tag> for Tag {
    type Error = FormatError;

    fn try_from(tag: proto::Tag) -> Result<Self> {
        Ok(Self {
            name: BranchName::new(tag.name)?,
            commit: super::commit_id(&tag.commit)?,
            time_ms: tag.time_ms,
        })
    }
}

impl From<&TensorStats> for proto::TensorStats {
    fn from(stats: &TensorStats) -> Self {
        Self {
            changed: stats.changed,
            patch_bytes: stats.patch_bytes,
        }
    }
}

impl From<proto::TensorStats> for TensorStats {
    fn from(stats: proto::TensorStats) -> Self {
        Self {
            changed: stats.changed,
            patch_bytes: stats.patch_bytes,
        }
    }
}

impl From<&VersionStats> for proto::VersionStats {
    fn from(stats: &VersionStats) -> Self {
        Self {
            elements: stats.elements,
            changed: stats.changed,
            full_bytes: stats.full_bytes,
            patch_bytes: stats.patch_bytes,
            new_bytes: stats.new_bytes,
        }
    }
}

impl From<proto::VersionStats> for VersionStats {
    /// Without the tensors, which come apart.
    fn from(stats: proto::VersionStats) -> Self {
        Self {
            elements: stats.elements,
            changed: stats.changed,
            full_bytes: stats.full_bytes,
            patch_bytes: stats.patch_bytes,
            new_bytes: stats.new_bytes,
            tensors: Vec::new(),
        }
    }
}

impl From<&CommitOutcome> for proto::CommitOutcome {
    fn from(outcome: &CommitOutcome) -> Self {
        Self {
            commit: super::id_bytes(&outcome.id),
            version: outcome.version.0,
            elements: outcome.elements,
            changed: outcome.changed,
            full_bytes: outcome.full_bytes,
            patch_bytes: outcome.patch_bytes,
            new_bytes: outcome.new_bytes,
        }
    }
}

impl TryFrom<proto::CommitOutcome> for CommitOutcome {
    type Error = FormatError;

    fn try_from(outcome: proto::CommitOutcome) -> Result<Self> {
        Ok(Self {
            id: super::commit_id(&outcome.commit)?,
            version: Version(outcome.version),
            elements: outcome.elements,
            changed: outcome.changed,
            full_bytes: outcome.full_bytes,
            patch_bytes: outcome.patch_bytes,
            new_bytes: outcome.new_bytes,
        })
    }
}

impl From<&StoreStats> for proto::StoreStats {
    fn from(stats: &StoreStats) -> Self {
        Self {
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

impl From<proto::StoreStats> for StoreStats {
    fn from(stats: proto::StoreStats) -> Self {
        Self {
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

impl From<&FetchPlan> for proto::FetchPlan {
    fn from(plan: &FetchPlan) -> Self {
        Self {
            unchanged: plan.unchanged,
            patched: plan.patched,
            whole: plan.whole,
            longest_path: plan.longest_path,
            bytes: plan.bytes,
        }
    }
}

impl From<proto::FetchPlan> for FetchPlan {
    fn from(plan: proto::FetchPlan) -> Self {
        Self {
            unchanged: plan.unchanged,
            patched: plan.patched,
            whole: plan.whole,
            longest_path: plan.longest_path,
            bytes: plan.bytes,
        }
    }
}

impl From<&Problem> for proto::Problem {
    fn from(problem: &Problem) -> Self {
        Self {
            kind: problem.kind.to_string(),
            object: problem.object.clone(),
            what: problem.what.clone(),
        }
    }
}

impl From<proto::Problem> for Problem {
    fn from(problem: proto::Problem) -> Self {
        Self {
            kind: problem.kind.into(),
            object: problem.object,
            what: problem.what,
        }
    }
}

impl From<&VerifyReport> for proto::VerifyReport {
    /// Without the problems, which come apart.
    fn from(report: &VerifyReport) -> Self {
        Self {
            commits: report.commits,
            contents: report.contents,
            edges: report.edges,
            contents_read: report.contents_read,
            bytes_read: report.bytes_read,
        }
    }
}

impl From<proto::VerifyReport> for VerifyReport {
    fn from(report: proto::VerifyReport) -> Self {
        Self {
            commits: report.commits,
            contents: report.contents,
            edges: report.edges,
            contents_read: report.contents_read,
            bytes_read: report.bytes_read,
            problems: Vec::new(),
        }
    }
}

/// Differences between two versions, each naming its tensor by its place in the version that has it.
pub fn diffs_to_wire(
    from: &Snapshot,
    to: &Snapshot,
    diffs: &[TensorDiff],
) -> Vec<proto::TensorDiff> {
    use proto::tensor_diff::Change;
    let (old, new) = (from.tensors_by_name(), to.tensors_by_name());
    let place = |diff: &TensorDiff| {
        let places = match diff.change {
            TensorChange::Removed => &old,
            _ => &new,
        };
        let name = (diff.path.as_str(), diff.spec.name.as_str());
        places.get(&name).map(|view| view.index as u64)
    };
    let wire = |diff: &TensorDiff| {
        let change = match diff.change {
            TensorChange::Added => Change::Added,
            TensorChange::Removed => Change::Removed,
            TensorChange::Retyped => Change::Retyped,
            TensorChange::Changed => Change::Changed,
        };
        Some(proto::TensorDiff {
            tensor: place(diff)?,
            change: change.into(),
            changed: diff.changed,
            plus_one: diff.plus_one,
            minus_one: diff.minus_one,
            patch_bytes: diff.patch_bytes,
        })
    };
    diffs.iter().filter_map(wire).collect()
}

/// The difference that a message tells of, between two versions with these tensors.
///
/// # Errors
///
/// If it is of no tensor, or of no kind that this build knows.
pub fn diff_from_wire(
    (from, to): (&[TensorView<'_>], &[TensorView<'_>]),
    diff: &proto::TensorDiff,
) -> Result<TensorDiff> {
    use proto::tensor_diff::Change;
    let invalid = |why: String| FormatError::invalid("difference", why);
    let change = match diff.change() {
        Change::Added => TensorChange::Added,
        Change::Removed => TensorChange::Removed,
        Change::Retyped => TensorChange::Retyped,
        Change::Changed => TensorChange::Changed,
        Change::Unspecified => return Err(invalid(format!("unknown kind {}", diff.change))),
    };
    let tensors = if change == TensorChange::Removed {
        from
    } else {
        to
    };
    let view = (usize::try_from(diff.tensor).ok())
        .and_then(|place| tensors.get(place))
        .ok_or_else(|| invalid(format!("there is no tensor number {}", diff.tensor)))?;
    Ok(TensorDiff {
        path: view.path.clone(),
        spec: view.spec.clone(),
        change,
        changed: diff.changed,
        plus_one: diff.plus_one,
        minus_one: diff.minus_one,
        patch_bytes: diff.patch_bytes,
    })
}
