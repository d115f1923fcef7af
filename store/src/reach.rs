//! What a repository has: the commits that its branches and tags reach, and those that its deleted branches did, so that
//! they can be brought back. A store holds many repositories, and an id alone opens none of them.

use crate::database::Table;
use crate::error::{Result, StoreError};
use crate::refs::{ref_in_row, repo_prefix, retired_in_row, tag_in_row};
use crate::store::Store;
use deltaic_format::ids::CommitId;
use deltaic_format::name::RepoName;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Commits of all repositories that are kept in memory, about; those of one are kept in any case.
const MAX_KEPT: usize = 1 << 21;

/// What is known of repositories, found out when someone asks.
#[derive(Debug, Default)]
pub(crate) struct Reached {
    /// Counts changes of refs.
    changes: AtomicU64,
    /// Counts questions.
    asked: AtomicU64,
    repos: Mutex<HashMap<RepoName, Kept>>,
}

/// What is kept of one repository.
#[derive(Debug, Clone, Default)]
struct Kept {
    commits: Arc<Mutex<Commits>>,
    /// How many there are.
    len: usize,
    /// When it was last asked for.
    asked: u64,
}

/// The commits of a repository as they were at some time.
#[derive(Debug, Default)]
struct Commits {
    /// Changes of refs that had been made before; `None` if nothing was looked at yet.
    at: Option<u64>,
    heads: HashSet<CommitId>,
    all: HashSet<CommitId>,
    /// Whether a commit could not be read, so that what comes before it is not known.
    broken: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reached {
    /// Refs were changed.
    pub(crate) fn refs_changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    fn of(&self, repo: &RepoName) -> Arc<Mutex<Commits>> {
        let mut repos = lock(&self.repos);
        let kept = repos.entry(repo.clone()).or_default();
        kept.asked = self.asked.fetch_add(1, Ordering::Relaxed);
        kept.commits.clone()
    }

    /// Take note of how many commits are kept of a repository, and forget others while there are too many in all.
    fn bound(&self, repo: &RepoName, len: usize) {
        let mut repos = lock(&self.repos);
        match repos.get_mut(repo) {
            // Names that mean nothing are not kept.
            Some(_) if len == 0 => drop(repos.remove(repo)),
            Some(kept) => kept.len = len,
            None => {}
        }
        while repos.values().map(|kept| kept.len).sum::<usize>() > MAX_KEPT {
            let others = repos.iter().filter(|(name, _)| *name != repo);
            let oldest = others.min_by_key(|(_, kept)| kept.asked);
            let Some(oldest) = oldest.map(|(name, _)| name.clone()) else {
                return;
            };
            repos.remove(&oldest);
        }
    }
}

impl Store {
    /// Whether a repository has a commit: one of its branches or tags reaches it, or a deleted branch of it did.
    ///
    /// # Errors
    ///
    /// If stored data is damaged, so that it cannot be told.
    pub fn reaches(&self, repo: &RepoName, commit: CommitId) -> Result<bool> {
        let commits = self.reached().of(repo);
        let mut commits = lock(&commits);
        // Before the refs are read: what changes later is noticed the next time.
        let changes = self.reached().changes.load(Ordering::Acquire);
        if commits.at == Some(changes) && commits.all.contains(&commit) {
            return Ok(true);
        }
        let before = commits.all.len();
        self.look_again(repo, &mut commits, changes)?;
        if commits.all.len() != before || before == 0 {
            self.reached().bound(repo, commits.all.len());
        }
        let found = commits.all.contains(&commit);
        if !found && commits.broken {
            let what = "a commit of it cannot be read, and what comes before that is not known";
            return Err(StoreError::corrupt(format!("the history of {repo}"), what));
        }
        Ok(found)
    }

    /// Fails unless a repository has a commit, as if the commit were not there at all.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if it does not have it.
    pub fn must_reach(&self, repo: &RepoName, commit: CommitId) -> Result<()> {
        match self.reaches(repo, commit)? {
            true => Ok(()),
            false => Err(StoreError::not_found("commit", commit)),
        }
    }

    /// Where the branches and tags of a repository stand, and where the deleted ones stood.
    fn heads(&self, repo: &RepoName) -> Result<HashSet<CommitId>> {
        let prefix = repo_prefix(repo);
        let mut heads = HashSet::new();
        for row in self.database().scan(Table::Refs, &prefix) {
            let (key, value) = row?;
            heads.insert(ref_in_row(&key, &value)?.commit);
        }
        for row in self.database().scan(Table::Tags, &prefix) {
            let (key, value) = row?;
            heads.insert(tag_in_row(&key, &value)?.commit);
        }
        for row in self.database().scan(Table::Retired, &prefix) {
            let (key, value) = row?;
            heads.insert(retired_in_row(&key, &value)?);
        }
        Ok(heads)
    }

    /// Bring what is known of a repository up to date: what is new is added; if something was taken away, all is looked
    /// at anew.
    fn look_again(&self, repo: &RepoName, commits: &mut Commits, changes: u64) -> Result<()> {
        let heads = self.heads(repo)?;
        if heads != commits.heads || commits.broken || commits.at.is_none() {
            let mut met = HashSet::new();
            let mut queue: Vec<CommitId> = heads.difference(&commits.heads).copied().collect();
            if commits.broken {
                *commits = Commits::default();
                queue = heads.iter().copied().collect();
            }
            self.walk(queue, commits, &mut met);
            let lead_on = |head: &CommitId| heads.contains(head) || met.contains(head);
            if !commits.heads.iter().all(lead_on) {
                *commits = Commits::default();
                self.walk(heads.iter().copied().collect(), commits, &mut met);
            }
            commits.heads = heads;
        }
        commits.at = Some(changes);
        Ok(())
    }

    /// Add `queue` and all that it leads to; `met` are those of them that were there already.
    fn walk(&self, mut queue: Vec<CommitId>, commits: &mut Commits, met: &mut HashSet<CommitId>) {
        while let Some(id) = queue.pop() {
            if !commits.all.insert(id) {
                met.insert(id);
                continue;
            }
            match self.read_commit(id) {
                Ok(commit) => queue.extend(commit.parents),
                // Whoever reads this one is told what is wrong with it; the others are there.
                Err(_) => commits.broken = true,
            }
        }
    }
}
