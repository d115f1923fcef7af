//! The end of a server: orderly after the first signal, at once after the second.

use super::state::State;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// Time between two words of what is waited for.
const BETWEEN_WORDS: Duration = Duration::from_secs(3);

/// Time between two looks at what still runs.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// When nothing runs any more, what is under way to clients may take so long.
const LAST_BYTES: Duration = Duration::from_secs(1);

/// Threads are given so long to notice that nobody waits for them.
const LAST_WORK: Duration = Duration::from_secs(5);

/// Calls that are named while they are waited for.
const MAX_NAMED: usize = 8;

/// How a server is told to end; clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// Take no more calls, let those that run end.
    pub drain: CancellationToken,
    /// End everything.
    pub now: CancellationToken,
}

/// Serve until the end has come, in order or at once.
pub(crate) async fn supervise<E>(
    serving: impl Future<Output = Result<(), E>>,
    state: &Arc<State>,
    health: &HealthReporter,
    shutdown: &Shutdown,
) -> Result<(), E> {
    let mut serving = pin!(serving);
    set_health(health, ServingStatus::Serving).await;
    let mut result = tokio::select! {
        biased;
        () = shutdown.now.cancelled() => Ok(()),
        () = shutdown.drain.cancelled() => Ok(()),
        result = &mut serving => result,
    };
    set_health(health, ServingStatus::NotServing).await;
    // Whoever follows a branch is told to look elsewhere.
    shutdown.drain.cancel();
    if !shutdown.now.is_cancelled() && result.is_ok() {
        result = tokio::select! {
            biased;
            () = shutdown.now.cancelled() => Ok(()),
            result = drain(serving.as_mut(), state) => result,
        };
    }
    // Ends what is left: connections, and work that looks whether it should stop.
    shutdown.now.cancel();
    if !state.workers.rest(LAST_WORK).await {
        tracing::warn!("the store is still busy and is left to it");
    }
    tracing::info!("the server has ended");
    result
}

/// Let what runs end, as long as it may take.
async fn drain<E>(
    mut serving: std::pin::Pin<&mut impl Future<Output = Result<(), E>>>,
    state: &State,
) -> Result<(), E> {
    let most = state.options.drain;
    let deadline = Instant::now() + most;
    let mut next_word = Instant::now();
    let mut quiet_since = None;
    let mut served = None;
    loop {
        let running = state.calls.list();
        if running.is_empty() {
            let since = *quiet_since.get_or_insert_with(Instant::now);
            if served.is_some() || since.elapsed() >= LAST_BYTES {
                return served.unwrap_or(Ok(()));
            }
        } else {
            quiet_since = None;
            if Instant::now() >= next_word {
                next_word = Instant::now() + BETWEEN_WORDS;
                tracing::info!("waiting for {}", listed(&running));
            }
        }
        if Instant::now() >= deadline {
            tracing::warn!(
                "{} s are over; cutting off {}",
                most.as_secs(),
                listed(&running)
            );
            return served.unwrap_or(Ok(()));
        }
        tokio::select! {
            result = &mut serving, if served.is_none() => served = Some(result),
            () = tokio::time::sleep(BETWEEN_LOOKS) => {}
        }
    }
}

/// What runs, in words.
fn listed(running: &[super::calls::Running]) -> String {
    let named: Vec<String> = running
        .iter()
        .take(MAX_NAMED)
        .map(ToString::to_string)
        .collect();
    let more = match running.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let calls = if running.len() == 1 { "call" } else { "calls" };
    format!("{} {calls}: {}{more}", running.len(), named.join(", "))
}

async fn set_health(health: &HealthReporter, status: ServingStatus) {
    let services = ["Session", "Versions", "Transfer", "Admin", "Leases"];
    let services = services.map(|service| format!("deltaic.v1.{service}"));
    for service in std::iter::once("").chain(services.iter().map(String::as_str)) {
        health.set_service_status(service, status).await;
    }
}
