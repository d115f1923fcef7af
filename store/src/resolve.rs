//! Finding the commit that a revision means, and what refs reach.

use crate::database::Table;
use crate::error::{Result, StoreError};
use crate::store::Store;
use deltaic_format::Version;
use deltaic_format::ids::CommitId;
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::Commit;
use deltaic_format::revision::{Selector, SelectorKind, default_branch};
use std::collections::HashSet;

/// Shortest prefix that names a commit.
const MIN_PREFIX: usize = 4;

impl Store {
    /// The commit that `selector` means in `repo`.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] naming what is not there, [`StoreError::Ambiguous`] for too short an id.
    pub fn resolve(&self, repo: &RepoName, selector: &Selector) -> Result<CommitId> {
        let start = match selector.kind() {
            SelectorKind::Name(name) => self.resolve_name(repo, name)?,
            SelectorKind::Version(branch, version) => {
                let branch = branch.clone().unwrap_or_else(default_branch);
                self.resolve_version(repo, &branch, *version)?
            }
            SelectorKind::Meta(branch, key, value) => {
                let branch = branch.clone().unwrap_or_else(default_branch);
                let head = self.branch(repo, &branch)?.commit;
                let found = self.find_in_history(head, |c| c.meta.get(key) == Some(value))?;
                found.ok_or_else(|| {
                    let name = format!("with {key}={value} on {branch} of {repo}");
                    StoreError::not_found("version", name)
                })?
            }
        };
        let mut at = start;
        for _ in 0..selector.back() {
            let commit = self.read_commit(at)?;
            at = *commit.parents.first().ok_or_else(|| {
                StoreError::not_found(
                    "version",
                    format!("{selector} of {repo}: its history is shorter"),
                )
            })?;
        }
        Ok(at)
    }

    fn resolve_name(&self, repo: &RepoName, name: &BranchName) -> Result<CommitId> {
        if let Some(record) = self.find_branch(repo, name)? {
            return Ok(record.commit);
        }
        if let Some(tag) = self.find_tag(repo, name)? {
            return Ok(tag.commit);
        }
        let whole = name.as_str().parse::<CommitId>().ok();
        if let Some(id) = whole
            && self.reaches(repo, id)?
        {
            // Also what no ref reaches any more since a branch was deleted: that is how it is brought back.
            return Ok(id);
        }
        self.must_exist(repo)?;
        let prefix = name.as_str().to_ascii_lowercase();
        let hex = prefix.len() >= MIN_PREFIX
            && prefix.len() <= 64
            && prefix.bytes().all(|b| b.is_ascii_hexdigit());
        let not_found =
            || StoreError::not_found("branch, tag or commit", format!("{name} of {repo}"));
        if !hex {
            return Err(not_found());
        }
        let mut candidates = Vec::new();
        for id in self.commits_with_prefix(&prefix)? {
            // An id says nothing about its repository: another one's commit is not there.
            if self.reaches(repo, id)? {
                candidates.push(id);
            }
        }
        match candidates[..] {
            [] => Err(not_found()),
            [only] => Ok(only),
            _ => Err(StoreError::Ambiguous { prefix, candidates }),
        }
    }

    fn commits_with_prefix(&self, prefix: &str) -> Result<Vec<CommitId>> {
        // Whole bytes of the prefix narrow the scan; an odd last digit is checked on the text.
        let bytes: Vec<u8> = (0..prefix.len() / 2)
            .filter_map(|i| u8::from_str_radix(&prefix[2 * i..2 * i + 2], 16).ok())
            .collect();
        let mut found = Vec::new();
        for row in self.database().scan(Table::Commits, &bytes) {
            let (key, _) = row?;
            if let Ok(id) = <[u8; 32]>::try_from(&key[..]).map(CommitId)
                && id.to_string().starts_with(prefix)
            {
                found.push(id);
            }
        }
        Ok(found)
    }

    /// Every commit that a branch or tag of `repo` reaches.
    pub(crate) fn commits_of(&self, repo: &RepoName) -> Result<HashSet<CommitId>> {
        let branches = self.branches(repo)?.into_iter().map(|b| b.commit);
        let tags = self.tags_of(repo)?.into_iter().map(|t| t.commit);
        let mut reached = HashSet::new();
        self.reach(branches.chain(tags).collect(), &mut reached)?;
        Ok(reached)
    }

    /// Add `queue` and all their ancestors to `reached`.
    pub(crate) fn reach(
        &self,
        mut queue: Vec<CommitId>,
        reached: &mut HashSet<CommitId>,
    ) -> Result<()> {
        while let Some(id) = queue.pop() {
            if reached.insert(id) {
                queue.extend(self.read_commit(id)?.parents);
            }
        }
        Ok(())
    }

    fn resolve_version(
        &self,
        repo: &RepoName,
        branch: &BranchName,
        version: Version,
    ) -> Result<CommitId> {
        let record = self.branch(repo, branch)?;
        let found = if version > record.version {
            None
        } else {
            self.find_in_history(record.commit, |commit| commit.version == version)?
        };
        found.ok_or_else(|| {
            let at = record.version;
            StoreError::not_found(
                "version",
                format!("{version} of {repo}@{branch}, which is at {at}"),
            )
        })
    }

    pub(crate) fn find_in_history(
        &self,
        head: CommitId,
        mut wanted: impl FnMut(&Commit) -> bool,
    ) -> Result<Option<CommitId>> {
        for entry in self.history(head) {
            let (id, commit) = entry?;
            if wanted(&commit) {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// A commit and its first parents, newest first.
    pub fn history(&self, head: CommitId) -> impl Iterator<Item = Result<(CommitId, Commit)>> + '_ {
        let mut next = Some(head);
        std::iter::from_fn(move || {
            let id = next.take()?;
            Some(self.read_commit(id).map(|commit| {
                next = commit.parents.first().copied();
                (id, commit)
            }))
        })
    }
}
