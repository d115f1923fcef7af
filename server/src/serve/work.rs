//! Calls of the store, which block, on threads of their own: so many of a kind at a time, the others wait in line.

use deltaic_format::refusal::Refusal;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

/// Calls that wait in one line at most.
const MAX_WAITING: usize = 4096;

/// How long a call takes, and what of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Reads a few rows, or appends to a file.
    Short,
    /// Computes for up to a second or so.
    Compute,
    /// Goes through much of the store, or of what was uploaded.
    Long,
    /// Writes a commit: one at a time, as the store has it, so that those who wait need no thread for it.
    Write,
    /// Changes refs, which takes no time: likewise, beside a commit.
    Refs,
}

/// Threads for each kind of work.
#[derive(Debug, Clone)]
pub(crate) struct Workers {
    lines: Arc<[Line; 5]>,
    running: TaskTracker,
}

#[derive(Debug)]
struct Line {
    threads: Arc<Semaphore>,
    waiting: AtomicUsize,
}

impl Workers {
    /// As many as this machine keeps busy.
    pub(crate) fn new() -> Self {
        let cores = available_parallelism().map_or(2, usize::from);
        let line = |threads| Line {
            threads: Arc::new(Semaphore::new(threads)),
            waiting: AtomicUsize::new(0),
        };
        Self {
            lines: Arc::new([
                line(32),
                line(cores.max(2)),
                line(cores.max(2)),
                line(1),
                line(1),
            ]),
            running: TaskTracker::new(),
        }
    }

    /// Do `work` on a thread when it is its turn. It is done to its end, also if the caller goes away once it has begun.
    ///
    /// # Errors
    ///
    /// Whatever `work` fails with; [`Refusal::Exhausted`] if too many wait already.
    pub(crate) async fn run<T, E>(
        &self,
        kind: Work,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, Refusal>
    where
        T: Send + 'static,
        E: Into<Refusal>,
    {
        let line = &self.lines[kind as usize];
        let waits = Waits::begin(&line.waiting)?;
        let permit = (Arc::clone(&line.threads).acquire_owned().await)
            .map_err(|_| failed("the server has ended"))?;
        drop(waits);
        let span = tracing::Span::current();
        let done = self.running.spawn_blocking(move || {
            let _permit = permit;
            span.in_scope(|| work().map_err(Into::into))
        });
        done.await
            .unwrap_or_else(|_| Err(failed("it stopped unexpectedly; the server's log says why")))
    }

    /// Do something that waits for work now and then, on its own.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.running.spawn(task);
    }

    /// Wait for all that has begun, up to `most`. Says whether it has ended.
    pub(crate) async fn rest(&self, most: Duration) -> bool {
        self.running.close();
        tokio::time::timeout(most, self.running.wait())
            .await
            .is_ok()
    }
}

fn failed(what: &str) -> Refusal {
    Refusal::Failed {
        what: what.to_owned(),
    }
}

/// One call's place in a line.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn begin(count: &'a AtomicUsize) -> Result<Self, Refusal> {
        let waits = Self(count);
        if count.fetch_add(1, Ordering::Relaxed) < MAX_WAITING {
            return Ok(waits);
        }
        Err(Refusal::Exhausted {
            what: format!("more than {MAX_WAITING} calls are waiting"),
            retry_after: Some(Duration::from_secs(1)),
        })
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
