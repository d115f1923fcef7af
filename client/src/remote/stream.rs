//! Answers that go on where they were cut off: one loop for all of them.

use super::connection::{Connection, Incoming};
use super::connections::Connections;
use super::known::About;
use super::retry::Tries;
use super::status::{Failure, Fault};
use crate::error::Result;
use deltaic_format::ids::CommitId;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::time::Instant;

/// Reads one kind of answer, and knows where to go on.
pub(super) trait Reader: Send + 'static {
    type Message: Send + 'static;
    type Item: Send + 'static;

    /// Whether it never ends, and silence but for heartbeats is as it should be.
    const ENDLESS: bool = false;

    /// The version that is asked for, or after which.
    fn version(&self) -> CommitId;

    /// Ask for everything after what was taken.
    fn open(
        &mut self,
        connection: Arc<Connection>,
    ) -> BoxFuture<'static, Result<Incoming<Self::Message>, Failure>>;

    /// Take a message: what it brings goes to `items`.
    fn take(
        &mut self,
        message: Self::Message,
        items: &mut VecDeque<Self::Item>,
    ) -> Result<Next, Fault>;
}

/// Whether more must come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    More,
    Nothing,
}

/// An answer that is read, over as many connections as it takes.
pub(super) struct Resumed<R: Reader> {
    connections: Arc<Connections>,
    reader: R,
    tries: Tries,
    incoming: Option<Current<R::Message>>,
    items: VecDeque<R::Item>,
    /// Whether something came, so that what is asked for exists.
    came: bool,
    complete: bool,
}

/// The part of the answer that comes over one connection.
struct Current<M> {
    messages: Incoming<M>,
    opened: Instant,
    /// Whether any message came, and whether it got on.
    answered: bool,
    got_on: bool,
}

impl<R: Reader> Resumed<R> {
    /// Begin, so that what cannot be had is known at once.
    pub(super) async fn start(
        connections: Arc<Connections>,
        reader: R,
    ) -> Result<BoxStream<'static, Result<R::Item>>> {
        let mut this = Self {
            tries: connections.tries(),
            connections,
            reader,
            incoming: None,
            items: VecDeque::new(),
            came: false,
            complete: false,
        };
        while let Err(failure) = this.open().await {
            this.tries.after(failure).await?;
        }
        if R::ENDLESS {
            let schedule = this.connections.options().watch_schedule();
            this.tries = this.connections.tries_of(schedule);
        }
        let next = |mut this: Self| async move { Ok(this.next().await?.map(|item| (item, this))) };
        Ok(stream::try_unfold(this, next).boxed())
    }

    async fn open(&mut self) -> Result<(), Failure> {
        let connection = self.connections.get().await?;
        match self.reader.open(connection.clone()).await {
            Ok(incoming) => {
                self.incoming = Some(Current {
                    messages: incoming,
                    opened: Instant::now(),
                    answered: false,
                    got_on: false,
                });
                Ok(())
            }
            Err(failure) => Err(self.failed(&connection, failure, false)),
        }
    }

    /// Draw the consequences of a failure.
    fn failed(&self, connection: &Arc<Connection>, failure: Failure, got_on: bool) -> Failure {
        let version = self.reader.version();
        let about = match self.came {
            true => About::Rest,
            // Whoever watches has seen it.
            false if R::ENDLESS => About::Known(version),
            false => About::Version(version),
        };
        self.connections.note(connection, failure, (about, got_on))
    }

    async fn next(&mut self) -> Result<Option<R::Item>> {
        // Time that the taker of the items spends between them is not the server's.
        let mut began = Instant::now();
        loop {
            if let Some(item) = self.items.pop_front() {
                return Ok(Some(item));
            }
            if self.complete {
                if let Some(current) = self.incoming.take() {
                    current.messages.close().await;
                }
                return Ok(None);
            }
            if let Err(failure) = self.step(began).await {
                if R::ENDLESS {
                    tracing::debug!(error = %failure.error, "a watch was interrupted");
                }
                self.incoming = None;
                self.tries.after(failure).await?;
                // Another try has all the time that the first one had.
                began = Instant::now();
            }
        }
    }

    /// Take one message, on a new connection if need be.
    async fn step(&mut self, began: Instant) -> Result<(), Failure> {
        if self.incoming.is_none() {
            self.open().await?;
        }
        let Some(current) = &mut self.incoming else {
            return Ok(());
        };
        let incoming = &mut current.messages;
        let took = match incoming.next().await {
            Ok(Some(message)) => {
                (self.reader.take(message, &mut self.items)).map_err(|fault| incoming.fault(fault))
            }
            Ok(None) => Err(incoming.cut()),
            Err(failure) => Err(failure),
        };
        let options = self.connections.options();
        let failure = match took {
            Ok(next) => {
                if !std::mem::replace(&mut current.answered, true) {
                    self.connections.know(self.reader.version());
                }
                self.complete = next == Next::Nothing;
                let held = R::ENDLESS && current.opened.elapsed() > options.watch_longest_pause;
                if held || !self.items.is_empty() {
                    self.came |= !self.items.is_empty();
                    current.got_on = true;
                    self.tries.progress();
                    return Ok(());
                }
                if R::ENDLESS || self.complete || began.elapsed() <= options.progress_timeout {
                    return Ok(());
                }
                Failure::stalled(incoming.connection().endpoint(), options.progress_timeout)
            }
            Err(failure) => failure,
        };
        let (connection, got_on) = (incoming.connection().clone(), current.got_on);
        Err(self.failed(&connection, failure, got_on))
    }
}
