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

/// Looks at a line within the time that it may be silent. It is so many in a row that find nothing which count, not the time:
/// a process that was stopped for a while looks once.
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
    /// What had come the last time that it was enough to be a part of an answer, and how many looks ago that was.
    heard: (u64, u32),
    between_looks: Duration,
    next_look: Instant,
}

impl Silence {
    pub(super) fn new(connection: &Connection) -> Self {
        let (now, came) = (Instant::now(), connection.came());
        let between_looks = connection.stall() / LOOKS;
        Self {
            began: (now, came),
            heard: (came, 0),
            between_looks,
            next_look: now + between_looks,
        }
    }

    /// When to look at it next.
    pub(super) fn next_look(&self) -> Instant {
        self.next_look
    }

    /// Look at it, and fail if it has lasted too long.
    pub(super) fn look(&mut self, connection: &Connection) -> Result<(), Failure> {
        let (came, stall) = (connection.came(), connection.stall());
        let patience = connection.patience().max(stall);
        let stalled = |after| Err(Failure::stalled(connection.endpoint(), after));
        let (lasts, others) = (self.began.0.elapsed(), came - self.began.1 > OTHERS);
        self.next_look = Instant::now() + self.between_looks;
        self.heard = match came - self.heard.0 >= LIFE {
            true => (came, 0),
            false => (self.heard.0, self.heard.1 + 1),
        };
        match self.heard.1 >= LOOKS || (lasts >= stall && others) {
            true => stalled(stall),
            false if lasts >= patience => stalled(patience),
            false => Ok(()),
        }
    }
}
