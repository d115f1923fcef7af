//! When a server that sends no message is given up: silence, as against a long message on a slow line.

use super::connection::Connection;
use super::status::Failure;
use deltaic_format::wire;
use std::time::Duration;
use tokio::time::Instant;

/// So many bytes are a part of an answer. Fewer may be no more than answers to pings, of 17 bytes each, and heartbeats on other
/// streams, which a process still sends whose own answer hangs.
const LIFE: u64 = 1024;

/// If so many bytes came and no message was whole, they belong to other streams: the longest message, and fifteen times as much
/// for those that share the line.
const OTHERS: u64 = 16 * wire::MAX_MESSAGE_BYTES as u64;

/// Looks at a line within the time that it may be silent.
const LOOKS: u32 = 8;

/// Time without a message while one is waited for.
///
/// It is a stall if less than a kilobyte has come over the connection for the connection's `stall`. While more comes, a
/// message is on its way, which may take longer, but not for ever: a server that does not get a message through within the
/// connection's `patience` is given up too, and one whose line brings other streams a lot meanwhile.
#[derive(Debug)]
pub(super) struct Silence {
    /// When it began, and what had come over the connection by then.
    began: (Instant, u64),
    /// The same for the last time that enough had come to be a part of an answer.
    heard: (Instant, u64),
    between_looks: Duration,
}

impl Silence {
    pub(super) fn new(connection: &Connection) -> Self {
        let now = (Instant::now(), connection.came());
        Self {
            began: now,
            heard: now,
            between_looks: connection.stall() / LOOKS,
        }
    }

    /// How long to wait until it is checked again.
    pub(super) fn pause(&self) -> Duration {
        self.between_looks
    }

    /// Fail if it has lasted too long.
    pub(super) fn check(&mut self, connection: &Connection) -> Result<(), Failure> {
        let (came, stall) = (connection.came(), connection.stall());
        let patience = connection.patience().max(stall);
        let stalled = |after| Err(Failure::stalled(connection.endpoint(), after));
        let (lasts, others) = (self.began.0.elapsed(), came - self.began.1 > OTHERS);
        if came - self.heard.1 >= LIFE {
            self.heard = (Instant::now(), came);
        }
        match self.heard.0.elapsed() >= stall || (lasts >= stall && others) {
            true => stalled(stall),
            false if lasts >= patience => stalled(patience),
            false => Ok(()),
        }
    }
}
