//! A replica folder: the files of one version, moved to another one in place.
//!
//! `DIR/.deltaic` keeps what the folder knows of itself: `state.json`, the version's objects, a lock, and while a
//! pull is under way its journal, staged files and the next state (`*.new`). A pull goes in five steps, of which only the last one changes the
//! replica's files, and that one can be repeated from any point:
//!
//! 1. `inspect`: are the files still what the last pull left?
//! 2. `plan`: what is kept, copied, patched, fetched?
//! 3. `prepare` and `receive`: gather all of it, prove it, write it to the `journal` and to staged files.
//! 4. The next state is reserved, then the journal becomes complete and durable. From here on no file needs new space;
//!    where the file system wants some all the same (a folder's entry, a copy on write), the update stays under way.
//! 5. `commit`: apply it; `prove`: read it back; record the new state, delete the journal.

mod commit;
mod folder;
mod inspect;
mod journal;
mod lock;
mod plan;
mod prepare;
mod prove;
mod receive;
mod request;
mod runs;
mod seeds;
mod stamp;
mod state;
mod verify;

pub use request::{Proof, PullOptions, PullOutcome, Trust};
pub use verify::{Problem, VerifyReport};

use crate::disk::check_tree;

use crate::error::{ClientError, Result};
use crate::parts::check_cancelled;
use crate::source::Source;
use commit::Commit;
use deltaic_format::name::TreePath;
use deltaic_format::object::Snapshot;
use deltaic_format::progress::Progress;
use folder::{Access, Folder, NOT_EMPTY};
use inspect::{Inspection, inspect};
use journal::{Journal, Target, discard};
use plan::{Base, Plan, find_obstacles, is_selected};
use prepare::{Preparation, Tally};
use seeds::Seeds;
use state::Held;
use std::fmt;
use std::path::Path;
use std::time::Instant;

/// Asked before every step of a commit that changes the disk; tests stop there, as a crash would.
pub(crate) type FaultPoint = Box<dyn Fn(&'static str) -> Result<()> + Send + Sync>;

/// A folder that holds one version, locked against other processes as long as this lives.
pub struct ReplicaFolder {
    folder: Folder,
    held: Option<Held>,
    /// Whether a complete journal waits to be applied again.
    pending: bool,
    fault: FaultPoint,
}

impl fmt::Debug for ReplicaFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicaFolder")
            .field("path", &self.folder.root())
            .field("version", &self.held().map(|held| held.commit.version))
            .finish_non_exhaustive()
    }
}

impl ReplicaFolder {
    /// Open the replica at `path`, or make one of a missing or empty folder. A pull that crashed is completed if it
    /// had begun to write, else it is undone. A folder that was made for a replica goes away again if nothing comes
    /// into it.
    ///
    /// # Errors
    ///
    /// If other files are there, another process has the replica open, or its records are damaged; if the caller wants to
    /// stop before a pull that crashed is completed.
    pub fn open_or_create(path: impl AsRef<Path>, progress: &dyn Progress) -> Result<Self> {
        Self::open_with(path.as_ref(), Access::Create, no_faults(), progress)
    }

    /// Open the replica at `path`, as [`open_or_create`](Self::open_or_create) does, but make none. Where only reading
    /// is allowed, it is open for [`verify`](Self::verify) alone, beside others that read.
    ///
    /// # Errors
    ///
    /// As there; also if the folder is no replica, or holds no version yet, or a pull that crashed would have to be
    /// completed where only reading is allowed.
    pub fn open(path: impl AsRef<Path>, progress: &dyn Progress) -> Result<Self> {
        let path = path.as_ref();
        let replica = Self::open_with(path, Access::Open, no_faults(), progress)?;
        match replica.held {
            Some(_) => Ok(replica),
            None => Err(ClientError::NotAReplica {
                path: path.to_owned(),
                what: HOLDS_NOTHING.into(),
            }),
        }
    }

    fn open_with(
        path: &Path,
        access: Access,
        fault: FaultPoint,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let mut replica = Self {
            folder: Folder::lock(path, access)?,
            held: None,
            pending: true,
            fault,
        };
        replica.recover(progress)?;
        if replica.held.is_none() && replica.folder.has_files()? {
            return Err(ClientError::NotAReplica {
                path: path.to_owned(),
                what: NOT_EMPTY.into(),
            });
        }
        Ok(replica)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.root()
    }

    /// The version that the files hold; `None` before the first pull, and after a failed commit until the next pull has
    /// completed it.
    pub fn held(&self) -> Option<&Snapshot> {
        self.current().map(|held| &held.snapshot)
    }

    /// Repository and revision of the version that is held, as they were given.
    pub fn origin(&self) -> Option<(&str, &str)> {
        self.current()
            .map(|held| (held.labels.repo.as_str(), held.labels.revision.as_str()))
    }

    /// The file or folder of the tree that is held; `None` if everything is, or nothing.
    pub fn restriction(&self) -> Option<&TreePath> {
        self.current()?.labels.path.as_ref()
    }

    /// Hash every file that is held and compare it with the version.
    ///
    /// # Errors
    ///
    /// If nothing is held, a file cannot be read, or the caller wants to stop; what differs is in the report.
    pub fn verify(&self, progress: &dyn Progress) -> Result<VerifyReport> {
        match self.current() {
            Some(held) => verify::verify(&self.folder, held, progress),
            None => Err(ClientError::NotAReplica {
                path: self.path().to_owned(),
                what: HOLDS_NOTHING.into(),
            }),
        }
    }

    /// Make the folder hold `want`. Until everything is there, proven and durable, the version that is held stays as
    /// it is, and a wish to stop is followed; then it is written to the end.
    ///
    /// # Errors
    ///
    /// If files are not as the last pull left them (unless `repair`), something sent or found does not fit, or the
    /// disk or the source fails. The version held stays, save after [`ClientError::Unusable`] and
    /// [`ClientError::Unfinished`]; then the next pull, or opening the folder again, completes this one first.
    pub fn pull(
        &mut self,
        source: &dyn Source,
        want: &Snapshot,
        options: &PullOptions,
        progress: &dyn Progress,
    ) -> Result<PullOutcome> {
        let started = Instant::now();
        self.folder.check_writable()?;
        if self.pending {
            self.recover(progress)?;
        }
        check_tree(want)?;
        self.check_restriction(options.path.as_ref())?;
        let mut seeds = Seeds::open(&options.seeds);
        let scan_all = options.repair || options.proof == Proof::Full;
        let inspection = match &self.held {
            Some(held) => inspect(&self.folder, held, scan_all, progress)?,
            None => Inspection::default(),
        };
        let from = self.held.as_ref().map(|held| held.snapshot.commit.version);
        let base = (self.held.as_ref()).map(|held| Base::new(&self.folder, held, &inspection));
        let plan = Plan::new(base.as_ref(), want, options.path.as_ref());
        check_selection(&plan, want, options.path.as_ref())?;
        let repaired = self.find_problems(&inspection, &plan, want, options.repair)?;

        let stays = plan.is_empty() && self.held().is_some_and(|held| held.id == want.id);
        let (tally, held) = if stays {
            self.refresh(&inspection, &plan, want, options)?
        } else {
            let wanted = Wanted {
                want,
                options,
                progress,
            };
            let prepared = self.prepare(base.as_ref(), &plan, wanted, source, &mut seeds);
            let (tally, journal) = prepared.inspect_err(|_| {
                // What is left is worth nothing, and opening the folder deletes it at the latest.
                let _ = discard(&self.folder);
            })?;
            self.pending = true;
            let held = self.commit(&journal, &inspection, wanted);
            (tally, held.map_err(|error| error.under_way(self.path()))?)
        };
        drop(base);
        self.held = Some(held);
        self.pending = false;
        Ok(PullOutcome {
            repaired,
            seconds: started.elapsed().as_secs_f64(),
            seeds_skipped: seeds.into_skipped(),
            ..PullOutcome::new((from, want.commit.version), options, &tally)
        })
    }

    /// Complete or undo what a crash left, and read the state.
    fn recover(&mut self, progress: &dyn Progress) -> Result<()> {
        let journal = Journal::open(&self.folder)?;
        self.held = match &journal {
            Some(journal) => {
                check_cancelled(progress)?;
                let replayed = self.folder.check_writable();
                let replayed = replayed.and_then(|()| self.replay(journal, progress));
                Some(replayed.map_err(|error| error.under_way(self.path()))?)
            }
            None => Held::load(&self.folder)?,
        };
        // What a pull left that had not begun to write does no harm to readers.
        if !self.folder.is_read_only() {
            discard(&self.folder)?;
        }
        self.pending = false;
        Ok(())
    }

    /// Apply the journal that a crash left.
    fn replay(&self, journal: &Journal, progress: &dyn Progress) -> Result<Held> {
        let stats = Held::load_stats(&self.folder)?;
        let commit = Commit::new(&self.folder, journal, stats, &self.fault);
        commit.replay(journal, progress)
    }

    /// What is held, unless a failed commit left that open.
    fn current(&self) -> Option<&Held> {
        self.held.as_ref().filter(|_| !self.pending)
    }

    /// Fail if the folder holds more than `only`, which would then be deleted.
    fn check_restriction(&self, only: Option<&TreePath>) -> Result<()> {
        let (Some(held), Some(only)) = (&self.held, only) else {
            return Ok(());
        };
        match held
            .files
            .keys()
            .find(|path| !is_selected(path, Some(only)))
        {
            None => Ok(()),
            Some(other) => Err(ClientError::Invalid {
                what: format!(
                    "the replica {} holds more than {only}, {other} for one",
                    self.path().display()
                ),
            }),
        }
    }

    /// What others changed; an error unless it is to be repaired.
    fn find_problems(
        &self,
        inspection: &Inspection,
        plan: &Plan<'_>,
        want: &Snapshot,
        repair: bool,
    ) -> Result<Vec<String>> {
        let mut problems = inspection.problems.clone();
        problems.extend(find_obstacles(
            &self.folder,
            plan,
            self.held.as_ref(),
            want,
        )?);
        if problems.is_empty() || repair {
            return Ok(problems);
        }
        Err(ClientError::Modified {
            path: self.path().to_owned(),
            what: problems,
        })
    }

    /// Note that the files, which hold `want`, look as they do now.
    fn refresh(
        &self,
        inspection: &Inspection,
        plan: &Plan<'_>,
        want: &Snapshot,
        options: &PullOptions,
    ) -> Result<(Tally, Held)> {
        let stat = |path: &TreePath| (path.clone(), inspection.stats.get(path).copied());
        let held = Held {
            snapshot: want.clone(),
            labels: options.labels(),
            files: plan.paths.iter().map(stat).collect(),
        };
        let same = |old: &&Held| old.files == held.files && old.labels == held.labels;
        if self.held.as_ref().filter(same).is_none() {
            held.save_state(&self.folder)?;
        }
        let tally = Tally {
            unchanged: plan.unchanged,
            ..Tally::default()
        };
        Ok((tally, held))
    }

    /// Everything up to the complete journal.
    fn prepare(
        &self,
        base: Option<&Base<'_>>,
        plan: &Plan<'_>,
        wanted: Wanted<'_>,
        source: &dyn Source,
        seeds: &mut Seeds,
    ) -> Result<(Tally, Journal)> {
        let Wanted {
            want,
            options,
            progress,
        } = wanted;
        let target = Target {
            snapshot: want.clone(),
            labels: options.labels(),
        };
        let preparation = Preparation::new(
            (&self.folder, base),
            (want, options.trust),
            plan,
            target,
            progress,
        )?;
        let (journal, tally) = preparation.run(source, seeds)?;
        if let Some(base) = base {
            self.check_still(base, plan, want)?;
        }
        check_cancelled(progress)?;
        Held::reserve(&self.folder, &journal.target, plan.paths.iter().cloned())?;
        (self.fault)("journal")?;
        Ok((tally, journal.finish()?))
    }

    /// Apply the complete journal and forget it.
    fn commit(
        &self,
        journal: &Journal,
        inspection: &Inspection,
        wanted: Wanted<'_>,
    ) -> Result<Held> {
        let stats = inspection.stats.clone();
        let commit = Commit::new(&self.folder, journal, stats, &self.fault);
        let held = commit.run(journal, wanted.options.proof, wanted.progress)?;
        discard(&self.folder)?;
        Ok(held)
    }

    /// Fail if a file that is about to be changed in place was touched since it was inspected, or may not be written.
    fn check_still(&self, base: &Base<'_>, plan: &Plan<'_>, want: &Snapshot) -> Result<()> {
        for (number, _) in plan.weight_files.iter().filter(|(_, file)| file.in_place) {
            let path = &want.schema.files[*number].path;
            let (_, location) = self.folder.open(path, true)?;
            if self.folder.stat(path).as_ref() != base.inspection.stats.get(path) {
                return Err(ClientError::Changed {
                    path: location,
                    how: "changed during the pull",
                });
            }
        }
        Ok(())
    }
}

const HOLDS_NOTHING: &str = "it holds no version yet";

fn no_faults() -> FaultPoint {
    Box::new(|_| Ok(()))
}

/// What a pull is to reach, and how.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    want: &'a Snapshot,
    options: &'a PullOptions,
    progress: &'a dyn Progress,
}

/// Fail if the wanted version has nothing of the part that is asked for.
fn check_selection(plan: &Plan<'_>, want: &Snapshot, only: Option<&TreePath>) -> Result<()> {
    match only {
        Some(only) if plan.paths.is_empty() => Err(ClientError::Invalid {
            what: format!("{} has no file or folder {only}", want.commit.version),
        }),
        _ => Ok(()),
    }
}

/// What tests need beyond the public interface.
#[cfg(test)]
impl ReplicaFolder {
    /// Open or make the replica at `path`, with faults.
    pub(crate) fn open_faulty(path: &Path, fault: FaultPoint) -> Result<Self> {
        let silent = deltaic_format::progress::Silent;
        Self::open_with(path, Access::Create, fault, &silent)
    }

    /// Open the replica at `path` as where only reading is allowed.
    pub(crate) fn open_for_reading(path: &Path) -> Result<Self> {
        let silent = deltaic_format::progress::Silent;
        Self::open_with(path, Access::Read, no_faults(), &silent)
    }

    /// Whether the journal of the replica at `path` is complete; does not open the replica.
    pub(crate) fn journal_is_complete(path: &Path) -> Result<bool> {
        let folder = Folder::lock(path, Access::Open)?;
        Ok(Journal::open(&folder)?.is_some())
    }
}
