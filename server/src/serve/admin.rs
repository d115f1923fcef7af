//! The service `Admin`: the store as a whole.

use super::calls::{Answer, Call};
use super::made::admin_server;
use super::state::State;
use super::status::{invalid, status};
use super::steps::{Step, watched};
use super::work::Work;
use deltaic_format::answers::{VerifyOptions, VerifyReport};
use deltaic_format::name::RepoName;
use deltaic_format::refusal::Refusal;
use deltaic_format::wire::proto;
use futures::{TryStreamExt, stream};
use std::sync::Arc;
use tonic::{Request, Response, Status, async_trait};

/// Problems in one message.
const PROBLEMS_PAGE: usize = 1000;

/// The service.
#[derive(Debug)]
pub(crate) struct Admin {
    state: Arc<State>,
}

impl Admin {
    pub(crate) fn new(state: &Arc<State>) -> Self {
        Self {
            state: state.clone(),
        }
    }

    fn get_store_stats(
        &self,
        call: Option<Arc<Call>>,
        request: proto::GetStoreStatsRequest,
    ) -> Result<Answer<proto::GetStoreStatsResponse>, Refusal> {
        let name = request.repo;
        let repo = (!name.is_empty()).then(|| RepoName::new(name)).transpose();
        let repo = repo.map_err(invalid)?;
        let counted = watched(&self.state, Work::Long, move |store, progress| {
            store.stats(repo.as_ref(), progress)
        });
        let messages = counted.map_ok(|step| {
            let mut message = proto::GetStoreStatsResponse::default();
            match step {
                Step::At(progress) => message.progress = Some(progress),
                Step::Done(stats) => message.stats = Some(proto::StoreStats::from(&stats)),
            }
            message
        });
        Ok(Answer::new(call, messages))
    }

    fn verify(
        &self,
        call: Option<Arc<Call>>,
        request: proto::VerifyRequest,
    ) -> Result<Answer<proto::VerifyResponse>, Refusal> {
        let read_data_percent = request.read_data_percent;
        if read_data_percent.is_some_and(|percent| !(0.0..=100.0).contains(&percent)) {
            let what = "a share of the contents is 0 to 100 percent".to_owned();
            return Err(Refusal::Invalid { what });
        }
        let options = VerifyOptions { read_data_percent };
        let verified = watched(&self.state, Work::Long, move |store, progress| {
            store.verify(&options, progress)
        });
        let messages = verified.map_ok(|step| {
            let messages = match step {
                Step::At(progress) => vec![proto::VerifyResponse {
                    progress: Some(progress),
                    ..Default::default()
                }],
                Step::Done(report) => report_messages(&report),
            };
            stream::iter(messages.into_iter().map(Ok))
        });
        Ok(Answer::new(call, messages.try_flatten()))
    }
}

/// A report in messages: its problems, then the rest.
fn report_messages(report: &VerifyReport) -> Vec<proto::VerifyResponse> {
    let problems = (report.problems.chunks(PROBLEMS_PAGE)).map(|page| proto::VerifyResponse {
        problems: page.iter().map(proto::Problem::from).collect(),
        ..Default::default()
    });
    let last = proto::VerifyResponse {
        report: Some(proto::VerifyReport::from(report)),
        ..Default::default()
    };
    problems.chain(std::iter::once(last)).collect()
}

#[async_trait]
impl admin_server::Admin for Admin {
    type GetStoreStatsStream = Answer<proto::GetStoreStatsResponse>;

    async fn get_store_stats(
        &self,
        request: Request<proto::GetStoreStatsRequest>,
    ) -> Result<Response<Self::GetStoreStatsStream>, Status> {
        let call = Call::of(&request);
        let stats = self.get_store_stats(call, request.into_inner());
        stats.map(Response::new).map_err(status)
    }

    type VerifyStream = Answer<proto::VerifyResponse>;

    async fn verify(
        &self,
        request: Request<proto::VerifyRequest>,
    ) -> Result<Response<Self::VerifyStream>, Status> {
        let call = Call::of(&request);
        let verify = self.verify(call, request.into_inner());
        verify.map(Response::new).map_err(status)
    }
}
