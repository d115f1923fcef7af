//! Plans, and the store as a whole.

use super::Remote;
use super::known::About;
use super::relay::{Headway, Relay};
use super::retry::Repeat;
use super::status::{Failure, Fault, printable};
use crate::error::Result;
use crate::repository::Watcher;
use deltaic_format::answers::{Problem, StoreStats, VerifyOptions, VerifyReport};
use deltaic_format::fetch::{FetchPlan, FetchRequest};
use deltaic_format::name::RepoName;
use deltaic_format::wire::proto;

/// Problems of one check that are taken at most, and the bytes that they take in memory; whoever sends more is no store.
const MAX_PROBLEMS: usize = 1 << 20;
const MAX_PROBLEM_BYTES: usize = 256 << 20;

/// Characters of a problem's words at most.
const PROBLEM_CHARACTERS: usize = 4000;

fn shown(problem: Problem) -> Problem {
    Problem {
        kind: printable(&problem.kind, PROBLEM_CHARACTERS).into(),
        object: printable(&problem.object, PROBLEM_CHARACTERS),
        what: printable(&problem.what, PROBLEM_CHARACTERS),
    }
}

impl Remote {
    pub(super) async fn plan_of(
        &self,
        request: &FetchRequest,
        exactly: bool,
        progress: &Watcher,
    ) -> Result<FetchPlan> {
        self.connections
            .call(
                (Repeat::Always, About::Version(request.want)),
                move |connection| {
                    Box::pin(async move {
                        let request = proto::PlanRequest {
                            fetch: Some(request.into()),
                            exactly,
                        };
                        let mut transfer = connection.transfer();
                        let mut incoming = connection.open_stream(transfer.plan(request)).await?;
                        let mut relay = Relay::new(progress.clone());
                        let mut headway = Headway::new();
                        loop {
                            incoming.check_progress(&headway)?;
                            let message = incoming.next_watched(&**progress).await?;
                            if let Some(progress) = &message.progress {
                                relay.tell(progress);
                                headway.tell(progress);
                            }
                            if let Some(plan) = message.plan {
                                incoming.close().await;
                                return Ok::<_, Failure>(plan.into());
                            }
                        }
                    })
                },
            )
            .await
    }

    pub(super) async fn sizes(&self, repo: Option<&RepoName>) -> Result<StoreStats> {
        self.connections
            .call((Repeat::Always, About::Names), move |connection| {
                Box::pin(async move {
                    let repo = repo.map(RepoName::to_string).unwrap_or_default();
                    let mut admin = connection.admin();
                    let request = proto::GetStoreStatsRequest { repo };
                    let call = admin.get_store_stats(request);
                    let mut incoming = connection.open_stream(call).await?;
                    let mut headway = Headway::new();
                    loop {
                        incoming.check_progress(&headway)?;
                        let message = incoming.next().await?.ok_or_else(|| incoming.cut())?;
                        if let Some(progress) = &message.progress {
                            headway.tell(progress);
                        }
                        if let Some(stats) = message.stats {
                            incoming.close().await;
                            return Ok::<_, Failure>(stats.into());
                        }
                    }
                })
            })
            .await
    }

    pub(super) async fn check(
        &self,
        options: VerifyOptions,
        progress: &Watcher,
    ) -> Result<VerifyReport> {
        self.connections
            .call((Repeat::Always, About::Names), move |connection| {
                Box::pin(async move {
                    let request = proto::VerifyRequest {
                        read_data_percent: options.read_data_percent,
                    };
                    let mut admin = connection.admin();
                    let mut incoming = connection.open_stream(admin.verify(request)).await?;
                    let mut relay = Relay::new(progress.clone());
                    let (mut problems, mut bytes) = (Vec::new(), 0);
                    let mut headway = Headway::new();
                    loop {
                        incoming.check_progress(&headway)?;
                        let message = incoming.next_watched(&**progress).await?;
                        if let Some(progress) = &message.progress {
                            relay.tell(progress);
                            headway.tell(progress);
                        }
                        if !message.problems.is_empty() {
                            headway.made();
                        }
                        for problem in message.problems {
                            let problem = shown(problem.into());
                            bytes += problem.object.len() + problem.what.len();
                            problems.push(problem);
                        }
                        if problems.len() > MAX_PROBLEMS || bytes > MAX_PROBLEM_BYTES {
                            let what = "it finds problems without end".to_owned();
                            return Err(incoming.fault(Fault::Protocol(what)));
                        }
                        if let Some(report) = message.report {
                            incoming.close().await;
                            let mut report = VerifyReport::from(report);
                            report.problems = problems;
                            return Ok(report);
                        }
                    }
                })
            })
            .await
    }
}
