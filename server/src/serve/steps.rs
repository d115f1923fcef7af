//! Long work as a stream: where it stands, often enough that silence means a fault, and what came of it.

use super::progress::Relay;
use super::state::State;
use super::work::Work;
use deltaic_format::progress::Progress;
use deltaic_format::refusal::Refusal;
use deltaic_format::wire::proto;
use deltaic_store::{Store, StoreError};
use futures::future::BoxFuture;
use futures::{FutureExt, Stream, stream};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::DropGuard;

/// Time between two looks at where the work stands.
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);

/// One step of long work.
#[derive(Debug)]
pub(crate) enum Step<T> {
    /// It goes on.
    At(proto::Progress),
    /// It is done.
    Done(T),
}

/// When the waiting is told where the work stands.
#[derive(Debug)]
pub(crate) struct Pulse {
    heartbeat: Duration,
    told: Option<proto::Progress>,
    since: Instant,
}

impl Pulse {
    /// At least every `heartbeat`.
    pub(crate) fn new(heartbeat: Duration) -> Self {
        Self {
            heartbeat,
            told: None,
            since: Instant::now(),
        }
    }

    /// Wait until there is something to tell of `relay`: news, or that there is none.
    pub(crate) async fn beat(&mut self, relay: &Relay) -> proto::Progress {
        loop {
            tokio::time::sleep(BETWEEN_LOOKS.min(self.heartbeat)).await;
            let now = relay.now();
            if self.told.as_ref() != Some(&now) || self.since.elapsed() >= self.heartbeat {
                self.told = Some(now.clone());
                self.since = Instant::now();
                return now;
            }
        }
    }
}

struct Waiting<T> {
    done: Option<BoxFuture<'static, Result<T, Refusal>>>,
    relay: Arc<Relay>,
    pulse: Pulse,
    /// Stops the work when whoever waits goes away.
    _stop: DropGuard,
}

/// Work that is under way, and how it is watched.
pub(crate) fn steps<T: Send + 'static>(
    state: &State,
    begin: impl FnOnce(Arc<Relay>) -> BoxFuture<'static, Result<T, Refusal>>,
) -> impl Stream<Item = Result<Step<T>, Refusal>> + Send + 'static {
    let stop = state.shutdown.now.child_token();
    let relay = Relay::new(stop.clone());
    let waiting = Waiting {
        done: Some(begin(relay.clone())),
        relay,
        pulse: Pulse::new(state.options.heartbeat),
        _stop: stop.drop_guard(),
    };
    stream::unfold(waiting, |mut waiting| async move {
        let done = waiting.done.as_mut()?;
        let step = tokio::select! {
            biased;
            result = done => {
                waiting.done = None;
                result.map(Step::Done)
            }
            at = waiting.pulse.beat(&waiting.relay) => Ok(Step::At(at)),
        };
        Some((step, waiting))
    })
}

/// Do `work` with the store, watched.
pub(crate) fn watched<T: Send + 'static>(
    state: &Arc<State>,
    kind: Work,
    work: impl FnOnce(&Store, &dyn Progress) -> Result<T, StoreError> + Send + 'static,
) -> impl Stream<Item = Result<Step<T>, Refusal>> + Send + 'static {
    let owner = state.clone();
    steps(state, move |relay| {
        async move {
            let work = move |store: &Store| work(store, &*relay);
            match kind {
                Work::Write | Work::Refs => owner.change(kind, work).await,
                kind => owner.with_store(kind, work).await,
            }
        }
        .boxed()
    })
}
