//! The connections of a [`Remote`](super::Remote): a few, to the server that works, made when they are needed.

use super::connection::Connection;
use super::endpoints::{Address, Place, Rotation, Servers};
use super::known::{About, Known};
use super::line::Dial;
use super::options::RemoteOptions;
use super::retry::{LONGEST_AFTER, Repeat, Schedule, Tries};
use super::status::{Failure, Kind};
use crate::error::{ClientError, Result};
use deltaic_format::ids::CommitId;
use deltaic_format::refusal::Refusal;
use futures::future::BoxFuture;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

pub(super) struct Connections {
    options: RemoteOptions,
    addresses: Vec<Address>,
    servers: Arc<Servers>,
    known: Known,
    dial: Arc<dyn Dial>,
    rotation: Mutex<Rotation>,
    slots: Vec<Slot>,
    turn: AtomicUsize,
}

/// What a slot can offer.
enum Offer {
    /// A connection to the right server that nothing uses.
    Idle(Arc<Connection>),
    /// Room for one, in place of one to another server perhaps.
    Room,
    /// A connection that is used, or being made.
    Busy,
}

/// Room for one connection.
#[derive(Default)]
struct Slot {
    open: tokio::sync::Mutex<Option<Arc<Connection>>>,
    /// When it could not be filled the last time, and why: the answer to all who waited for that.
    failed: Mutex<Option<(Instant, Unable)>>,
}

impl Slot {
    /// What there is for a call to that server.
    fn offer(&self, place: Place) -> Offer {
        // Locked, it is being filled.
        let Ok(open) = self.open.try_lock() else {
            return Offer::Busy;
        };
        match open.as_ref().filter(|open| open.serves(place)) {
            // Every call and every answer on it has a reference of its own.
            Some(connection) if Arc::strong_count(connection) == 1 => {
                Offer::Idle(connection.clone())
            }
            Some(_) => Offer::Busy,
            None => Offer::Room,
        }
    }
}

/// Why no server could be connected to.
#[derive(Clone)]
struct Unable {
    cause: Cause,
    kind: Kind,
}

#[derive(Clone)]
enum Cause {
    Refused(Refusal),
    Unreachable { endpoint: String, what: String },
    Protocol { endpoint: String, what: String },
}

impl From<Unable> for Failure {
    fn from(unable: Unable) -> Self {
        let error = match unable.cause {
            Cause::Refused(refusal) => refusal.into(),
            Cause::Unreachable { endpoint, what } => ClientError::Unreachable { endpoint, what },
            Cause::Protocol { endpoint, what } => ClientError::Protocol { endpoint, what },
        };
        Self {
            error,
            kind: unable.kind,
        }
    }
}

impl From<Failure> for Unable {
    fn from(Failure { error, kind }: Failure) -> Self {
        let (cause, kind) = match error {
            ClientError::Refused(refusal) => (Cause::Refused(refusal), kind),
            ClientError::Unreachable { endpoint, what } => {
                (Cause::Unreachable { endpoint, what }, Kind::Unsent)
            }
            ClientError::Protocol { endpoint, what } => (Cause::Protocol { endpoint, what }, kind),
            ClientError::Stalled { endpoint, after } => {
                let what = format!("it has sent nothing for {} s", after.as_secs_f64());
                (Cause::Unreachable { endpoint, what }, Kind::Unsent)
            }
            other => {
                let (endpoint, what) = (String::new(), other.to_string());
                (Cause::Unreachable { endpoint, what }, kind)
            }
        };
        Self { cause, kind }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is done under these locks that could leave half a change behind.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connections {
    pub(super) fn new(options: RemoteOptions, dial: Arc<dyn Dial>) -> Result<Self> {
        let addresses = options.endpoints.iter().map(|text| Address::parse(text));
        let addresses = addresses.collect::<Result<Vec<_>>>()?;
        if addresses.is_empty() {
            return Err(ClientError::Invalid {
                what: "no endpoint is given".to_owned(),
            });
        }
        let mut slots = Vec::new();
        slots.resize_with(options.connections.max(1), Slot::default);
        Ok(Self {
            rotation: Mutex::new(Rotation::new(addresses.len())),
            servers: Arc::new(Servers::new(&addresses)),
            known: Known::default(),
            addresses,
            dial,
            slots,
            turn: AtomicUsize::new(0),
            options,
        })
    }

    pub(super) fn options(&self) -> &RemoteOptions {
        &self.options
    }

    /// Whether there is more than one server.
    pub(super) fn several(&self) -> bool {
        self.addresses.len() > 1
    }

    pub(super) fn tries(&self) -> Tries {
        self.tries_of(self.options.schedule())
    }

    pub(super) fn tries_of(&self, schedule: Schedule) -> Tries {
        Tries::new(schedule, self.servers.clone())
    }

    /// Note that a server has a version.
    pub(super) fn know(&self, id: CommitId) {
        self.known.add(id);
    }

    /// The server that is asked now.
    fn current(&self) -> Place {
        lock(&self.rotation).first(Instant::now())
    }

    /// A connection to the server that works: one that nothing uses, a new one if there is room, else one that is used.
    pub(super) async fn get(&self) -> Result<Arc<Connection>, Failure> {
        let (mut room, place) = (None, self.current());
        for slot in &self.slots {
            match slot.offer(place) {
                Offer::Idle(connection) => return Ok(connection),
                Offer::Room => room = room.or(Some(slot)),
                Offer::Busy => {}
            }
        }
        let slot = room.unwrap_or_else(|| {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            &self.slots[turn % self.slots.len()]
        });
        let asked = Instant::now();
        let mut open = slot.open.lock().await;
        // Which one it is may have changed meanwhile.
        let place = self.current();
        if let Some(connection) = open.as_ref().filter(|open| open.serves(place)) {
            return Ok(connection.clone());
        }
        *open = None;
        let failed = lock(&slot.failed).clone();
        if let Some((_, unable)) = failed.filter(|(when, _)| *when > asked) {
            return Err(unable.into());
        }
        match self.connect().await {
            Ok(connection) => Ok(open.insert(Arc::new(connection)).clone()),
            Err(failure) => {
                let unable = Unable::from(failure);
                *lock(&slot.failed) = Some((Instant::now(), unable.clone()));
                Err(unable.into())
            }
        }
    }

    /// Connect to the first server that can be.
    async fn connect(&self) -> Result<Connection, Failure> {
        let order = lock(&self.rotation).order(Instant::now());
        let mut failures = Vec::new();
        for server in order {
            let address = &self.addresses[server];
            let place = lock(&self.rotation).place(server);
            match Connection::open(&*self.dial, (place, address), &self.options).await {
                Ok(connection) => {
                    if lock(&self.rotation).worked(server) {
                        tracing::info!(endpoint = &*address.text, "going on with another server");
                    }
                    return Ok(connection);
                }
                Err(failure) => {
                    let (endpoint, error) = (&*address.text, &failure.error);
                    tracing::debug!(endpoint, %error, "cannot connect");
                    lock(&self.rotation).failed(server, Instant::now());
                    failures.push(failure);
                }
            }
        }
        Err(all_failed(&self.addresses, failures))
    }

    /// Draw the consequences of the failure of a call for its server and the connections to that: whether it is left, for others
    /// if there are any. A call that had `got_on` stays with its server where only the line broke.
    pub(super) fn note(
        &self,
        connection: &Arc<Connection>,
        mut failure: Failure,
        (about, got_on): (About, bool),
    ) -> Failure {
        let server = connection.server();
        if self.several() {
            self.known.judge(server, &mut failure, about);
        }
        let now = Instant::now();
        match &mut failure.kind {
            Kind::Final => {}
            Kind::Busy { after } => {
                if self.several() && !matches!(about, About::Upload(_)) {
                    let mut rotation = lock(&self.rotation);
                    rotation.passed_over(server, now, (*after).min(LONGEST_AFTER));
                    if rotation.has_another(server, now) {
                        *after = Duration::ZERO;
                    }
                }
            }
            Kind::Unsent => connection.retire(),
            Kind::Lost | Kind::Damaged if got_on => connection.retire(),
            Kind::Lost | Kind::Damaged | Kind::Stalled | Kind::Leaving | Kind::Lagging { .. } => {
                lock(&self.rotation).left(server, now)
            }
        }
        self.hang_up();
        failure
    }

    /// Let go of the connections that no new call may use.
    fn hang_up(&self) {
        let place = |server| lock(&self.rotation).place(server);
        for slot in &self.slots {
            // A slot that is locked is being filled, or looked at by a call that will let go of it.
            if let Ok(mut open) = slot.open.try_lock() {
                open.take_if(|open| !open.serves(place(open.server())));
            }
        }
    }

    /// Make a call, as often as it takes.
    pub(super) async fn call<'a, T>(
        &self,
        (repeat, about): (Repeat, About),
        call: impl Fn(Arc<Connection>) -> BoxFuture<'a, Result<T, Failure>>,
    ) -> Result<T> {
        let mut tries = self.tries();
        loop {
            let failure = match self.get().await {
                Err(failure) => failure,
                Ok(connection) => match call(connection.clone()).await {
                    Ok(answer) => return Ok(answer),
                    Err(failure) => self.note(&connection, failure, (about, false)),
                },
            };
            tries.after(repeat.judge(failure)).await?;
        }
    }
}

/// What the failures of all servers amount to.
fn all_failed(addresses: &[Address], mut failures: Vec<Failure>) -> Failure {
    // A server that says no for good does not keep others from working again.
    let last = failures
        .iter()
        .rposition(|failure| failure.kind != Kind::Final);
    let index = last.unwrap_or(failures.len().saturating_sub(1));
    let mut failure = failures.swap_remove(index);
    if let ClientError::Unreachable { endpoint, what } = &mut failure.error {
        let all: Vec<&str> = addresses.iter().map(|address| &*address.text).collect();
        if all.len() > 1 {
            *what = format!("{endpoint}: {what}");
        }
        *endpoint = all.join(", ");
    }
    failure
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoints = &self.options.endpoints;
        f.debug_struct("Connections")
            .field("endpoints", endpoints)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_servers_are_named_with_the_last_cause() {
        let addresses = ["http://a", "http://b"].map(|text| Address::parse(text).expect("valid"));
        let incompatible = || Failure::refused(Refusal::Incompatible { what: "old".into() });
        let down = || Failure::unsent("http://b", "refused");
        let failure = all_failed(&addresses, vec![down(), incompatible()]);
        assert_eq!(failure.kind, Kind::Unsent);
        assert_eq!(
            failure.error.to_string(),
            "http://a, http://b cannot be reached: http://b: refused"
        );
        let failure = all_failed(&addresses, vec![incompatible(), incompatible()]);
        assert_eq!(failure.kind, Kind::Final);
        assert_eq!(failure.error.to_string(), "old");
    }
}
