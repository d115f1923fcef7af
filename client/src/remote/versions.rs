//! Refs and versions, asked for one by one.

use super::Remote;
use super::known::About;
use super::relay::{Headway, Relay};
use super::retry::Repeat;
use super::status::{Failure, Fault};
use crate::error::Result;
use crate::repository::Watcher;
use bytes::Bytes;
use deltaic_format::answers::{
    CommitOutcome, CommitRequest, Expect, Tag, TensorDiff, TensorStats, VersionStats,
};
use deltaic_format::ids::CommitId;
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::{RefRecord, SignedRef, Snapshot};
use deltaic_format::refusal::Refusal;
use deltaic_format::revision::Selector;
use deltaic_format::wire::{self, proto};
use deltaic_format::{FormatError, Version};

/// What a server answers instead of what was asked for.
fn another(what: &str) -> Fault {
    Fault::Protocol(format!("it answers with another {what}"))
}

/// The record of a branch of `repo`, `name` if that is given.
fn record(bytes: &Bytes, repo: &RepoName, name: Option<&BranchName>) -> Result<RefRecord, Fault> {
    let record = SignedRef::from_bytes(bytes)?.record;
    let right = record.repo == *repo && name.is_none_or(|name| record.branch == *name);
    right.then_some(record).ok_or_else(|| another("branch"))
}

/// The tag of that name.
fn tag(tag: Option<proto::Tag>, name: &BranchName) -> Result<Tag, Fault> {
    let tag = tag.ok_or_else(|| Fault::Protocol("it answers without the tag".to_owned()))?;
    let tag = Tag::try_from(tag)?;
    (tag.name == *name)
        .then_some(tag)
        .ok_or_else(|| another("tag"))
}

/// All of them, or the first fault.
fn every<T, U>(
    all: impl IntoIterator<Item = T>,
    one: impl FnMut(T) -> Result<U, FormatError>,
) -> Result<Vec<U>, Fault> {
    Ok(all.into_iter().map(one).collect::<Result<_, _>>()?)
}

impl Remote {
    pub(super) async fn repo_names(&self) -> Result<Vec<RepoName>> {
        self.connections
            .call((Repeat::Always, About::Names), move |connection| {
                Box::pin(async move {
                    let request = proto::ListRepositoriesRequest {};
                    let mut versions = connection.versions();
                    let answer = connection
                        .answer(versions.list_repositories(request))
                        .await?;
                    every(answer.repos, RepoName::new).map_err(|fault| connection.fault(fault))
                })
            })
            .await
    }

    pub(super) async fn branch_records(&self, repo: &RepoName) -> Result<Vec<RefRecord>> {
        let records: Vec<RefRecord> = self
            .connections
            .call((Repeat::Always, About::Names), move |connection| {
                Box::pin(async move {
                    let repo_name = repo.to_string();
                    let request = proto::ListBranchesRequest { repo: repo_name };
                    let mut versions = connection.versions();
                    let answer = connection.answer(versions.list_branches(request)).await?;
                    let records = answer.refs.iter().map(|bytes| record(bytes, repo, None));
                    records
                        .collect::<Result<_, _>>()
                        .map_err(|fault| connection.fault(fault))
                })
            })
            .await?;
        for record in &records {
            self.connections.know(record.commit);
        }
        Ok(records)
    }

    pub(super) async fn tag_list(&self, repo: &RepoName) -> Result<Vec<Tag>> {
        let tags: Vec<Tag> = self
            .connections
            .call((Repeat::Always, About::Names), move |connection| {
                Box::pin(async move {
                    let repo = repo.to_string();
                    let mut versions = connection.versions();
                    let request = proto::ListTagsRequest { repo };
                    let answer = connection.answer(versions.list_tags(request)).await?;
                    every(answer.tags, Tag::try_from).map_err(|fault| connection.fault(fault))
                })
            })
            .await?;
        for tag in &tags {
            self.connections.know(tag.commit);
        }
        Ok(tags)
    }

    pub(super) async fn make_branch(
        &self,
        repo: &RepoName,
        name: &BranchName,
        commit: CommitId,
        time_ms: i64,
    ) -> Result<RefRecord> {
        self.connections
            .call(
                (Repeat::Undone, About::Version(commit)),
                move |connection| {
                    Box::pin(async move {
                        let request = proto::CreateBranchRequest {
                            repo: repo.to_string(),
                            name: name.to_string(),
                            commit: wire::id_bytes(&commit),
                            time_ms,
                        };
                        let mut versions = connection.versions();
                        let answer = connection.answer(versions.create_branch(request)).await?;
                        (record(&answer.r#ref, repo, Some(name)))
                            .and_then(|record| match record.commit == commit {
                                true => Ok(record),
                                false => Err(another("commit")),
                            })
                            .map_err(|fault| connection.fault(fault))
                    })
                },
            )
            .await
    }

    pub(super) async fn remove_branch(
        &self,
        repo: &RepoName,
        name: &BranchName,
        expected: Option<CommitId>,
    ) -> Result<RefRecord> {
        self.connections
            .call((Repeat::Undone, About::Names), move |connection| {
                Box::pin(async move {
                    let request = proto::DeleteBranchRequest {
                        repo: repo.to_string(),
                        name: name.to_string(),
                        expected: expected.as_ref().map(wire::id_bytes).unwrap_or_default(),
                    };
                    let mut versions = connection.versions();
                    let answer = connection.answer(versions.delete_branch(request)).await?;
                    record(&answer.r#ref, repo, Some(name)).map_err(|fault| connection.fault(fault))
                })
            })
            .await
    }

    pub(super) async fn unreached(
        &self,
        repo: &RepoName,
        branch: &BranchName,
    ) -> Result<Vec<Version>> {
        self.connections
            .call((Repeat::Always, About::Names), move |connection| {
                Box::pin(async move {
                    let request = proto::ListUnreachedRequest {
                        repo: repo.to_string(),
                        branch: branch.to_string(),
                    };
                    let mut versions = connection.versions();
                    let call = versions.list_unreached(request);
                    let mut incoming = connection.open_stream(call).await?;
                    let mut headway = Headway::new();
                    loop {
                        let message = incoming.next().await?.ok_or_else(|| incoming.cut())?;
                        if let Some(progress) = &message.progress {
                            headway.tell(progress);
                            incoming.check_progress(&headway)?;
                        } else {
                            incoming.close().await;
                            return Ok(message.versions.into_iter().map(Version).collect());
                        }
                    }
                })
            })
            .await
    }

    pub(super) async fn make_tag(
        &self,
        repo: &RepoName,
        name: &BranchName,
        commit: CommitId,
        time_ms: i64,
    ) -> Result<Tag> {
        self.connections
            .call(
                (Repeat::Undone, About::Version(commit)),
                move |connection| {
                    Box::pin(async move {
                        let request = proto::CreateTagRequest {
                            repo: repo.to_string(),
                            name: name.to_string(),
                            commit: wire::id_bytes(&commit),
                            time_ms,
                        };
                        let mut versions = connection.versions();
                        let answer = connection.answer(versions.create_tag(request)).await?;
                        (tag(answer.tag, name))
                            .and_then(|tag| match tag.commit == commit {
                                true => Ok(tag),
                                false => Err(another("commit")),
                            })
                            .map_err(|fault| connection.fault(fault))
                    })
                },
            )
            .await
    }

    pub(super) async fn remove_tag(&self, repo: &RepoName, name: &BranchName) -> Result<Tag> {
        self.connections
            .call((Repeat::Undone, About::Names), move |connection| {
                Box::pin(async move {
                    let request = proto::DeleteTagRequest {
                        repo: repo.to_string(),
                        name: name.to_string(),
                    };
                    let mut versions = connection.versions();
                    let answer = connection.answer(versions.delete_tag(request)).await?;
                    tag(answer.tag, name).map_err(|fault| connection.fault(fault))
                })
            })
            .await
    }

    pub(super) async fn commit_of(&self, repo: &RepoName, selector: &Selector) -> Result<CommitId> {
        let found = self
            .connections
            .call((Repeat::Always, About::Names), move |connection| {
                Box::pin(async move {
                    let request = proto::ResolveRequest {
                        repo: repo.to_string(),
                        revision: selector.to_string(),
                    };
                    let mut versions = connection.versions();
                    let mut incoming = connection.open_stream(versions.resolve(request)).await?;
                    let mut headway = Headway::new();
                    loop {
                        let message = incoming.next().await?.ok_or_else(|| incoming.cut())?;
                        if let Some(progress) = &message.progress {
                            headway.tell(progress);
                            incoming.check_progress(&headway)?;
                        } else {
                            let found = wire::commit_id(&message.commit);
                            let found = found.map_err(|error| incoming.fault(error))?;
                            incoming.close().await;
                            return Ok(found);
                        }
                    }
                })
            })
            .await?;
        self.connections.know(found);
        Ok(found)
    }

    pub(super) async fn snapshot_of(&self, repo: &RepoName, id: CommitId) -> Result<Snapshot> {
        let snapshot = self
            .connections
            .call((Repeat::Always, About::Version(id)), move |connection| {
                Box::pin(async move {
                    let request = proto::GetSnapshotRequest {
                        repo: repo.to_string(),
                        commit: wire::id_bytes(&id),
                    };
                    let mut versions = connection.versions();
                    let mut incoming = connection
                        .open_stream(versions.get_snapshot(request))
                        .await?;
                    let mut parts = wire::SnapshotParts::default();
                    let mut headway = Headway::new();
                    while let Some(part) = incoming.next().await? {
                        parts.add(&part).map_err(|error| incoming.fault(error))?;
                        match part.part {
                            Some(_) => headway.made(),
                            None => incoming.check_progress(&headway)?,
                        }
                    }
                    // Parts have no checksums of their own; the ids say whether all of them came unchanged.
                    let damaged = |error: FormatError| Fault::Damaged(error.to_string());
                    parts
                        .finish(id)
                        .map_err(|error| incoming.fault(damaged(error)))
                })
            })
            .await?;
        self.connections.know(id);
        Ok(snapshot)
    }

    pub(super) async fn stats_of(
        &self,
        repo: &RepoName,
        version: &Snapshot,
    ) -> Result<VersionStats> {
        let tensors = version.tree.tensors.len();
        self.connections
            .call(
                (Repeat::Always, About::Version(version.id)),
                move |connection| {
                    Box::pin(async move {
                        let request = proto::GetStatsRequest {
                            repo: repo.to_string(),
                            commit: wire::id_bytes(&version.id),
                        };
                        let mut versions = connection.versions();
                        let mut incoming =
                            connection.open_stream(versions.get_stats(request)).await?;
                        let mut stats: Option<VersionStats> = None;
                        let mut headway = Headway::new();
                        while let Some(message) = incoming.next().await? {
                            if message.version.is_some() && stats.is_some() {
                                let what = "it sends the figures of a version twice".to_owned();
                                return Err(incoming.fault(Fault::Protocol(what)));
                            }
                            if let Some(progress) = &message.progress {
                                headway.tell(progress);
                            }
                            match message.version.is_some() || !message.tensors.is_empty() {
                                true => headway.made(),
                                false => incoming.check_progress(&headway)?,
                            }
                            if let Some(version) = message.version {
                                stats = Some(version.into());
                            }
                            let Some(stats) = &mut stats else {
                                continue;
                            };
                            stats
                                .tensors
                                .extend(message.tensors.into_iter().map(TensorStats::from));
                            if stats.tensors.len() > tensors {
                                let what =
                                    "it sends figures of more tensors than there are".to_owned();
                                return Err(incoming.fault(Fault::Protocol(what)));
                            }
                        }
                        stats
                            .filter(|stats| stats.tensors.len() == tensors)
                            .ok_or_else(|| incoming.cut())
                    })
                },
            )
            .await
    }

    pub(super) async fn differences(
        &self,
        repo: &RepoName,
        (from, to): (&Snapshot, &Snapshot),
        progress: &Watcher,
    ) -> Result<Vec<TensorDiff>> {
        self.connections
            .call((Repeat::Always, About::Version(to.id)), move |connection| {
                Box::pin(async move {
                    let request = proto::DiffRequest {
                        repo: repo.to_string(),
                        from: wire::id_bytes(&from.id),
                        to: wire::id_bytes(&to.id),
                    };
                    let (old, new) = (from.tensors(), to.tensors());
                    let mut versions = connection.versions();
                    let mut incoming = connection.open_stream(versions.diff(request)).await?;
                    let mut relay = Relay::new(progress.clone());
                    let mut diffs = Vec::new();
                    let mut headway = Headway::new();
                    loop {
                        incoming.check_progress(&headway)?;
                        let message = incoming.next_watched(&**progress).await?;
                        if let Some(progress) = &message.progress {
                            relay.tell(progress);
                            headway.tell(progress);
                        }
                        if !message.tensors.is_empty() {
                            headway.made();
                        }
                        if diffs.len() + message.tensors.len() > old.len() + new.len() {
                            let what =
                                "it sends more differences than there are tensors".to_owned();
                            return Err(incoming.fault(Fault::Protocol(what)));
                        }
                        for diff in &message.tensors {
                            let diff = wire::diff_from_wire((&old, &new), diff);
                            diffs.push(diff.map_err(|error| incoming.fault(error))?);
                        }
                        if message.complete {
                            incoming.close().await;
                            return Ok(diffs);
                        }
                    }
                })
            })
            .await
    }

    pub(super) async fn revert_to(
        &self,
        request: &CommitRequest,
        target: CommitId,
        progress: &Watcher,
    ) -> Result<CommitOutcome> {
        let expected = match request.expect {
            None => Bytes::new(),
            Some(Expect::Commit(id)) => wire::id_bytes(&id),
            Some(Expect::Nothing) => {
                return Err(Refusal::Invalid {
                    what: "a branch without versions has none to go back to".to_owned(),
                }
                .into());
            }
        };
        let wire_request = proto::RevertRequest {
            repo: request.repo.to_string(),
            branch: request.branch.to_string(),
            expected,
            target: wire::id_bytes(&target),
            message: request.message.clone(),
            meta: request.meta.clone().into_iter().collect(),
            time_ms: request.time_ms,
        };
        let outcome = self
            .connections
            .call((Repeat::Undone, About::Version(target)), |connection| {
                let wire_request = wire_request.clone();
                Box::pin(async move {
                    let mut versions = connection.versions();
                    let call = versions.revert(wire_request);
                    let mut incoming = connection.open_stream(call).await?;
                    let mut relay = Relay::new(progress.clone());
                    let mut headway = Headway::new();
                    loop {
                        incoming.check_progress(&headway)?;
                        let message = incoming.next_watched(&**progress).await?;
                        if let Some(progress) = &message.progress {
                            relay.tell(progress);
                            headway.tell(progress);
                        }
                        if let Some(outcome) = message.outcome {
                            let outcome = CommitOutcome::try_from(outcome);
                            let outcome = outcome.map_err(|error| incoming.fault(error))?;
                            incoming.close().await;
                            return Ok::<_, Failure>(outcome);
                        }
                    }
                })
            })
            .await?;
        self.connections.know(outcome.id);
        Ok(outcome)
    }
}
