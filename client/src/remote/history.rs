//! Rows of commits, each following the one before: histories, newest first, and watches, oldest first.

use super::Remote;
use super::connection::{Connection, Incoming};
use super::status::{Failure, Fault};
use super::stream::{Next, Reader, Resumed};
use crate::error::Result;
use crate::repository::Entry;
use bytes::Bytes;
use deltaic_format::ids::CommitId;
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::{CanonicalObject, Commit};
use deltaic_format::refusal::Refusal;
use deltaic_format::wire::{self, proto};
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use std::collections::VecDeque;
use std::sync::Arc;

impl Remote {
    pub(super) async fn history_of(
        &self,
        repo: &RepoName,
        head: CommitId,
        limit: Option<u64>,
    ) -> Result<BoxStream<'static, Result<Entry>>> {
        if limit == Some(0) {
            return Ok(stream::empty().boxed());
        }
        let reading = ReadingHistory {
            repo: repo.clone(),
            next: head,
            left: limit,
        };
        Resumed::start(self.connections.clone(), reading).await
    }

    pub(super) async fn watch_branch(
        &self,
        repo: &RepoName,
        branch: &BranchName,
        after: Option<CommitId>,
    ) -> Result<BoxStream<'static, Result<Entry>>> {
        let after = match after {
            Some(after) => after,
            // Where the watch begins is settled here, so that a cut before the first version misses none.
            None => self.tip_of(repo, branch).await?,
        };
        let watching = Watching {
            repo: repo.clone(),
            branch: branch.clone(),
            after,
        };
        Resumed::start(self.connections.clone(), watching).await
    }

    async fn tip_of(&self, repo: &RepoName, branch: &BranchName) -> Result<CommitId> {
        let records = self.branch_records(repo).await?;
        let tip = records.into_iter().find(|record| record.branch == *branch);
        let tip = tip.ok_or_else(|| Refusal::NotFound {
            kind: "branch".to_owned(),
            name: format!("{branch} of {repo}"),
        })?;
        Ok(tip.commit)
    }
}

/// Reads a commit and its first parents.
struct ReadingHistory {
    repo: RepoName,
    /// The commit that comes next.
    next: CommitId,
    /// How many are still wanted; `None`: all.
    left: Option<u64>,
}

impl ReadingHistory {
    fn take_commit(&mut self, bytes: &Bytes) -> Result<(Entry, Next), Fault> {
        let id = Commit::id_of(bytes);
        if id != self.next {
            let what = format!("it sends commit {id} where {} follows", self.next);
            return Err(Fault::Damaged(what));
        }
        let commit = Commit::from_bytes(bytes)?;
        self.left = self.left.map(|left| left.saturating_sub(1));
        let next = match commit.parents.first() {
            Some(&parent) if self.left != Some(0) => {
                self.next = parent;
                Next::More
            }
            _ => Next::Nothing,
        };
        Ok(((id, commit), next))
    }
}

impl Reader for ReadingHistory {
    type Message = proto::LogResponse;
    type Item = Entry;

    fn version(&self) -> CommitId {
        self.next
    }

    fn open(
        &mut self,
        connection: Arc<Connection>,
    ) -> BoxFuture<'static, Result<Incoming<Self::Message>, Failure>> {
        let request = proto::LogRequest {
            repo: self.repo.to_string(),
            commit: wire::id_bytes(&self.next),
            limit: self.left.unwrap_or(0),
        };
        Box::pin(async move {
            let mut versions = connection.versions();
            connection.open_stream(versions.log(request)).await
        })
    }

    fn take(&mut self, message: Self::Message, items: &mut VecDeque<Entry>) -> Result<Next, Fault> {
        if message.commits.is_empty() {
            let what = "it sends a part of a history without commits".to_owned();
            return Err(Fault::Protocol(what));
        }
        for bytes in &message.commits {
            let (entry, next) = self.take_commit(bytes)?;
            items.push_back(entry);
            if next == Next::Nothing {
                return Ok(next);
            }
        }
        Ok(Next::More)
    }
}

/// Follows a branch.
struct Watching {
    repo: RepoName,
    branch: BranchName,
    /// The newest commit that was passed on.
    after: CommitId,
}

impl Reader for Watching {
    type Message = proto::WatchResponse;
    type Item = Entry;

    const ENDLESS: bool = true;

    fn version(&self) -> CommitId {
        self.after
    }

    fn open(
        &mut self,
        connection: Arc<Connection>,
    ) -> BoxFuture<'static, Result<Incoming<Self::Message>, Failure>> {
        let request = proto::WatchRequest {
            repo: self.repo.to_string(),
            branch: self.branch.to_string(),
            after: wire::id_bytes(&self.after),
        };
        Box::pin(async move {
            let mut versions = connection.versions();
            connection.open_stream(versions.watch(request)).await
        })
    }

    fn take(&mut self, message: Self::Message, items: &mut VecDeque<Entry>) -> Result<Next, Fault> {
        let Some(version) = message.version else {
            return Ok(Next::More);
        };
        let id = Commit::id_of(&version.commit);
        if wire::id_bytes(&id) != version.id {
            let what = "a commit does not have the id that came with it".to_owned();
            return Err(Fault::Damaged(what));
        }
        if id == self.after {
            return Err(Fault::Protocol(format!("it sends commit {id} twice")));
        }
        let commit = Commit::from_bytes(&version.commit)
            .map_err(|error| Fault::Protocol(error.to_string()))?;
        if commit.parents.first() != Some(&self.after) {
            return Err(Fault::Refused(Refusal::Conflict {
                what: format!(
                    "{} of {} went on to {}, which does not follow {}: it was deleted and made anew",
                    self.branch,
                    self.repo,
                    id.short(),
                    self.after.short()
                ),
            }));
        }
        self.after = id;
        items.push_back((id, commit));
        Ok(Next::More)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltaic_format::Version;
    use deltaic_format::ids::TreeId;
    use std::collections::BTreeMap;

    /// Commits that follow each other, oldest first.
    fn chain(commits: u64) -> Vec<(CommitId, Bytes)> {
        let mut parents = Vec::new();
        let mut chain = Vec::new();
        for version in 0..commits {
            let commit = Commit {
                tree: TreeId([7; 32]),
                parents: parents.clone(),
                version: Version(version),
                time_ms: 0,
                message: String::new(),
                meta: BTreeMap::new(),
            };
            let bytes = Bytes::from(commit.to_bytes());
            let id = Commit::id_of(&bytes);
            parents = vec![id];
            chain.push((id, bytes));
        }
        chain
    }

    fn history(next: CommitId, left: Option<u64>) -> ReadingHistory {
        ReadingHistory {
            repo: RepoName::new("acme/policy").expect("valid"),
            next,
            left,
        }
    }

    fn log(commits: &[&(CommitId, Bytes)]) -> proto::LogResponse {
        let commits = commits.iter().map(|(_, bytes)| bytes.clone()).collect();
        proto::LogResponse { commits }
    }

    #[test]
    fn a_history_is_complete_at_its_root_or_its_limit() {
        let chain = chain(4);
        let [zero, one, two, three] = &chain[..] else {
            panic!("four commits");
        };
        let mut items = VecDeque::new();
        let mut reading = history(three.0, None);
        assert_eq!(reading.take(log(&[three, two]), &mut items), Ok(Next::More));
        assert_eq!(reading.next, one.0);
        assert_eq!(
            reading.take(log(&[one, zero]), &mut items),
            Ok(Next::Nothing)
        );
        assert_eq!(items.len(), 4);
        items.clear();
        let mut reading = history(three.0, Some(2));
        assert_eq!(
            reading.take(log(&[three, two, one]), &mut items),
            Ok(Next::Nothing)
        );
        assert_eq!(items.len(), 2);
    }

    #[test]
    fn a_commit_that_does_not_follow_is_no_part_of_a_history() {
        let chain = chain(3);
        let mut items = VecDeque::new();
        let mut reading = history(chain[2].0, None);
        let gap = log(&[&chain[2], &chain[0]]);
        assert!(matches!(
            reading.take(gap, &mut items),
            Err(Fault::Damaged(_))
        ));
        // What came whole stays, and the rest is asked for from there.
        assert_eq!((items.len(), reading.next), (1, chain[1].0));
        let nothing = reading.take(log(&[]), &mut items);
        assert!(matches!(nothing, Err(Fault::Protocol(_))));
    }

    fn watching(after: CommitId) -> Watching {
        Watching {
            repo: RepoName::new("acme/policy").expect("valid"),
            branch: BranchName::new("main").expect("valid"),
            after,
        }
    }

    fn seen(bytes: &Bytes) -> proto::WatchResponse {
        let version = proto::WatchedVersion {
            commit: bytes.clone(),
            id: wire::id_bytes(&Commit::id_of(bytes)),
        };
        let version = Some(version);
        proto::WatchResponse { version }
    }

    #[test]
    fn a_watch_takes_each_version_once() {
        let chain = chain(4);
        let mut items = VecDeque::new();
        let mut watching = watching(chain[0].0);
        let heartbeat = proto::WatchResponse { version: None };
        assert_eq!(watching.take(heartbeat, &mut items), Ok(Next::More));
        assert_eq!(watching.take(seen(&chain[1].1), &mut items), Ok(Next::More));
        let twice = watching.take(seen(&chain[1].1), &mut items);
        assert!(matches!(twice, Err(Fault::Protocol(_))));
        let missed = watching.take(seen(&chain[3].1), &mut items);
        assert!(matches!(
            missed,
            Err(Fault::Refused(Refusal::Conflict { .. }))
        ));
        assert_eq!(watching.take(seen(&chain[2].1), &mut items), Ok(Next::More));
        assert_eq!((items.len(), watching.after), (2, chain[2].0));
    }
}
