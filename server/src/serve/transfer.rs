//! The service `Transfer`: weights on their way, both ways.

use super::calls::{Answer, Call};
use super::fetch::{answer, resumed};
use super::made::transfer_server;
use super::state::State;
use super::status::{invalid, status};
use super::steps::{Step, steps};
use super::upload::Receiving;
use super::work::Work;
use crate::embedded::plan;
use deltaic_format::fetch::FetchRequest;
use deltaic_format::name::RepoName;
use deltaic_format::refusal::Refusal;
use deltaic_format::wire::{commit_id, file_id, file_part, proto};
use deltaic_store::{FoundFile, Store};
use futures::{FutureExt, StreamExt, stream};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming, async_trait};
use tracing::Instrument;

/// Answers to an upload that its sender has not taken yet.
const UPLOAD_ANSWERS: usize = 4;

/// The service.
#[derive(Debug)]
pub(crate) struct Transfer {
    state: Arc<State>,
}

impl Transfer {
    pub(crate) fn new(state: &Arc<State>) -> Self {
        Self {
            state: state.clone(),
        }
    }

    fn plan(
        &self,
        call: Option<Arc<Call>>,
        request: proto::PlanRequest,
    ) -> Result<Answer<proto::PlanResponse>, Refusal> {
        let fetch = request.fetch.unwrap_or_default();
        let fetch = FetchRequest::try_from(&fetch).map_err(invalid)?;
        let exactly = request.exactly;
        let kind = if exactly { Work::Long } else { Work::Compute };
        let owner = self.state.clone();
        let planned = steps(&self.state, move |relay| {
            async move {
                let fetch = owner.chunks.open(fetch).await?;
                let plan = move |store: &Store| plan(store, &fetch, exactly, &*relay);
                owner.with_store(kind, plan).await
            }
            .boxed()
        });
        let messages = planned.map(|step| {
            let mut message = proto::PlanResponse::default();
            match step? {
                Step::At(progress) => message.progress = Some(progress),
                Step::Done(plan) => message.plan = Some(proto::FetchPlan::from(&plan)),
            }
            Ok(message)
        });
        Ok(Answer::new(call, messages))
    }

    fn fetch(
        &self,
        call: Option<Arc<Call>>,
        request: proto::FetchRequest,
    ) -> Result<Answer<proto::FetchResponse>, Refusal> {
        let place = self.state.transfer()?;
        let resume = request.resume.clone();
        let request = FetchRequest::try_from(&request).map_err(invalid)?;
        let at = resumed(&request, &resume)?;
        let (repo, want) = (&request.repo, request.want.short());
        tracing::debug!(%repo, want, resumed = !resume.is_empty(), "fetch");
        let heartbeat = self.state.options.heartbeat;
        let chunks = answer(&self.state.chunks, request, at, heartbeat, place);
        Ok(Answer::new(call, chunks))
    }

    async fn get_file(
        &self,
        call: Option<Arc<Call>>,
        request: proto::GetFileRequest,
    ) -> Result<Answer<proto::GetFileResponse>, Refusal> {
        let place = self.state.transfer()?;
        let repo = RepoName::new(request.repo).map_err(invalid)?;
        let version = commit_id(&request.commit).map_err(invalid)?;
        let id = file_id(&request.file).map_err(invalid)?;
        let version = self.state.snapshot(&repo, version).await?;
        let find = move |store: &Store| store.find_file(&repo, &version, id);
        let file = self.state.with_store(Work::Short, find).await?;
        let first = self.file_part(file, request.offset).await?;
        let owner = Self::new(&self.state);
        let sending = (owner, place, request.offset, Some(first));
        let parts = stream::try_unfold(sending, move |(owner, place, at, next)| async move {
            let (data, complete) = match next {
                None if at == u64::MAX => return Ok(None),
                None => owner.file_part(file, at).await?,
                Some(first) => first,
            };
            let next = if complete {
                u64::MAX
            } else {
                at + data.len() as u64
            };
            let part = file_part(at, data.into(), complete);
            Ok(Some((part, (owner, place, next, None))))
        });
        Ok(Answer::new(call, parts))
    }

    async fn file_part(&self, file: FoundFile, offset: u64) -> Result<(Vec<u8>, bool), Refusal> {
        let part = move |store: &Store| store.file_part(file, offset);
        self.state.with_store(Work::Compute, part).await
    }

    fn upload(
        &self,
        call: Option<Arc<Call>>,
        requests: Streaming<proto::UploadRequest>,
    ) -> Answer<proto::UploadResponse> {
        let (out, answers) = mpsc::channel(UPLOAD_ANSWERS);
        let receiving = Receiving {
            state: self.state.clone(),
            requests,
            out,
        };
        // A server that ends waits until what has arrived is held.
        (self.state.workers).spawn(receiving.receive().in_current_span());
        Answer::new(call, ReceiverStream::new(answers))
    }
}

#[async_trait]
impl transfer_server::Transfer for Transfer {
    type PlanStream = Answer<proto::PlanResponse>;

    async fn plan(
        &self,
        request: Request<proto::PlanRequest>,
    ) -> Result<Response<Self::PlanStream>, Status> {
        let call = Call::of(&request);
        let plan = self.plan(call, request.into_inner());
        plan.map(Response::new).map_err(status)
    }

    type FetchStream = Answer<proto::FetchResponse>;

    async fn fetch(
        &self,
        request: Request<proto::FetchRequest>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let call = Call::of(&request);
        let fetch = self.fetch(call, request.into_inner());
        fetch.map(Response::new).map_err(status)
    }

    type GetFileStream = Answer<proto::GetFileResponse>;

    async fn get_file(
        &self,
        request: Request<proto::GetFileRequest>,
    ) -> Result<Response<Self::GetFileStream>, Status> {
        let call = Call::of(&request);
        let file = self
            .state
            .in_time(self.get_file(call, request.into_inner()));
        file.await.map(Response::new).map_err(status)
    }

    type UploadStream = Answer<proto::UploadResponse>;

    async fn upload(
        &self,
        request: Request<Streaming<proto::UploadRequest>>,
    ) -> Result<Response<Self::UploadStream>, Status> {
        let call = Call::of(&request);
        Ok(Response::new(self.upload(call, request.into_inner())))
    }
}
