//! The service `Versions`: refs, and what versions are.

use super::calls::{Answer, Call};
use super::follow::{Follower, history_page};
use super::made::versions_server;
use super::state::State;
use super::status::{invalid, status};
use super::steps::{Step, steps, watched};
use super::upload::ending;
use super::work::Work;
use bytes::Bytes;
use deltaic_format::answers::{CommitRequest, Expect, VersionStats};
use deltaic_format::ids::CommitId;
use deltaic_format::name::{BranchName, RepoName};
use deltaic_format::object::{CanonicalObject, RefRecord, SignedRef};
use deltaic_format::refusal::Refusal;
use deltaic_format::revision::Selector;
use deltaic_format::wire::{
    commit_id, diffs_to_wire, id_bytes, optional_commit_id, proto, snapshot_parts,
};
use deltaic_store::{Store, StoreError};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use std::sync::Arc;
use tonic::{Request, Response, Status, async_trait};

/// Commits in one message of a log, and tensors in one of statistics: a message stays far below what either side takes.
const LOG_PAGE: usize = 64;
const TENSORS_PAGE: usize = 50_000;

/// The service.
#[derive(Debug, Clone)]
pub(crate) struct Versions {
    state: Arc<State>,
}

fn repo(name: String) -> Result<RepoName, Refusal> {
    RepoName::new(name).map_err(invalid)
}

fn branch(name: String) -> Result<BranchName, Refusal> {
    BranchName::new(name).map_err(invalid)
}

fn names(of_repo: String, of_branch: String) -> Result<(RepoName, BranchName), Refusal> {
    Ok((repo(of_repo)?, branch(of_branch)?))
}

fn commit(bytes: &[u8]) -> Result<CommitId, Refusal> {
    commit_id(bytes).map_err(invalid)
}

impl Versions {
    pub(crate) fn new(state: &Arc<State>) -> Self {
        Self {
            state: state.clone(),
        }
    }

    /// Read a few rows, in time.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let read = self.state.with_store(Work::Short, read);
        self.state.in_time(read).await
    }

    /// Change a ref, in time.
    async fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Refusal> {
        self.state.change_in_time(change).await
    }

    fn list_unreached(
        &self,
        call: Option<Arc<Call>>,
        request: proto::ListUnreachedRequest,
    ) -> Result<Answer<proto::ListUnreachedResponse>, Refusal> {
        let (repo, name) = names(request.repo, request.branch)?;
        let listed = watched(&self.state, Work::Compute, move |store, _| {
            store.unreached_without(&repo, &name)
        });
        let messages = listed.map_ok(|step| {
            let mut message = proto::ListUnreachedResponse::default();
            match step {
                Step::At(progress) => message.progress = Some(progress),
                Step::Done(versions) => {
                    message.versions = versions.into_iter().map(|version| version.0).collect();
                }
            }
            message
        });
        Ok(Answer::new(call, messages))
    }

    fn resolve(
        &self,
        call: Option<Arc<Call>>,
        request: proto::ResolveRequest,
    ) -> Result<Answer<proto::ResolveResponse>, Refusal> {
        let repo = repo(request.repo)?;
        let selector: Selector = request.revision.parse().map_err(invalid)?;
        let resolved = watched(&self.state, Work::Compute, move |store, _| {
            store.resolve(&repo, &selector)
        });
        let messages = resolved.map_ok(|step| {
            let mut message = proto::ResolveResponse::default();
            match step {
                Step::At(progress) => message.progress = Some(progress),
                Step::Done(commit) => message.commit = id_bytes(&commit),
            }
            message
        });
        Ok(Answer::new(call, messages))
    }

    async fn log(
        &self,
        call: Option<Arc<Call>>,
        request: proto::LogRequest,
    ) -> Result<Answer<proto::LogResponse>, Refusal> {
        let repo = repo(request.repo)?;
        let head = commit(&request.commit)?;
        self.state.must_reach(&repo, head).await?;
        let limit = match request.limit {
            0 => u64::MAX,
            limit => limit,
        };
        let place = self.state.transfer()?;
        let state = self.state.clone();
        let going = (state, place, Some(head), limit);
        let pages = stream::try_unfold(going, |(state, place, next, left)| async move {
            let Some(head) = next.filter(|_| left > 0) else {
                return Ok(None);
            };
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(LOG_PAGE);
            let page = move |store: &Store| history_page(store, head, most);
            let (entries, next) = state.with_store(Work::Short, page).await?;
            let left = left - entries.len() as u64;
            let commits = (entries.iter()).map(|(_, commit)| commit.to_bytes().into());
            let message = proto::LogResponse {
                commits: commits.collect(),
            };
            Ok::<_, Refusal>(Some((message, (state, place, next, left))))
        });
        Ok(Answer::new(call, pages))
    }

    async fn get_snapshot(
        &self,
        call: Option<Arc<Call>>,
        request: proto::GetSnapshotRequest,
    ) -> Result<Answer<proto::GetSnapshotResponse>, Refusal> {
        let repo = repo(request.repo)?;
        let id = commit(&request.commit)?;
        let place = self.state.transfer()?;
        let snapshot = self.state.snapshot(&repo, id).await?;
        // Encoding a million tensors takes a while too.
        let parts = move || Ok::<_, Refusal>(snapshot_parts(&snapshot).collect::<Vec<_>>());
        let parts = self.state.workers.run(Work::Compute, parts).await?;
        let parts = stream::iter(parts).map(move |part| {
            let _ = &place;
            Ok(part)
        });
        Ok(Answer::new(call, parts))
    }

    fn get_stats(
        &self,
        call: Option<Arc<Call>>,
        request: proto::GetStatsRequest,
    ) -> Result<Answer<proto::GetStatsResponse>, Refusal> {
        let (repo, id) = (repo(request.repo)?, commit(&request.commit)?);
        let owner = self.state.clone();
        let counted = steps(&self.state, move |_| {
            async move {
                let snapshot = owner.snapshot(&repo, id).await?;
                let stats = move |store: &Store| store.version_stats(&snapshot);
                owner.with_store(Work::Long, stats).await
            }
            .boxed()
        });
        let messages = counted.map_ok(|step| {
            let messages = match step {
                Step::At(progress) => vec![proto::GetStatsResponse {
                    progress: Some(progress),
                    ..Default::default()
                }],
                Step::Done(stats) => stats_messages(&stats),
            };
            stream::iter(messages.into_iter().map(Ok))
        });
        Ok(Answer::new(call, messages.try_flatten()))
    }

    fn diff(
        &self,
        call: Option<Arc<Call>>,
        request: proto::DiffRequest,
    ) -> Result<Answer<proto::DiffResponse>, Refusal> {
        let repo = repo(request.repo)?;
        let (from, to) = (commit(&request.from)?, commit(&request.to)?);
        let owner = self.state.clone();
        let compared = steps(&self.state, move |relay| {
            async move {
                let from = owner.snapshot(&repo, from).await?;
                let to = owner.snapshot(&repo, to).await?;
                let diff = move |store: &Store| {
                    let diffs = store.diff(&from, &to, &*relay)?;
                    Ok(diffs_to_wire(&from, &to, &diffs))
                };
                owner.with_store(Work::Long, diff).await
            }
            .boxed()
        });
        let messages = compared.map_ok(|step| {
            let messages: Vec<_> = match step {
                Step::At(progress) => vec![proto::DiffResponse {
                    progress: Some(progress),
                    ..Default::default()
                }],
                Step::Done(diffs) => (diffs.chunks(TENSORS_PAGE))
                    .map(|page| proto::DiffResponse {
                        tensors: page.to_vec(),
                        ..Default::default()
                    })
                    .chain(std::iter::once(proto::DiffResponse {
                        complete: true,
                        ..Default::default()
                    }))
                    .collect(),
            };
            stream::iter(messages.into_iter().map(Ok))
        });
        Ok(Answer::new(call, messages.try_flatten()))
    }

    fn revert(
        &self,
        call: Option<Arc<Call>>,
        request: proto::RevertRequest,
    ) -> Result<Answer<proto::CommitResponse>, Refusal> {
        let target = commit(&request.target)?;
        let expected = optional_commit_id(&request.expected).map_err(invalid)?;
        let request = CommitRequest {
            repo: repo(request.repo)?,
            branch: branch(request.branch)?,
            message: request.message,
            meta: request.meta.into_iter().collect(),
            time_ms: request.time_ms,
            expect: expected.map(Expect::Commit),
        };
        let reverted = watched(&self.state, Work::Write, move |store, progress| {
            store.revert(&request, target, progress)
        });
        let messages = reverted.map_ok(|step| {
            let mut message = proto::CommitResponse::default();
            match step {
                Step::At(progress) => message.progress = Some(progress),
                Step::Done(outcome) => {
                    message.outcome = Some(proto::CommitOutcome::from(&outcome));
                }
            }
            message
        });
        Ok(Answer::new(call, messages))
    }

    async fn watch(
        &self,
        call: Option<Arc<Call>>,
        request: proto::WatchRequest,
    ) -> Result<Answer<proto::WatchResponse>, Refusal> {
        let after = optional_commit_id(&request.after).map_err(invalid)?;
        let state = &self.state;
        let parts = (&state.store, &state.workers, &state.options.changes);
        let (repo, branch) = names(request.repo, request.branch)?;
        let place = state.watch()?;
        let mut follower = Follower::new(parts, repo, branch, after);
        // Where it begins is settled before the client is told that it is being served.
        let first = state.in_time(follower.next()).await?;
        let heartbeat = state.options.heartbeat;
        let drain = state.shutdown.drain.clone();
        let following = (follower, first, (drain, place));
        let messages = stream::try_unfold(
            following,
            move |(mut follower, first, (drain, place))| async move {
                let next = match first {
                    Some(first) => Some(first),
                    None => tokio::select! {
                        biased;
                        () = drain.cancelled() => return Err(ending()),
                        // It looks anew after each heartbeat anyway.
                        next = follower.following(heartbeat * 2) => Some(next?),
                        () = tokio::time::sleep(heartbeat) => None,
                    },
                };
                let version = next.map(|(id, commit)| proto::WatchedVersion {
                    commit: commit.to_bytes().into(),
                    id: id_bytes(&id),
                });
                let message = proto::WatchResponse { version };
                Ok(Some((message, (follower, None, (drain, place)))))
            },
        );
        Ok(Answer::new(call, messages))
    }
}

/// Statistics in messages: the version's, then its tensors'.
fn stats_messages(stats: &VersionStats) -> Vec<proto::GetStatsResponse> {
    let first = proto::GetStatsResponse {
        version: Some(proto::VersionStats::from(stats)),
        ..Default::default()
    };
    let pages = (stats.tensors.chunks(TENSORS_PAGE)).map(|page| proto::GetStatsResponse {
        tensors: page.iter().map(proto::TensorStats::from).collect(),
        ..Default::default()
    });
    std::iter::once(first).chain(pages).collect()
}

/// A branch's record as it travels.
fn record_bytes(record: RefRecord) -> Bytes {
    let signatures = Vec::new();
    SignedRef { record, signatures }.to_bytes().into()
}

type Streamed<T> = Result<Response<T>, Status>;

#[async_trait]
impl versions_server::Versions for Versions {
    async fn list_repositories(
        &self,
        _request: Request<proto::ListRepositoriesRequest>,
    ) -> Result<Response<proto::ListRepositoriesResponse>, Status> {
        let repos = self.read(Store::repos).await.map_err(status)?;
        Ok(Response::new(proto::ListRepositoriesResponse {
            repos: repos.iter().map(ToString::to_string).collect(),
        }))
    }

    async fn list_branches(
        &self,
        request: Request<proto::ListBranchesRequest>,
    ) -> Result<Response<proto::ListBranchesResponse>, Status> {
        let repo = repo(request.into_inner().repo).map_err(status)?;
        let branches = self.read(move |store| store.branches(&repo)).await;
        let refs = branches.map_err(status)?.into_iter().map(record_bytes);
        Ok(Response::new(proto::ListBranchesResponse {
            refs: refs.collect(),
        }))
    }

    async fn list_tags(
        &self,
        request: Request<proto::ListTagsRequest>,
    ) -> Result<Response<proto::ListTagsResponse>, Status> {
        let repo = repo(request.into_inner().repo).map_err(status)?;
        let tags = self.read(move |store| store.tags(&repo)).await;
        let tags = tags.map_err(status)?.iter().map(proto::Tag::from).collect();
        Ok(Response::new(proto::ListTagsResponse { tags }))
    }

    async fn create_branch(
        &self,
        request: Request<proto::CreateBranchRequest>,
    ) -> Result<Response<proto::CreateBranchResponse>, Status> {
        let request = request.into_inner();
        let (repo, name) = names(request.repo, request.name).map_err(status)?;
        let (commit, time_ms) = (commit(&request.commit).map_err(status)?, request.time_ms);
        let create = move |store: &Store| store.create_branch(&repo, &name, commit, time_ms);
        let record = self.change(create).await.map_err(status)?;
        Ok(Response::new(proto::CreateBranchResponse {
            r#ref: record_bytes(record),
        }))
    }

    async fn delete_branch(
        &self,
        request: Request<proto::DeleteBranchRequest>,
    ) -> Result<Response<proto::DeleteBranchResponse>, Status> {
        let request = request.into_inner();
        let (repo, name) = names(request.repo, request.name).map_err(status)?;
        let expected = optional_commit_id(&request.expected).map_err(|e| status(invalid(e)))?;
        let delete = move |store: &Store| store.delete_branch(&repo, &name, expected);
        let record = self.change(delete).await.map_err(status)?;
        Ok(Response::new(proto::DeleteBranchResponse {
            r#ref: record_bytes(record),
        }))
    }

    type ListUnreachedStream = Answer<proto::ListUnreachedResponse>;

    async fn list_unreached(
        &self,
        request: Request<proto::ListUnreachedRequest>,
    ) -> Streamed<Self::ListUnreachedStream> {
        let call = Call::of(&request);
        let unreached = self.list_unreached(call, request.into_inner());
        unreached.map(Response::new).map_err(status)
    }

    async fn create_tag(
        &self,
        request: Request<proto::CreateTagRequest>,
    ) -> Result<Response<proto::CreateTagResponse>, Status> {
        let request = request.into_inner();
        let (repo, name) = names(request.repo, request.name).map_err(status)?;
        let (commit, time_ms) = (commit(&request.commit).map_err(status)?, request.time_ms);
        let create = move |store: &Store| store.create_tag(&repo, &name, commit, time_ms);
        let tag = self.change(create).await.map_err(status)?;
        Ok(Response::new(proto::CreateTagResponse {
            tag: Some(proto::Tag::from(&tag)),
        }))
    }

    async fn delete_tag(
        &self,
        request: Request<proto::DeleteTagRequest>,
    ) -> Result<Response<proto::DeleteTagResponse>, Status> {
        let request = request.into_inner();
        let (repo, name) = names(request.repo, request.name).map_err(status)?;
        let delete = move |store: &Store| store.delete_tag(&repo, &name);
        let tag = self.change(delete).await.map_err(status)?;
        Ok(Response::new(proto::DeleteTagResponse {
            tag: Some(proto::Tag::from(&tag)),
        }))
    }

    type ResolveStream = Answer<proto::ResolveResponse>;

    async fn resolve(
        &self,
        request: Request<proto::ResolveRequest>,
    ) -> Streamed<Self::ResolveStream> {
        let call = Call::of(&request);
        let resolve = self.resolve(call, request.into_inner());
        resolve.map(Response::new).map_err(status)
    }

    type LogStream = Answer<proto::LogResponse>;

    async fn log(&self, request: Request<proto::LogRequest>) -> Streamed<Self::LogStream> {
        let call = Call::of(&request);
        let log = self.log(call, request.into_inner());
        let log = self.state.in_time(log).await;
        log.map(Response::new).map_err(status)
    }

    type GetSnapshotStream = Answer<proto::GetSnapshotResponse>;

    async fn get_snapshot(
        &self,
        request: Request<proto::GetSnapshotRequest>,
    ) -> Streamed<Self::GetSnapshotStream> {
        let call = Call::of(&request);
        let snapshot = self.get_snapshot(call, request.into_inner());
        let snapshot = self.state.in_time(snapshot).await;
        snapshot.map(Response::new).map_err(status)
    }

    type GetStatsStream = Answer<proto::GetStatsResponse>;

    async fn get_stats(
        &self,
        request: Request<proto::GetStatsRequest>,
    ) -> Streamed<Self::GetStatsStream> {
        let call = Call::of(&request);
        let stats = self.get_stats(call, request.into_inner());
        stats.map(Response::new).map_err(status)
    }

    type DiffStream = Answer<proto::DiffResponse>;

    async fn diff(&self, request: Request<proto::DiffRequest>) -> Streamed<Self::DiffStream> {
        let call = Call::of(&request);
        let diff = self.diff(call, request.into_inner());
        diff.map(Response::new).map_err(status)
    }

    type RevertStream = Answer<proto::CommitResponse>;

    async fn revert(&self, request: Request<proto::RevertRequest>) -> Streamed<Self::RevertStream> {
        let call = Call::of(&request);
        let revert = self.revert(call, request.into_inner());
        revert.map(Response::new).map_err(status)
    }

    type WatchStream = Answer<proto::WatchResponse>;

    async fn watch(&self, request: Request<proto::WatchRequest>) -> Streamed<Self::WatchStream> {
        let call = Call::of(&request);
        let watch = self.watch(call, request.into_inner()).await;
        watch.map(Response::new).map_err(status)
    }
}
