//! Following a branch: none of its versions is left out, none comes twice, whatever happens in between.

use super::changes::Changes;
use super::work::{Work, Workers};
use deltaic_client::Entry;
use deltaic_format::ids::CommitId;
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::refusal::Refusal;
use deltaic_store::{Store, StoreError};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Versions that are known to come next, at most; those after them are found when these were handed on.
const MAX_AHEAD: usize = 1 << 16;

/// Commits that are read at a time.
const PAGE: usize = 64;

/// The ids of the first parents from `head` back to `after`, which is one of them, oldest first and without it; only the
/// oldest if there are very many.
///
/// # Errors
///
/// [`StoreError::Conflict`] if `after` is none of them.
fn ids_after(
    store: &Store,
    at: &dyn Fn() -> String,
    head: CommitId,
    after: CommitId,
) -> Result<VecDeque<CommitId>, StoreError> {
    if head == after {
        return Ok(VecDeque::new());
    }
    let known = store.read_commit(after)?.version;
    let mut ids = VecDeque::new();
    for entry in store.history(head) {
        let (id, commit) = entry?;
        if id == after {
            return Ok(ids);
        }
        if commit.version <= known {
            break;
        }
        ids.push_front(id);
        ids.truncate(MAX_AHEAD);
    }
    let what = format!("{} does not lead to {}", after.short(), at());
    Err(StoreError::Conflict { what })
}

/// The first commits of a history, newest first, at most `most`, and where it goes on.
pub(crate) fn history_page(
    store: &Store,
    head: CommitId,
    most: usize,
) -> Result<(Vec<Entry>, Option<CommitId>), StoreError> {
    let entries: Vec<Entry> = store.history(head).take(most).collect::<Result<_, _>>()?;
    let next = entries
        .last()
        .and_then(|(_, commit)| commit.parents.first().copied());
    Ok((entries, next))
}

/// Goes along a branch as it grows.
#[derive(Debug)]
pub(crate) struct Follower {
    store: Arc<Store>,
    workers: Workers,
    repo: RepoName,
    branch: BranchName,
    changes: watch::Receiver<u64>,
    /// The newest that was handed on or is about to be; `None` before the first look.
    after: Option<CommitId>,
    /// Known to come next.
    ids: VecDeque<CommitId>,
    /// Read already.
    entries: VecDeque<Entry>,
}

impl Follower {
    /// After `after`, or after the newest there is at the first look.
    pub(crate) fn new(
        (store, workers, changes): (&Arc<Store>, &Workers, &Changes),
        repo: RepoName,
        branch: BranchName,
        after: Option<CommitId>,
    ) -> Self {
        Self {
            store: store.clone(),
            workers: workers.clone(),
            repo,
            branch,
            changes: changes.listen(),
            after,
            ids: VecDeque::new(),
            entries: VecDeque::new(),
        }
    }

    /// The next version; `None` if there is none yet. Given up in between, it
    /// goes on where it was.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`] if the branch is gone, [`Refusal::Conflict`] if it no longer leads on from what was handed
    /// on last.
    pub(crate) async fn next(&mut self) -> Result<Option<Entry>, Refusal> {
        if self.entries.is_empty() && self.ids.is_empty() {
            self.look().await?;
        }
        if self.entries.is_empty() && !self.ids.is_empty() {
            self.read().await?;
        }
        Ok(self.entries.pop_front())
    }

    /// Look where the branch stands.
    async fn look(&mut self) -> Result<(), Refusal> {
        // Before the look: what changes after it is noticed.
        self.changes.mark_unchanged();
        let (store, after) = (self.store.clone(), self.after);
        let (repo, branch) = (self.repo.clone(), self.branch.clone());
        let look = move || {
            let head = store.branch(&repo, &branch)?;
            let at = || format!("{repo}@{branch}, which stands at {}", head.commit.short());
            let ids = match after {
                None => VecDeque::new(),
                Some(after) => {
                    store.must_reach(&repo, after)?;
                    ids_after(&store, &at, head.commit, after)?
                }
            };
            Ok::<_, StoreError>((head.commit, ids))
        };
        let (head, ids) = self.workers.run(Work::Short, look).await?;
        self.after = Some(ids.back().copied().unwrap_or(head));
        self.ids = ids;
        Ok(())
    }

    /// Read some of the commits that come next.
    async fn read(&mut self) -> Result<(), Refusal> {
        let store = self.store.clone();
        let ids: Vec<CommitId> = self.ids.iter().take(PAGE).copied().collect();
        let count = ids.len();
        let read = move || {
            let entry = |id| Ok((id, store.read_commit(id)?));
            ids.into_iter()
                .map(entry)
                .collect::<Result<VecDeque<Entry>, StoreError>>()
        };
        self.entries = self.workers.run(Work::Short, read).await?;
        self.ids.drain(..count);
        Ok(())
    }

    /// The next version, when there is one. Besides when there is word of a change it looks every `between_looks`.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub(crate) async fn following(&mut self, between_looks: Duration) -> Result<Entry, Refusal> {
        loop {
            if let Some(next) = self.next().await? {
                return Ok(next);
            }
            // If nobody is left who could say a word, it is silence.
            let _ = tokio::time::timeout(between_looks, async {
                if self.changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            })
            .await;
        }
    }
}
