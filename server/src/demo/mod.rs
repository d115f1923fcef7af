//! The demo: a made-up trainer commits version after version, replicas follow, jump and go back, and every one of their
//! files is compared with the trainer's.

pub(crate) mod model;
mod same;
pub(crate) mod trainer;

pub use model::ModelPlan;
pub use trainer::LEARNING_RATE;

use crate::commands::pull::pull_snapshot;
use crate::embedded::Committed;
use crate::folders::free_space;
use crate::report::{Failure, Kind, Result};
use crate::repositories::Repositories;
use crate::session::Session;
use crate::units;
use crate::versions::Change;
use deltaic_client::Checkpoint;
use deltaic_format::Version;
use deltaic_format::answers::{CommitRequest, StoreStats};
use deltaic_format::ids::CommitId;
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::progress::Silent;
use deltaic_format::revision::DEFAULT_BRANCH;
use deltaic_store::Store;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use trainer::Trainer;

/// Name of the repository that the demo makes.
pub const REPO: &str = "demo/policy";

/// The weights are drawn from this, so that every run has the same figures.
const SEED: u64 = 2026;

/// Whole checkpoints that lie on disk besides the trainer's: the store's, three replicas.
const BESIDES_TRAINER: u64 = 4;

/// The trainer's checkpoints that lie on disk at the same time, where old ones are removed.
const OF_TRAINER: u64 = 4;

/// One version.
#[derive(Debug, Clone, Serialize)]
pub struct VersionRow {
    /// Its number.
    pub version: u64,
    /// What changed.
    #[serde(flatten)]
    pub change: Change,
    /// What the replica that follows received.
    pub received_bytes: u64,
    /// Seconds that the trainer took to make and write it.
    pub make_seconds: f64,
    /// Seconds that committing took.
    pub commit_seconds: f64,
    /// Seconds that the replica that follows took.
    pub pull_seconds: f64,
}

/// One pull of a replica, and whether its files then were the trainer's.
#[derive(Debug, Clone, Serialize)]
pub struct PullRow {
    /// What the replica does.
    pub replica: &'static str,
    /// The version it held.
    pub from: Option<u64>,
    /// The version it holds now.
    pub to: u64,
    /// What it received.
    pub received_bytes: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// The first difference from the trainer's files; none if they are the same.
    pub difference: Option<String>,
}

/// Where the demo works, and on what.
pub struct Demo<'a> {
    session: &'a Session,
    dir: &'a Path,
    keep: bool,
    repo: RepoName,
    branch: BranchName,
    store: Arc<Store>,
    repositories: Repositories,
    commits: Vec<CommitId>,
}

impl<'a> Demo<'a> {
    /// Make the store in `dir`; checkpoints that are no longer needed are removed unless they are to be kept.
    ///
    /// # Errors
    ///
    /// If the store cannot be made, or the disk is too small for `versions` of `plan`.
    pub fn new(
        session: &'a Session,
        dir: &'a Path,
        keep: bool,
        plan: &ModelPlan,
        versions: u64,
    ) -> Result<Self> {
        let of_trainer = if keep {
            versions
        } else {
            versions.min(OF_TRAINER)
        };
        check_space(dir, (of_trainer + BESIDES_TRAINER) * 2 * plan.parameters())?;
        let store = Arc::new(Store::init(&dir.join("store"))?.0);
        Ok(Self {
            session,
            dir,
            keep,
            repo: REPO.parse()?,
            branch: DEFAULT_BRANCH.parse()?,
            repositories: session.repositories_of(store.clone())?,
            store,
            commits: Vec::new(),
        })
    }

    /// Train and commit `versions` versions, each of which a replica follows; `told` hears of each.
    ///
    /// # Errors
    ///
    /// If a version cannot be written, committed or pulled, or the user stops.
    pub fn train(
        &mut self,
        plan: ModelPlan,
        versions: u64,
        mut told: impl FnMut(VersionRow, PullRow) -> Result<()>,
    ) -> Result<()> {
        let mut begun = Instant::now();
        let mut trainer = Trainer::new(plan, SEED)
            .map_err(|error| Failure::new(Kind::Error, error.to_string()))?;
        let stays = self.compared_later(versions);
        for version in 0..versions {
            self.session.go_on()?;
            if version > 0 {
                trainer.step();
            }
            let checkpoint = self.checkpoint(version);
            let saved = trainer.save(&checkpoint);
            saved.map_err(|error| Failure::file(&checkpoint, &error))?;
            let make_seconds = begun.elapsed().as_secs_f64();
            let (change, commit_seconds) = self.commit(version, &checkpoint)?;
            let pull = self.pull("follows", version)?;
            told(
                VersionRow {
                    version,
                    change,
                    received_bytes: pull.received_bytes,
                    make_seconds,
                    commit_seconds,
                    pull_seconds: pull.seconds,
                },
                pull,
            )?;
            begun = Instant::now();
            if !self.keep && !stays.contains(&version) {
                fs::remove_dir_all(&checkpoint)
                    .map_err(|error| Failure::file(&checkpoint, &error))?;
            }
        }
        Ok(())
    }

    /// Let one replica jump over many versions, and another go back over them; `told` hears of each pull.
    ///
    /// # Errors
    ///
    /// If a pull fails, or the user stops.
    pub fn jump(&self, mut told: impl FnMut(PullRow) -> Result<()>) -> Result<()> {
        let last = self.commits.len() as u64 - 1;
        let [low, back] = ends(self.commits.len() as u64);
        for (replica, version) in [
            ("jumps", low),
            ("jumps", last),
            ("goes back", last),
            ("goes back", back),
        ] {
            self.session.go_on()?;
            told(self.pull(replica, version)?)?;
        }
        Ok(())
    }

    /// What the store holds.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn stats(&self) -> Result<StoreStats> {
        Ok(self.store.stats(None, &Silent)?)
    }

    fn compared_later(&self, versions: u64) -> Vec<u64> {
        let [low, back] = ends(versions);
        vec![low, back, versions - 1]
    }

    fn checkpoint(&self, version: u64) -> PathBuf {
        self.dir.join(format!("checkpoints/v{version:03}"))
    }

    fn commit(&mut self, version: u64, dir: &Path) -> Result<(Change, f64)> {
        let begun = Instant::now();
        let checkpoint = Checkpoint::open(dir)?;
        let request = CommitRequest {
            repo: self.repo.clone(),
            branch: self.branch.clone(),
            message: format!("step {version}"),
            meta: BTreeMap::from([("step".to_owned(), version.to_string())]),
            time_ms: units::now_ms(),
            expect: None,
        };
        let progress = &self.session.progress;
        let committed = Committed::new(&checkpoint);
        let outcome = self.store.commit(&request, &committed, progress);
        let outcome = outcome.map_err(|error| committed.failure(error))?;
        debug_assert_eq!(outcome.version, Version(version));
        self.commits.push(outcome.id);
        Ok((Change::from(&outcome), begun.elapsed().as_secs_f64()))
    }

    /// Bring a replica to a version, and compare its files with the trainer's.
    fn pull(&self, replica: &'static str, version: u64) -> Result<PullRow> {
        let dir = self.dir.join("replicas").join(replica.replace(' ', "-"));
        let begun = Instant::now();
        let snapshot = self.store.snapshot(self.commits[version as usize])?;
        let outcome = pull_snapshot(
            &self.repositories,
            &self.repo,
            &snapshot,
            &dir,
            self.session,
        )?;
        let seconds = begun.elapsed().as_secs_f64();
        let difference = same::difference(&self.checkpoint(version), &dir)
            .map_err(|error| Failure::file(&dir, &error))?;
        Ok(PullRow {
            replica,
            from: outcome.from.map(|from| from.0),
            to: version,
            received_bytes: outcome.received_bytes,
            seconds,
            difference,
        })
    }
}

/// Where the replica that jumps begins, and where the one that goes back ends.
fn ends(versions: u64) -> [u64; 2] {
    let last = versions - 1;
    [2, 1].map(|version: u64| version.min(last.saturating_sub(1)))
}

fn check_space(dir: &Path, needed: u64) -> Result<()> {
    let free = free_space(dir).map_err(|error| Failure::file(dir, &error))?;
    if free < needed {
        let (needed, free) = (units::bytes(needed), units::bytes(free));
        let dir = dir.display();
        let message =
            format!("the demo needs about {needed} of disk, and {free} are free in {dir}");
        return Err(Failure::new(Kind::NoSpace, message)
            .hint("name a folder on a larger disk with --dir, or a smaller model with --params"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_have_somewhere_to_go_however_few_versions_there_are() {
        assert_eq!(ends(10), [2, 1]);
        assert_eq!(ends(3), [1, 1]);
        assert_eq!(ends(2), [0, 0]);
        assert_eq!(ends(1), [0, 0]);
    }
}
