//! A repository as a source: tasks on a runtime read ahead, and the thread that calls takes what they read.

use super::{Ask, Source};
use crate::arrival::checked;
use crate::error::{ClientError, Result};
use crate::parts::check_cancelled;
use crate::repository::{Repository, Watcher};
use deltaic_format::FormatError;
use deltaic_format::fetch::{AnswerCheck, Chunk, Delivery, FetchPlan, FetchRequest, Position};
use deltaic_format::ids::{CommitId, FileId};
use deltaic_format::name::RepoName;
use deltaic_format::object::{Snapshot, TensorSpec};
use deltaic_format::progress::Progress;
use deltaic_format::refusal::Refusal;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;

/// Items that are read ahead of whoever takes them; those of a fetch have about
/// [`DELIVERY_BYTES`](deltaic_format::fetch::DELIVERY_BYTES) each.
const AHEAD: usize = 4;

/// How often a thread that waits asks whether to stop.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// A repository as a source for one operation, which is asked now and then whether to stop.
///
/// Its calls block: they are for threads that are not the runtime's own, such as those of
/// [`spawn_blocking`](tokio::task::spawn_blocking). Requests and reads go on in tasks on the runtime, a few items ahead,
/// so that network, processor and disk work at the same time; a call that ends for whatever reason ends its task.
#[derive(Clone)]
pub struct RepositorySource {
    repository: Arc<dyn Repository>,
    repo: RepoName,
    runtime: Handle,
    progress: Watcher,
}

impl std::fmt::Debug for RepositorySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RepositorySource")
            .field("repository", &self.repository)
            .field("repo", &self.repo)
            .finish_non_exhaustive()
    }
}

impl RepositorySource {
    /// Take versions from `repo` of `repository`, by tasks on `runtime`, until `progress` says to stop.
    pub fn new(
        repository: Arc<dyn Repository>,
        repo: RepoName,
        runtime: Handle,
        progress: Watcher,
    ) -> Self {
        Self {
            repository,
            repo,
            runtime,
            progress,
        }
    }

    /// Send the request for `ask`; again, with all contents listed, if the repository does not know the version that it
    /// names as the one that is held.
    fn request<T>(
        &self,
        ask: &Ask<'_>,
        mut send: impl FnMut(FetchRequest) -> Result<T>,
    ) -> Result<T> {
        let request = |held| FetchRequest::new(self.repo.clone(), ask.want, held, ask.wishes);
        let first = request(ask.held);
        let named = first.held;
        match send(first) {
            Err(ClientError::Refused(refusal)) if is_unknown(&refusal, named) => {
                send(request(None))
            }
            sent => sent,
        }
    }

    /// The answer to a request for some of `want`, in parts where the repository likes that.
    fn chunks(
        &self,
        want: &Snapshot,
        request: FetchRequest,
    ) -> Result<BoxStream<'static, Result<Chunk>>> {
        let invalid = |error: FormatError| ClientError::Invalid {
            what: error.to_string(),
        };
        let (split, from) = (self.repository.split(), Position::default());
        let sizes: Vec<u64> = want.schema.tensors().map(TensorSpec::byte_len).collect();
        let mut parts = Vec::new();
        for part in split.split(request, &sizes) {
            let check = AnswerCheck::new(want, &part, from).map_err(invalid)?;
            let (repository, want) = (Arc::clone(&self.repository), want.id);
            let part = async move {
                Ok::<_, ClientError>(checked(repository.fetch(part, from).await?, want, check))
            };
            parts.push(stream::once(part).try_flatten().boxed());
        }
        Ok(stream::iter(parts)
            .flatten_unordered(split.at_a_time)
            .boxed())
    }

    /// Wait for an answer.
    fn answer<T: Send + 'static>(
        &self,
        answer: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let task = AbortOnDropHandle::new(self.runtime.spawn(answer));
        wait(task, &*self.progress)?.unwrap_or_else(|error| Err(failed(error)))
    }

    /// Give the items of a stream to `receive`, reading some ahead.
    fn receive<T: Send + 'static>(
        &self,
        open: impl Future<Output = Result<BoxStream<'static, Result<T>>>> + Send + 'static,
        receive: &mut dyn FnMut(T) -> Result<()>,
    ) -> Result<()> {
        let (sender, mut items) = mpsc::channel(AHEAD);
        let task = AbortOnDropHandle::new(self.runtime.spawn(async move {
            let mut stream = open.await?;
            while let Some(item) = stream.next().await {
                // Nobody takes it any more: the call has ended, and so does this task.
                if sender.send(item?).await.is_err() {
                    return Ok(());
                }
            }
            Ok(())
        }));
        while let Some(item) = wait(items.recv(), &*self.progress)? {
            receive(item)?;
        }
        // The row has ended; whether with an error, the task says.
        wait(task, &*self.progress)?.unwrap_or_else(|error| Err(failed(error)))
    }
}

/// Whether a request was refused because the repository does not know the version that it named as held.
fn is_unknown(refusal: &Refusal, held: Option<CommitId>) -> bool {
    match (refusal, held) {
        (Refusal::NotFound { kind, name }, Some(held)) => {
            kind == "commit" && (*name == held.to_string() || *name == held.short())
        }
        _ => false,
    }
}

/// What became of a task that did not come to its end.
fn failed(error: JoinError) -> ClientError {
    match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        // The runtime is being shut down.
        Err(_) => ClientError::Interrupted,
    }
}

/// Wakes a thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Block this thread until `future` is done, or `progress` says to stop. Works on any thread, whatever becomes of the
/// runtime.
fn wait<T>(future: impl Future<Output = T>, progress: &dyn Progress) -> Result<T> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return Ok(done);
        }
        check_cancelled(progress)?;
        thread::park_timeout(ASK_EVERY);
    }
}

impl Source for RepositorySource {
    fn plan(&self, ask: &Ask<'_>) -> Result<FetchPlan> {
        self.request(ask, |request| {
            let (repository, progress) = (Arc::clone(&self.repository), Arc::clone(&self.progress));
            self.answer(async move { repository.plan(&request, false, progress).await })
        })
    }

    fn fetch(&self, ask: &Ask<'_>, receive: &mut dyn FnMut(Delivery) -> Result<()>) -> Result<()> {
        let mut received = false;
        let fetched = self.request(ask, |request| {
            let chunks = self.chunks(ask.want, request)?;
            let open = std::future::ready(Ok(chunks));
            let result = self.receive(open, &mut |chunk: Chunk| {
                received = true;
                receive(chunk.delivery)
            });
            match received {
                // Too late to ask again: some of it was taken.
                true => Ok(result),
                false => result.map(Ok),
            }
        });
        fetched?
    }

    fn file(
        &self,
        version: CommitId,
        id: FileId,
        _size: u64,
        receive: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let (repository, repo) = (Arc::clone(&self.repository), self.repo.clone());
        let open = async move { repository.file(&repo, version, id).await };
        self.receive(open, &mut |bytes: bytes::Bytes| receive(&bytes))
    }

    fn snapshot(&self, id: CommitId) -> Result<Snapshot> {
        let (repository, repo) = (Arc::clone(&self.repository), self.repo.clone());
        self.answer(async move { repository.snapshot(&repo, id).await })
    }
}
