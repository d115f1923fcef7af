//! How work on a thread tells those who wait for it where it stands, and is told that nobody waits any more.

use deltaic_client::Watcher;
use deltaic_format::progress::Progress;
use deltaic_format::wire::proto;
use std::sync::{Arc, Mutex, PoisonError};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Where work stands, to be looked at from elsewhere.
#[derive(Debug)]
pub(crate) struct Relay {
    at: Mutex<proto::Progress>,
    stop: CancellationToken,
}

impl Relay {
    /// Of work that stops once `stop` says so.
    pub(crate) fn new(stop: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            at: Mutex::default(),
            stop,
        })
    }

    /// Where it stands.
    pub(crate) fn now(&self) -> proto::Progress {
        self.at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Progress for Relay {
    fn phase(&self, name: &'static str, total: Option<u64>) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = proto::Progress {
            phase: name.to_owned(),
            done: 0,
            total,
        };
    }

    fn advance(&self, bytes: u64) {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        at.done = at.done.saturating_add(bytes);
    }

    fn cancelled(&self) -> bool {
        self.stop.is_cancelled()
    }
}

/// Passes progress on, and stops the work once the guard that came with it is dropped.
#[derive(Clone)]
pub(crate) struct Cancellable {
    inner: Watcher,
    stop: CancellationToken,
}

impl Cancellable {
    /// What work is given, and what whoever waits for it keeps.
    pub(crate) fn new(inner: Watcher) -> (Self, DropGuard) {
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        (Self { inner, stop }, guard)
    }
}

impl Progress for Cancellable {
    fn phase(&self, name: &'static str, total: Option<u64>) {
        self.inner.phase(name, total);
    }

    fn advance(&self, bytes: u64) {
        self.inner.advance(bytes);
    }

    fn cancelled(&self) -> bool {
        self.stop.is_cancelled() || self.inner.cancelled()
    }
}
