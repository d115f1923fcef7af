//! Which of several servers is asked: the last one that worked, and those that failed just now last.

use crate::error::{ClientError, Result};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tonic::transport::Uri;

/// How long a server that failed is asked only after all others.
const REST: Duration = Duration::from_secs(5);

/// Shortest time between two warnings of what is tried again.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(30);

/// A server's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    /// As it is shown, `http://HOST:PORT`.
    pub(super) text: Arc<str>,
    pub(super) uri: Uri,
}

impl Address {
    /// Read an address.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let invalid = |why: &str| ClientError::Invalid {
            what: format!("endpoint {text:?}: {why}"),
        };
        let text = text.trim();
        let text_without_slash = text.strip_suffix('/').unwrap_or(text);
        let uri: Uri = (text_without_slash.parse())
            .map_err(|_| invalid("it is not of the form http://HOST:PORT"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(invalid("this build has no TLS, only http works")),
            _ => return Err(invalid("it does not begin with http://")),
        }
        if uri.host().is_none_or(str::is_empty) {
            return Err(invalid("it names no host"));
        }
        if (uri.authority()).is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(invalid("it names a user"));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(invalid("a path follows the host and port"));
        }
        Ok(Self {
            text: text_without_slash.into(),
            uri,
        })
    }
}

/// All servers by name, as every call that is tried again needs to know them.
#[derive(Debug)]
pub(super) struct Servers {
    names: Vec<Arc<str>>,
    /// When someone was last warned that something is tried again.
    warned: Mutex<Option<Instant>>,
}

impl Servers {
    pub(super) fn new(addresses: &[Address]) -> Self {
        Self {
            names: addresses
                .iter()
                .map(|address| address.text.clone())
                .collect(),
            warned: Mutex::default(),
        }
    }

    pub(super) fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Whether it is time for a warning; if so, it is taken to be given. A line that breaks all the time is worth few.
    pub(super) fn may_warn(&self) -> bool {
        let now = Instant::now();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let quiet = warned.is_none_or(|when| now - when >= BETWEEN_WARNINGS);
        if quiet {
            *warned = Some(now);
        }
        quiet
    }
}

/// A server as long as its connections are good for new calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Its place among all servers.
    pub(super) server: usize,
    /// How often its connections were given up.
    age: u64,
}

/// In which order servers are tried.
#[derive(Debug)]
pub(super) struct Rotation {
    /// Until when each one rests, if it does.
    rests: Vec<Option<Instant>>,
    /// How often the connections to each one were given up.
    ages: Vec<u64>,
    /// The last one that worked.
    current: usize,
}

impl Rotation {
    pub(super) fn new(servers: usize) -> Self {
        Self {
            rests: vec![None; servers],
            ages: vec![0; servers],
            current: 0,
        }
    }

    /// All of them, those that rest last, the one that has rested longest before others.
    pub(super) fn order(&self, now: Instant) -> Vec<usize> {
        let servers = self.rests.len();
        let mut order: Vec<usize> = (0..servers)
            .map(|step| (self.current + step) % servers)
            .collect();
        order.sort_by_key(|&server| self.rests[server].filter(|&until| until > now));
        order
    }

    /// The first of those.
    pub(super) fn first(&self, now: Instant) -> Place {
        let first = self.order(now).first().copied();
        self.place(first.unwrap_or(self.current))
    }

    pub(super) fn place(&self, server: usize) -> Place {
        let age = self.ages[server];
        Place { server, age }
    }

    /// It failed at what it was asked, or has no room and says for how long: another one comes first from now on, also when it
    /// has rested.
    pub(super) fn passed_over(&mut self, server: usize, now: Instant, rest: Duration) {
        self.rests[server] = Some(now + rest.max(REST));
        if self.current == server {
            self.current = self.first(now).server;
        }
    }

    /// The same where what is wrong with one line to it is most likely wrong with all.
    pub(super) fn left(&mut self, server: usize, now: Instant) {
        self.passed_over(server, now, REST);
        self.ages[server] += 1;
    }

    /// Whether there is another one than `server` that did not fail just now.
    pub(super) fn has_another(&self, server: usize, now: Instant) -> bool {
        let rests = |other: usize| self.rests[other].is_some_and(|until| until > now);
        (0..self.rests.len()).any(|other| other != server && !rests(other))
    }

    /// It could be connected to; whether it was another one before.
    pub(super) fn worked(&mut self, server: usize) -> bool {
        self.rests[server] = None;
        std::mem::replace(&mut self.current, server) != server
    }

    /// It could not be connected to.
    pub(super) fn failed(&mut self, server: usize, now: Instant) {
        self.rests[server] = Some(now + REST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_or_refused() {
        for good in [
            "http://127.0.0.1:7421",
            "http://[::1]:7421/",
            "http://example.org",
        ] {
            let address = Address::parse(good).expect(good);
            assert_eq!(&*address.text, good.trim_end_matches('/'));
        }
        for (bad, why) in [
            ("https://example.org", "TLS"),
            ("ftp://example.org", "http://"),
            ("127.0.0.1:7421", "http://"),
            ("example.org", "http://"),
            ("http://a@example.org", "user"),
            ("http://example.org/acme/policy", "path"),
            ("http://example.org/?x", "path"),
            ("", "form"),
        ] {
            let error = Address::parse(bad).expect_err(bad).to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_failed_comes_last_for_a_while() {
        let mut rotation = Rotation::new(3);
        let order = |rotation: &Rotation| rotation.order(Instant::now());
        assert_eq!(order(&rotation), [0, 1, 2]);
        rotation.failed(0, Instant::now());
        assert_eq!(order(&rotation), [1, 2, 0]);
        assert!(rotation.worked(2) && !rotation.worked(2));
        assert_eq!(order(&rotation), [2, 1, 0]);
        assert!(rotation.has_another(1, Instant::now()));
        let place = rotation.first(Instant::now());
        rotation.left(2, Instant::now());
        assert_eq!(rotation.current, 1, "the one that did not fail");
        rotation.worked(2);
        assert!(place.server == 2 && place != rotation.first(Instant::now()));
        tokio::time::advance(Duration::from_secs(1)).await;
        rotation.failed(1, Instant::now());
        rotation.failed(2, Instant::now());
        assert_eq!(order(&rotation), [0, 2, 1]);
        let first = rotation.first(Instant::now());
        assert_eq!((first.server, first), (0, rotation.place(0)));
        assert!(!rotation.has_another(0, Instant::now()));
        tokio::time::advance(REST).await;
        assert_eq!(order(&rotation), [2, 0, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_without_room_rests_as_long_as_it_says() {
        let mut rotation = Rotation::new(2);
        rotation.passed_over(0, Instant::now(), 3 * REST);
        assert_eq!(rotation.order(Instant::now()), [1, 0]);
        tokio::time::advance(2 * REST).await;
        assert!(!rotation.has_another(1, Instant::now()));
        tokio::time::advance(REST).await;
        assert!(rotation.has_another(1, Instant::now()));
        // The other one goes on being asked.
        assert_eq!(rotation.order(Instant::now()), [1, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn warnings_do_not_come_one_after_the_other() {
        let servers = Servers::new(&[Address::parse("http://a").expect("valid")]);
        assert!(servers.may_warn());
        tokio::time::advance(BETWEEN_WARNINGS / 2).await;
        assert!(!servers.may_warn());
        tokio::time::advance(BETWEEN_WARNINGS / 2).await;
        assert!(servers.may_warn() && !servers.may_warn());
    }
}
