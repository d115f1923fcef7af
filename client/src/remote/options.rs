//! How a server is reached, and how patiently.

use super::retry::Schedule;
use std::time::Duration;

/// How to reach servers that serve the same repositories, and how patient to be with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteOptions {
    /// Where they are, `http://HOST:PORT`: the first one is used while it works, then the next.
    pub endpoints: Vec<String>,
    /// How many connections are made at most: another one when all that there are have something to do.
    pub connections: usize,
    /// Fetches are split for those connections into parts of at least so many bytes of weights, as they are and not as they
    /// travel.
    pub part_bytes: u64,
    /// Longest time until a connection is made and both ends agree on a protocol.
    pub connect_timeout: Duration,
    /// Longest time in which next to nothing comes while a message is waited for: less than a kilobyte over the connection, as
    /// answers to pings are. A message that comes slowly is no stall; a server that is busy sends heartbeats.
    pub stall_timeout: Duration,
    /// Longest time with heartbeats alone while weights, files or history are waited for, and for one message to come.
    pub progress_timeout: Duration,
    /// How often a call is tried in all while it makes no progress; `None`: as often as `retry_for` leaves time for. However
    /// few tries there are and however little time there is, every server is asked once, and an answer or upload that got on
    /// and was cut off is taken up again once.
    pub attempts: Option<u32>,
    /// How long after its first failure a call that makes no progress is tried again. A server that says when to come back is
    /// not waited for if that is later.
    pub retry_for: Duration,
    /// The pause before a call is tried a second time; it doubles from then on, with jitter.
    pub first_pause: Duration,
    /// Where those pauses stop growing.
    pub longest_pause: Duration,
    /// How often in a row a watch is tried while nothing comes; `None`: for ever.
    pub watch_attempts: Option<u32>,
    /// Where the pauses of a watch stop growing.
    pub watch_longest_pause: Duration,
    /// Name and version of the software, for the server's logs.
    pub software: String,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            connections: 4,
            part_bytes: 1 << 30,
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            progress_timeout: Duration::from_secs(15 * 60),
            attempts: None,
            retry_for: Duration::from_secs(180),
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(5),
            watch_attempts: None,
            watch_longest_pause: Duration::from_secs(30),
            software: concat!("deltaic-client ", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }
}

impl RemoteOptions {
    /// The default ones, for these endpoints.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }

    /// When calls are tried again.
    pub(super) fn schedule(&self) -> Schedule {
        Schedule {
            attempts: self.attempts,
            within: Some(self.retry_for),
            first_pause: self.first_pause,
            longest_pause: self.longest_pause,
        }
    }

    /// When watches are.
    pub(super) fn watch_schedule(&self) -> Schedule {
        Schedule {
            attempts: self.watch_attempts,
            within: None,
            first_pause: self.first_pause,
            longest_pause: self.watch_longest_pause,
        }
    }
}
