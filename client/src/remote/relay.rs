//! What a server says of its progress, told to a watcher here.

use crate::repository::Watcher;
use deltaic_format::wire::proto;
use std::time::Duration;
use tokio::time::Instant;

/// Phases that servers of today name.
const PHASES: [&str; 20] = [
    "applying",
    "checking",
    "checking contents",
    "checking edges",
    "checking objects",
    "committing",
    "comparing",
    "composing",
    "encoding",
    "hashing packs",
    "planning",
    "preparing",
    "proving",
    "reading",
    "receiving",
    "sending",
    "storing",
    "verifying",
    "waiting",
    "writing",
];

/// The phase of that name, or one that says as much as is known.
fn phase(name: &str) -> &'static str {
    let known = PHASES.into_iter().find(|&phase| phase == name);
    known.unwrap_or("working")
}

/// Turns counts since the beginning of a phase into steps.
pub(super) struct Relay {
    watcher: Watcher,
    phase: Option<&'static str>,
    done: u64,
}

impl Relay {
    pub(super) fn new(watcher: Watcher) -> Self {
        Self {
            watcher,
            phase: None,
            done: 0,
        }
    }

    pub(super) fn watcher(&self) -> &Watcher {
        &self.watcher
    }

    /// What the server says.
    pub(super) fn tell(&mut self, progress: &proto::Progress) {
        let name = phase(&progress.phase);
        if self.phase != Some(name) || progress.done < self.done {
            self.begin(name, progress.total);
        }
        self.advance(progress.done - self.done);
    }

    /// What happens here.
    pub(super) fn enter(&mut self, name: &'static str) {
        if self.phase != Some(name) {
            self.begin(name, None);
        }
    }

    pub(super) fn advance(&mut self, bytes: u64) {
        if bytes > 0 {
            self.watcher.advance(bytes);
            self.done = self.done.saturating_add(bytes);
        }
    }

    fn begin(&mut self, name: &'static str, total: Option<u64>) {
        self.watcher.phase(name, total);
        self.phase = Some(name);
        self.done = 0;
    }
}

/// When a server last got on: signs of life alone are not enough.
#[derive(Debug)]
pub(super) struct Headway {
    since: Instant,
    /// The phase that it is in, and how far.
    at: Option<(String, u64)>,
}

impl Headway {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            at: None,
        }
    }

    /// It got on.
    pub(super) fn made(&mut self) {
        self.since = Instant::now();
    }

    /// It says where it stands.
    pub(super) fn tell(&mut self, progress: &proto::Progress) {
        let is_same = (self.at.as_ref())
            .is_some_and(|(phase, done)| *phase == progress.phase && *done == progress.done);
        if !is_same {
            self.at = Some((progress.phase.clone(), progress.done));
            self.made();
        }
    }

    /// How long it has not got on.
    pub(super) fn still(&self) -> Duration {
        self.since.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltaic_format::progress::Progress;
    use std::sync::{Arc, Mutex};

    #[derive(Default)]
    struct Notes(Mutex<Vec<String>>);

    impl Progress for Notes {
        fn phase(&self, name: &'static str, total: Option<u64>) {
            let note = format!("{name} {total:?}");
            self.0.lock().expect("not poisoned").push(note);
        }

        fn advance(&self, bytes: u64) {
            self.0
                .lock()
                .expect("not poisoned")
                .push(format!("+{bytes}"));
        }
    }

    #[test]
    fn counts_become_steps() {
        let notes = Arc::new(Notes::default());
        let mut relay = Relay::new(notes.clone());
        let mut tell = |phase: &str, done, total| {
            let phase = phase.to_owned();
            relay.tell(&proto::Progress { phase, done, total });
        };
        tell("proving", 0, Some(10));
        tell("proving", 4, Some(10));
        tell("proving", 4, Some(10));
        tell("proving", 10, Some(10));
        tell("proving", 3, Some(10));
        tell("of next year", 5, None);
        tell("of no year", u64::MAX, None);
        relay.enter("sending");
        relay.enter("sending");
        relay.advance(7);
        let steps = format!("+{}", u64::MAX - 5);
        let expected = [
            "proving Some(10)",
            "+4",
            "+6",
            "proving Some(10)",
            "+3",
            "working None",
            "+5",
            &steps,
            "sending None",
            "+7",
        ];
        assert_eq!(*notes.0.lock().expect("not poisoned"), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_changes_is_headway() {
        let second = Duration::from_secs(1);
        let mut headway = Headway::new();
        let mut at = async |phase: &str, done| {
            tokio::time::advance(second).await;
            let phase = phase.to_owned();
            let total = None;
            headway.tell(&proto::Progress { phase, done, total });
            headway.still()
        };
        assert_eq!(at("proving", 0).await, Duration::ZERO);
        assert_eq!(at("proving", 0).await, second);
        assert_eq!(at("proving", 0).await, 2 * second);
        assert_eq!(at("proving", 1).await, Duration::ZERO);
        assert_eq!(at("storing", 1).await, Duration::ZERO);
        assert_eq!(at("storing", 1).await, second);
    }
}
