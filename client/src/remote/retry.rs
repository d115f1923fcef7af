//! When a call that failed is tried again, and when it is given up.

use super::endpoints::Servers;
use super::status::{Failure, Kind};
use crate::error::{ClientError, Result};
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use deltaic_format::refusal::Refusal;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How often damaged answers to the same question are put down to the way that they took.
const DAMAGED: u32 = 2;

/// How often every server says that it lacks what one of them had, until that is believed.
const LAGGING: u32 = 2;

/// Longest time that a server can ask to be left alone for.
pub(super) const LONGEST_AFTER: Duration = Duration::from_secs(60);

/// When to try again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule {
    /// Tries in all without progress; `None`: any number.
    pub(super) attempts: Option<u32>,
    /// Time since the first failure without progress; `None`: for ever.
    pub(super) within: Option<Duration>,
    pub(super) first_pause: Duration,
    pub(super) longest_pause: Duration,
}

impl Schedule {
    fn pauses(&self) -> ExponentialBackoff {
        let builder = ExponentialBuilder::new()
            .with_min_delay(self.first_pause)
            .with_max_delay(self.longest_pause)
            .with_jitter();
        builder.without_max_times().build()
    }
}

/// The tries of one call, whose budget fills up again whenever it gets on.
///
/// However small that is, every server is asked once, and what got on is taken up again once.
#[derive(Debug)]
pub(super) struct Tries {
    schedule: Schedule,
    servers: Arc<Servers>,
    pauses: ExponentialBackoff,
    /// When the first failure since the last progress was.
    since: Option<Instant>,
    /// Failures since then.
    failures: usize,
    got_on: bool,
    damaged: u32,
    /// How often each server said that it lacks what is asked for.
    lacking: Vec<u32>,
}

impl Tries {
    pub(super) fn new(schedule: Schedule, servers: Arc<Servers>) -> Self {
        Self {
            schedule,
            pauses: schedule.pauses(),
            since: None,
            failures: 0,
            got_on: false,
            damaged: 0,
            lacking: vec![0; servers.names().len()],
            servers,
        }
    }

    /// The call has got on.
    pub(super) fn progress(&mut self) {
        if self.since.is_some() {
            *self = Self::new(self.schedule, self.servers.clone());
        }
        self.got_on = true;
    }

    /// Wait until it is time to try again after a failure.
    ///
    /// # Errors
    ///
    /// The failure's, if it is not worth it or was tried often enough.
    pub(super) async fn after(&mut self, failure: Failure) -> Result<()> {
        let first = self.since.is_none();
        match self.pause(&failure) {
            None => Err(self.last_word(failure)),
            Some(pause) => {
                let (error, wait) = (&failure.error, pause.as_millis());
                match first && self.servers.may_warn() {
                    true => tracing::warn!(%error, "trying again"),
                    false => tracing::debug!(%error, wait, "trying again"),
                }
                tokio::time::sleep(pause).await;
                Ok(())
            }
        }
    }

    /// How long to wait after a failure; `None`: give up.
    pub(super) fn pause(&mut self, failure: &Failure) -> Option<Duration> {
        if self.is_hopeless(failure.kind) {
            return None;
        }
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        self.failures += 1;
        let others_asked = self.failures >= self.servers.names().len();
        let owed = !others_asked || (self.got_on && self.failures == 1);
        let most = self.schedule.attempts;
        if !owed && most.is_some_and(|most| self.failures >= most as usize) {
            return None;
        }
        let after = match failure.kind {
            Kind::Busy { after } => after,
            _ => Duration::ZERO,
        };
        // The jitter of the pause stays, so that those who were sent away do not all come back at once.
        let pause = (self.pauses.next()?).saturating_add(after.min(LONGEST_AFTER));
        match self.schedule.within {
            None => Some(pause),
            Some(within) => {
                let left = within.saturating_sub(now - since);
                match after > left || left.is_zero() {
                    true => (owed && after.is_zero()).then_some(pause),
                    // The last try is when the time is over, and not before.
                    false => Some(pause.min(left)),
                }
            }
        }
    }

    /// Whether another try would end alike.
    fn is_hopeless(&mut self, kind: Kind) -> bool {
        match kind {
            Kind::Final => true,
            Kind::Damaged => {
                self.damaged += 1;
                self.damaged > DAMAGED
            }
            Kind::Lagging { server, known } => {
                self.lacking[server] += 1;
                let all_said = |times| self.lacking.iter().all(|&said| said >= times);
                match known {
                    true => all_said(LAGGING),
                    // Those that do not answer are not waited for.
                    false => all_said(1) || self.lacking[server] > 1,
                }
            }
            _ => false,
        }
    }

    /// What the caller is told at the end. That a server lacks something says little while another one, which may have it, does
    /// not answer.
    fn last_word(&self, failure: Failure) -> ClientError {
        let lacks = matches!(
            (&failure.error, failure.kind),
            (
                ClientError::Refused(Refusal::NotFound { .. }),
                Kind::Lagging { known: true, .. }
            )
        );
        let servers = self.servers.names().iter().zip(&self.lacking);
        let silent: Vec<&str> = (servers.filter(|&(_, &said)| said == 0))
            .map(|(name, _)| &**name)
            .collect();
        match lacks && !silent.is_empty() {
            true => ClientError::Unreachable {
                endpoint: silent.join(", "),
                what: format!("another server lags behind: {}", failure.error),
            },
            false => failure.error,
        }
    }
}

/// Whether a call may be made again after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Making it twice is the same as making it once.
    Always,
    /// Only while the server cannot have done it yet.
    Undone,
}

impl Repeat {
    /// The failure, as one that is not tried again where it may have been done.
    pub(super) fn judge(self, mut failure: Failure) -> Failure {
        let is_corrupt = matches!(failure.error, ClientError::Refused(Refusal::Corrupt { .. }));
        // A server that goes away may still end what it was doing.
        let unknown = matches!(
            failure.kind,
            Kind::Lost | Kind::Stalled | Kind::Damaged | Kind::Leaving
        ) || is_corrupt;
        if self == Self::Undone && unknown {
            failure.kind = Kind::Final;
            if let ClientError::Unreachable { what, .. } = &mut failure.error {
                what.push_str("; whether it was done is not known");
            }
        }
        failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::endpoints::Address;

    const SCHEDULE: Schedule = Schedule {
        attempts: Some(8),
        within: Some(Duration::from_secs(120)),
        first_pause: Duration::from_millis(100),
        longest_pause: Duration::from_secs(5),
    };

    const ENDLESS: Schedule = Schedule {
        attempts: None,
        within: None,
        ..SCHEDULE
    };

    fn tries_at(schedule: Schedule, endpoints: &[&str]) -> Tries {
        let addresses: Vec<_> = (endpoints.iter())
            .map(|text| Address::parse(text).expect("valid"))
            .collect();
        Tries::new(schedule, Arc::new(Servers::new(&addresses)))
    }

    fn tries(schedule: Schedule) -> Tries {
        tries_at(schedule, &["http://e"])
    }

    fn failure(kind: Kind) -> Failure {
        let error = ClientError::Unreachable {
            endpoint: "http://e".into(),
            what: "the connection was lost".into(),
        };
        Failure { error, kind }
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_with_jitter_and_end() {
        let mut tries = tries(SCHEDULE);
        let mut expected = 100.0;
        for _ in 0..7 {
            let pause = tries
                .pause(&failure(Kind::Lost))
                .expect("tried again")
                .as_secs_f64()
                * 1e3;
            assert!((expected..=expected * 2.0).contains(&pause), "{pause}");
            expected = (expected * 2.0).min(5000.0);
        }
        assert_eq!(tries.pause(&failure(Kind::Lost)), None);
        tries.progress();
        assert!(tries.pause(&failure(Kind::Lost)).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_given_up_after_a_while_without_progress() {
        let mut tries = tries(SCHEDULE);
        tries
            .after(failure(Kind::Stalled))
            .await
            .expect("tried again");
        tokio::time::advance(Duration::from_secs(120)).await;
        let error = tries.after(failure(Kind::Stalled)).await.expect_err("late");
        assert!(matches!(error, ClientError::Unreachable { .. }));
        tries.progress();
        tries
            .after(failure(Kind::Stalled))
            .await
            .expect("tried again");
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_are_final_and_busy_servers_say_when() {
        let mut tries = tries(SCHEDULE);
        assert_eq!(tries.pause(&failure(Kind::Final)), None);
        let after = Duration::from_secs(20);
        let pause = tries
            .pause(&failure(Kind::Busy { after }))
            .expect("tried again");
        assert!(pause > after && pause < after * 2);
        let after = Duration::from_secs(1000);
        assert_eq!(tries.pause(&failure(Kind::Busy { after })), None);
        // Nobody sends a watch away for long.
        let pause = self::tries(ENDLESS).pause(&failure(Kind::Busy { after }));
        assert!(pause.is_some_and(|pause| pause < LONGEST_AFTER * 2));
    }

    #[tokio::test(start_paused = true)]
    async fn damage_is_not_put_down_to_the_way_for_ever() {
        let mut tries = tries(SCHEDULE);
        for _ in 0..DAMAGED {
            assert!(tries.pause(&failure(Kind::Damaged)).is_some());
        }
        assert_eq!(tries.pause(&failure(Kind::Damaged)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_goes_on_for_ever() {
        let mut tries = tries_at(ENDLESS, &["http://a", "http://b"]);
        let lagging = |server| Kind::Lagging {
            server,
            known: true,
        };
        for _ in 0..1000 {
            tries.after(failure(Kind::Lost)).await.expect("tried again");
            tries
                .after(failure(lagging(1)))
                .await
                .expect("the other one may have it");
        }
        // But not where no server has what it follows.
        for _ in 1..LAGGING {
            assert!(tries.pause(&failure(lagging(0))).is_some());
        }
        assert_eq!(tries.pause(&failure(lagging(0))), None);
    }

    #[tokio::test(start_paused = true)]
    async fn no_server_is_waited_for_longer_than_asked() {
        let began = Instant::now();
        let schedule = Schedule {
            attempts: None,
            ..SCHEDULE
        };
        let mut tries = tries(schedule);
        let mut count = 0;
        while tries.after(failure(Kind::Unsent)).await.is_ok() {
            count += 1;
        }
        assert_eq!(Some(began.elapsed()), SCHEDULE.within);
        assert!(count > 12, "{count}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_patience_every_server_is_asked_and_what_got_on_goes_on() {
        for impatient in [
            Schedule {
                within: Some(Duration::ZERO),
                ..SCHEDULE
            },
            Schedule {
                attempts: Some(1),
                ..SCHEDULE
            },
        ] {
            let mut one = tries(impatient);
            assert_eq!(one.pause(&failure(Kind::Lost)), None);
            for _ in 0..3 {
                one.progress();
                assert!(one.pause(&failure(Kind::Lost)).is_some());
                assert_eq!(one.pause(&failure(Kind::Lost)), None);
            }
            let mut two = tries_at(impatient, &["http://a", "http://b"]);
            assert!(two.pause(&failure(Kind::Lost)).is_some());
            assert_eq!(two.pause(&failure(Kind::Lost)), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_server_lacks_is_not_missing_while_another_is_silent() {
        let lacks = |server, known| Failure {
            error: ClientError::Refused(Refusal::NotFound {
                kind: "commit".into(),
                name: "x".into(),
            }),
            kind: Kind::Lagging { server, known },
        };
        let both = ["http://a", "http://b"];
        let mut tries = tries_at(SCHEDULE, &both);
        let error = loop {
            if let Err(error) = tries.after(lacks(1, true)).await {
                break error;
            }
        };
        let error = error.to_string();
        assert!(error.starts_with("http://a cannot be reached"), "{error}");
        // Of one that nobody is known to have, the others are asked, but not waited for.
        let mut tries = tries_at(SCHEDULE, &both);
        tries.after(lacks(1, false)).await.expect("tried again");
        let error = tries.after(lacks(1, false)).await.expect_err("again");
        assert!(matches!(error, ClientError::Refused(_)), "{error}");
        let mut tries = tries_at(SCHEDULE, &both);
        tries.after(lacks(1, false)).await.expect("tried again");
        tries.after(lacks(0, false)).await.expect_err("both say so");
    }

    #[test]
    fn what_may_have_been_done_is_not_done_again() {
        for kind in [Kind::Lost, Kind::Stalled, Kind::Damaged] {
            assert_eq!(Repeat::Always.judge(failure(kind)).kind, kind);
            let judged = Repeat::Undone.judge(failure(kind));
            assert_eq!(judged.kind, Kind::Final);
            assert!(judged.error.to_string().contains("not known"));
        }
        let busy = Kind::Busy {
            after: Duration::ZERO,
        };
        let corrupt = Failure {
            error: ClientError::Refused(Refusal::Corrupt {
                object: "commit".into(),
                what: "x".into(),
            }),
            kind: Kind::Lagging {
                server: 0,
                known: false,
            },
        };
        assert_eq!(Repeat::Undone.judge(corrupt).kind, Kind::Final);
        let leaving = Repeat::Undone.judge(failure(Kind::Leaving));
        assert_eq!(leaving.kind, Kind::Final);
        for kind in [Kind::Unsent, busy] {
            assert_eq!(Repeat::Undone.judge(failure(kind)).kind, kind);
        }
        let refused = Failure {
            error: Refusal::Interrupted.into(),
            kind: Kind::Final,
        };
        assert_eq!(Repeat::Always.judge(refused).kind, Kind::Final);
    }
}
