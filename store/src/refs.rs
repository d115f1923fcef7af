//! Refs: branches and tags.

use crate::database::{Batch, Table};
use crate::error::{Result, StoreError};
use crate::store::Store;
use deltaic_format::answers::Tag;
use deltaic_format::bytes::ByteReader;
use deltaic_format::ids::CommitId;
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::{RefRecord, SignedRef};
use deltaic_format::{FormatError, Version};
use std::collections::HashSet;

/// A tag as the value of its row.
fn tag_to_bytes(tag: &Tag) -> Vec<u8> {
    [&tag.commit.0[..], &tag.time_ms.to_le_bytes()].concat()
}

fn tag_from_bytes(name: BranchName, bytes: &[u8]) -> Result<Tag, FormatError> {
    let mut reader = ByteReader::new("tag", bytes);
    let tag = Tag {
        name,
        commit: CommitId(reader.array()?),
        time_ms: reader.i64()?,
    };
    reader.finish()?;
    Ok(tag)
}

pub(crate) fn ref_key(repo: &RepoName, name: &BranchName) -> Vec<u8> {
    [repo.as_str().as_bytes(), b"\0", name.as_str().as_bytes()].concat()
}

pub(crate) fn repo_prefix(repo: &RepoName) -> Vec<u8> {
    [repo.as_str().as_bytes(), b"\0"].concat()
}

/// The branch in a row, which must stand under its own name.
pub(crate) fn ref_in_row(key: &[u8], value: &[u8]) -> Result<RefRecord> {
    let object = || format!("ref {}", String::from_utf8_lossy(key).replace('\0', "@"));
    let record = SignedRef::from_bytes(value)
        .map_err(|e| StoreError::corrupt(object(), e))?
        .record;
    if ref_key(&record.repo, &record.branch) == key {
        return Ok(record);
    }
    Err(StoreError::corrupt(
        object(),
        "it is the record of another branch",
    ))
}

/// The tag in a row.
pub(crate) fn tag_in_row(key: &[u8], value: &[u8]) -> Result<Tag> {
    let object = || format!("tag {}", String::from_utf8_lossy(key).replace('\0', "@"));
    tag_from_bytes(name_in_key(key)?, value).map_err(|e| StoreError::corrupt(object(), e))
}

/// Where the deleted branch in a row ended.
pub(crate) fn retired_in_row(key: &[u8], value: &[u8]) -> Result<CommitId> {
    let object = || {
        let name = String::from_utf8_lossy(key).replace('\0', "@");
        format!("deleted branch {name}")
    };
    retired_from_bytes(value).map_err(|e| StoreError::corrupt(object(), e))
}

fn retired_from_bytes(bytes: &[u8]) -> Result<CommitId, FormatError> {
    let mut reader = ByteReader::new("retired branch", bytes);
    let commit = CommitId(reader.array()?);
    reader.finish()?;
    Ok(commit)
}

/// The name after the repository in a ref's key.
fn name_in_key(key: &[u8]) -> Result<BranchName> {
    let at = key.iter().position(|b| *b == 0).map_or(0, |zero| zero + 1);
    let text = String::from_utf8_lossy(&key[at..]).into_owned();
    Ok(BranchName::new(text)?)
}

impl Store {
    /// The record of a branch.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if there is no such repository or branch.
    pub fn branch(&self, repo: &RepoName, name: &BranchName) -> Result<RefRecord> {
        if let Some(record) = self.find_branch(repo, name)? {
            return Ok(record);
        }
        self.must_exist(repo)?;
        Err(StoreError::not_found("branch", format!("{name} of {repo}")))
    }

    pub(crate) fn find_branch(
        &self,
        repo: &RepoName,
        name: &BranchName,
    ) -> Result<Option<RefRecord>> {
        let object = || format!("branch {name} of {repo}");
        let found = self.database().read(
            Table::Refs,
            &ref_key(repo, name),
            object,
            SignedRef::from_bytes,
        )?;
        Ok(found.map(|signed| signed.record))
    }

    /// All branches of a repository, by name.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if there is no such repository.
    pub fn branches(&self, repo: &RepoName) -> Result<Vec<RefRecord>> {
        let prefix = repo_prefix(repo);
        let mut branches = Vec::new();
        for row in self.database().scan(Table::Refs, &prefix) {
            let (key, value) = row?;
            branches.push(ref_in_row(&key, &value)?);
        }
        if branches.is_empty() && self.tags_of(repo)?.is_empty() {
            return Err(StoreError::not_found("repository", repo));
        }
        Ok(branches)
    }

    /// All tags of a repository, by name.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if there is no such repository.
    pub fn tags(&self, repo: &RepoName) -> Result<Vec<Tag>> {
        self.must_exist(repo)?;
        self.tags_of(repo)
    }

    pub(crate) fn tags_of(&self, repo: &RepoName) -> Result<Vec<Tag>> {
        let prefix = repo_prefix(repo);
        let mut tags = Vec::new();
        for row in self.database().scan(Table::Tags, &prefix) {
            let (key, value) = row?;
            tags.push(tag_in_row(&key, &value)?);
        }
        Ok(tags)
    }

    /// All repositories, by name.
    ///
    /// # Errors
    ///
    /// If the database cannot be read.
    pub fn repos(&self) -> Result<Vec<RepoName>> {
        let mut repos = std::collections::BTreeSet::new();
        for table in [Table::Refs, Table::Tags] {
            for row in self.database().scan(table, b"") {
                let (key, _) = row?;
                let end = key.iter().position(|b| *b == 0).unwrap_or(key.len());
                repos.insert(RepoName::new(
                    String::from_utf8_lossy(&key[..end]).into_owned(),
                )?);
            }
        }
        Ok(repos.into_iter().collect())
    }

    pub(crate) fn exists(&self, repo: &RepoName) -> Result<bool> {
        match self.branches(repo) {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }

    pub(crate) fn must_exist(&self, repo: &RepoName) -> Result<()> {
        self.branches(repo).map(drop)
    }

    /// Make branch `name` at `commit`.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if the repository does not have the commit; [`StoreError::Conflict`] if the name is taken,
    /// or belonged to a branch whose newest version `commit` does not follow: a number never means two versions on a
    /// branch.
    pub fn create_branch(
        &self,
        repo: &RepoName,
        name: &BranchName,
        commit: CommitId,
        time_ms: i64,
    ) -> Result<RefRecord> {
        let changing = self.change_refs();
        self.check_free(repo, name)?;
        self.must_reach(repo, commit)?;
        let version = self.read_commit(commit)?.version;
        self.check_retired(repo, name, commit)?;
        let record = RefRecord {
            repo: repo.clone(),
            branch: name.clone(),
            commit,
            version,
            time_ms,
            expiry_ms: None,
        };
        let mut batch = Batch::default();
        put_ref(&mut batch, &record);
        changing.publish(batch)?;
        Ok(record)
    }

    /// Delete a branch, which must stand at `expected` if that is given; its commits stay until they are collected.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if there is no such branch, [`StoreError::Conflict`] if it stands elsewhere.
    pub fn delete_branch(
        &self,
        repo: &RepoName,
        name: &BranchName,
        expected: Option<CommitId>,
    ) -> Result<RefRecord> {
        let changing = self.change_refs();
        let record = self.branch(repo, name)?;
        if let Some(expected) = expected
            && record.commit != expected
        {
            let (stands, expected) = (record.commit.short(), expected.short());
            let what = format!("{repo}@{name} stands at {stands} by now, not at {expected}");
            return Err(StoreError::Conflict { what });
        }
        let mut batch = Batch::default();
        let key = ref_key(repo, name);
        batch.delete(Table::Refs, key.clone());
        batch.put(Table::Retired, key, record.commit.0);
        changing.publish(batch)?;
        Ok(record)
    }

    /// The newest commit of a deleted branch of this name.
    pub(crate) fn retired(&self, repo: &RepoName, name: &BranchName) -> Result<Option<CommitId>> {
        let object = || format!("deleted branch {name} of {repo}");
        self.database().read(
            Table::Retired,
            &ref_key(repo, name),
            object,
            retired_from_bytes,
        )
    }

    /// A branch of a name that was used before goes on where that one ended.
    fn check_retired(&self, repo: &RepoName, name: &BranchName, commit: CommitId) -> Result<()> {
        let Some(retired) = self.retired(repo, name)? else {
            return Ok(());
        };
        let last = self.read_commit(retired)?.version;
        let goes_on = self.find_in_history(commit, |c| c.version <= last)? == Some(retired);
        if goes_on {
            return Ok(());
        }
        Err(StoreError::Conflict {
            what: format!(
                "a deleted branch {name} of {repo} ended at {last} ({retired}), and its numbers are never used again; \
                 a new one of this name begins there or later"
            ),
        })
    }

    /// Versions of branch `name` that no other branch or tag of any repository reaches, ascending.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if there is no such branch.
    pub fn unreached_without(&self, repo: &RepoName, name: &BranchName) -> Result<Vec<Version>> {
        let own = self.branch(repo, name)?;
        let mut kept = HashSet::new();
        for other in self.repos()? {
            let branches = self.branches(&other)?.into_iter();
            let branches = branches
                .filter(|b| (&b.repo, &b.branch) != (repo, name))
                .map(|b| b.commit);
            let tags = self.tags_of(&other)?.into_iter().map(|t| t.commit);
            self.reach(branches.chain(tags).collect(), &mut kept)?;
        }
        let mut lost = Vec::new();
        for entry in self.history(own.commit) {
            let (id, commit) = entry?;
            if kept.contains(&id) {
                break;
            }
            lost.push(commit.version);
        }
        lost.reverse();
        Ok(lost)
    }

    /// Name `commit` for ever.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if the repository does not have the commit, [`StoreError::Conflict`] if the name is taken.
    pub fn create_tag(
        &self,
        repo: &RepoName,
        name: &BranchName,
        commit: CommitId,
        time_ms: i64,
    ) -> Result<Tag> {
        let changing = self.change_refs();
        self.check_free(repo, name)?;
        self.must_reach(repo, commit)?;
        let tag = Tag {
            name: name.clone(),
            commit,
            time_ms,
        };
        let mut batch = Batch::default();
        batch.put(Table::Tags, ref_key(repo, name), tag_to_bytes(&tag));
        changing.publish(batch)?;
        Ok(tag)
    }

    /// Delete a tag.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if there is no such tag.
    pub fn delete_tag(&self, repo: &RepoName, name: &BranchName) -> Result<Tag> {
        let changing = self.change_refs();
        let tag = self
            .find_tag(repo, name)?
            .ok_or_else(|| StoreError::not_found("tag", format!("{name} of {repo}")))?;
        let mut batch = Batch::default();
        batch.delete(Table::Tags, ref_key(repo, name));
        changing.publish(batch)?;
        Ok(tag)
    }

    pub(crate) fn find_tag(&self, repo: &RepoName, name: &BranchName) -> Result<Option<Tag>> {
        let object = || format!("tag {name} of {repo}");
        self.database()
            .read(Table::Tags, &ref_key(repo, name), object, |bytes| {
                tag_from_bytes(name.clone(), bytes)
            })
    }

    /// A name means one thing: no branch and tag share one.
    fn check_free(&self, repo: &RepoName, name: &BranchName) -> Result<()> {
        let taken = match (self.find_branch(repo, name)?, self.find_tag(repo, name)?) {
            (Some(_), _) => "branch",
            (_, Some(_)) => "tag",
            _ => return Ok(()),
        };
        Err(StoreError::Conflict {
            what: format!("{repo} has a {taken} named {name} already"),
        })
    }
}

/// Write a branch's record.
pub(crate) fn put_ref(batch: &mut Batch, record: &RefRecord) {
    let signed = SignedRef {
        record: record.clone(),
        signatures: Vec::new(),
    };
    batch.put(
        Table::Refs,
        ref_key(&record.repo, &record.branch),
        signed.to_bytes(),
    );
}
