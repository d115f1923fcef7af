//! When a call that failed is tried again, and when it is given up.

use super::status::{Failure, Kind};
use crate::error::{ClientError, Result};
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use std::time::Duration;
use tokio::time::Instant;

/// How often damaged answers to the same question are put down to the way that they took.
const DAMAGED: u32 = 2;

/// How often servers are found that lack what another one had.
const LAGGING: u32 = 8;

/// When to try again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule {
    /// Tries in all without progress; `None`: for ever.
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
        match self.attempts {
            None => builder.without_max_times().build(),
            Some(attempts) => {
                let again = attempts.saturating_sub(1) as usize;
                builder.with_max_times(again).build()
            }
        }
    }
}

/// The tries of one call, whose budget fills up again whenever it gets on.
#[derive(Debug)]
pub(super) struct Tries {
    schedule: Schedule,
    pauses: ExponentialBackoff,
    /// When the first failure since the last progress was.
    since: Option<Instant>,
    damaged: u32,
    lagging: u32,
}

impl Tries {
    pub(super) fn new(schedule: Schedule) -> Self {
        Self {
            schedule,
            pauses: schedule.pauses(),
            since: None,
            damaged: 0,
            lagging: 0,
        }
    }

    /// The call has got on.
    pub(super) fn progress(&mut self) {
        if self.since.is_some() {
            *self = Self::new(self.schedule);
        }
    }

    /// Wait until it is time to try again after a failure.
    ///
    /// # Errors
    ///
    /// The failure's, if it is not worth it or was tried often enough.
    pub(super) async fn after(&mut self, failure: Failure) -> Result<()> {
        let first = self.since.is_none();
        match self.pause(&failure) {
            None => Err(failure.error),
            Some(pause) => {
                let (error, wait) = (&failure.error, pause.as_millis());
                match first {
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
        if failure.kind == Kind::Final {
            return None;
        }
        if failure.kind == Kind::Damaged {
            self.damaged += 1;
            if self.damaged > DAMAGED {
                return None;
            }
        }
        if failure.kind == Kind::Lagging {
            self.lagging += 1;
            if self.lagging > LAGGING {
                return None;
            }
        }
        let mut pause = self.pauses.next()?;
        if let Kind::Busy { after } = failure.kind {
            // The jitter of the pause stays, so that those who were sent away do not all come back at once.
            pause = pause.saturating_add(after);
        }
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        let over = |within| (now - since).saturating_add(pause) > within;
        (!self.schedule.within.is_some_and(over)).then_some(pause)
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
        // A server that goes away may still end what it was doing.
        let unknown = matches!(
            failure.kind,
            Kind::Lost | Kind::Stalled | Kind::Damaged | Kind::Leaving
        );
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
    use deltaic_format::refusal::Refusal;

    const SCHEDULE: Schedule = Schedule {
        attempts: Some(8),
        within: Some(Duration::from_secs(120)),
        first_pause: Duration::from_millis(100),
        longest_pause: Duration::from_secs(5),
    };

    fn failure(kind: Kind) -> Failure {
        let error = ClientError::Unreachable {
            endpoint: "http://e".into(),
            what: "the connection was lost".into(),
        };
        Failure { error, kind }
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_with_jitter_and_end() {
        let mut tries = Tries::new(SCHEDULE);
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
        let mut tries = Tries::new(SCHEDULE);
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
        let mut tries = Tries::new(SCHEDULE);
        assert_eq!(tries.pause(&failure(Kind::Final)), None);
        let after = Duration::from_secs(20);
        let pause = tries
            .pause(&failure(Kind::Busy { after }))
            .expect("tried again");
        assert!(pause > after && pause < after * 2);
        let after = Duration::from_secs(1000);
        assert_eq!(tries.pause(&failure(Kind::Busy { after })), None);
    }

    #[tokio::test(start_paused = true)]
    async fn damage_is_not_put_down_to_the_way_for_ever() {
        let mut tries = Tries::new(SCHEDULE);
        for _ in 0..DAMAGED {
            assert!(tries.pause(&failure(Kind::Damaged)).is_some());
        }
        assert_eq!(tries.pause(&failure(Kind::Damaged)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_goes_on_for_ever() {
        let mut tries = Tries::new(Schedule {
            attempts: None,
            within: None,
            ..SCHEDULE
        });
        for _ in 0..1000 {
            tries.after(failure(Kind::Lost)).await.expect("tried again");
        }
        // But not where no server has what it follows.
        for _ in 0..LAGGING {
            assert!(tries.pause(&failure(Kind::Lagging)).is_some());
        }
        assert_eq!(tries.pause(&failure(Kind::Lagging)), None);
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
