//! Which of several servers is asked: the last one that worked, and those that failed just now last.

use crate::error::{ClientError, Result};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tonic::transport::Uri;

/// How long a server that failed is asked only after all others.
const REST: Duration = Duration::from_secs(5);

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

/// In which order servers are tried.
#[derive(Debug)]
pub(super) struct Rotation {
    /// Until when each one rests, if it does.
    rests: Vec<Option<Instant>>,
    /// The last one that worked.
    current: usize,
}

impl Rotation {
    pub(super) fn new(servers: usize) -> Self {
        Self {
            rests: vec![None; servers],
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

    pub(super) fn worked(&mut self, server: usize) {
        self.current = server;
        self.rests[server] = None;
    }

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
        rotation.worked(2);
        assert_eq!(order(&rotation), [2, 1, 0]);
        tokio::time::advance(Duration::from_secs(1)).await;
        rotation.failed(1, Instant::now());
        rotation.failed(2, Instant::now());
        assert_eq!(order(&rotation), [0, 2, 1]);
        tokio::time::advance(REST).await;
        assert_eq!(order(&rotation), [2, 0, 1]);
    }
}
