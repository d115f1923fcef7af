//! Where an operation stands, on standard error: bars on a terminal, plain lines elsewhere.

use crate::interrupt::Interrupt;
use crate::units;
use deltaic_format::progress::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two plain lines.
const BETWEEN_LINES: Duration = Duration::from_secs(3);

/// How progress is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProgressChoice {
    /// Bars on a terminal, plain lines elsewhere.
    #[default]
    Auto,
    /// Plain lines.
    Plain,
    /// Not at all.
    None,
}

/// Shows progress, and passes on the user's wish to stop.
#[derive(Debug)]
pub struct Reporter {
    interrupt: Interrupt,
    display: Display,
}

#[derive(Debug)]
enum Display {
    Bar(Mutex<Option<ProgressBar>>),
    Lines(Lines),
    Nothing,
}

impl Reporter {
    /// Show progress as chosen.
    pub fn new(choice: ProgressChoice, interrupt: Interrupt) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let display = match choice {
            ProgressChoice::Auto if terminal => Display::Bar(Mutex::default()),
            ProgressChoice::Auto | ProgressChoice::Plain => Display::Lines(Lines::default()),
            ProgressChoice::None => Display::Nothing,
        };
        Self { interrupt, display }
    }

    /// Take the bar away, because the operation has ended or something else is about to be printed.
    pub fn clear(&self) {
        if let Display::Bar(bar) = &self.display
            && let Some(bar) = lock(bar).take()
        {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Reporter {
    fn phase(&self, name: &'static str, total: Option<u64>) {
        match &self.display {
            Display::Bar(bar) => {
                let next = new_bar(name, total.filter(|&bytes| bytes > 0));
                if let Some(last) = lock(bar).replace(next) {
                    last.finish_and_clear();
                }
            }
            Display::Lines(lines) => lines.phase(name, total),
            Display::Nothing => {}
        }
    }

    fn advance(&self, bytes: u64) {
        match &self.display {
            Display::Bar(bar) => {
                if let Some(bar) = &*lock(bar) {
                    bar.inc(bytes);
                }
            }
            Display::Lines(lines) => lines.advance(bytes),
            Display::Nothing => {}
        }
    }

    fn cancelled(&self) -> bool {
        self.interrupt.asked()
    }
}

fn new_bar(name: &'static str, total: Option<u64>) -> ProgressBar {
    let bar = match total {
        Some(total) => ProgressBar::new(total),
        None => ProgressBar::new_spinner(),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr());
    let template = match total {
        Some(_) => {
            "{msg:>10} [{bar:30}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, ETA {eta}"
        }
        None => "{msg:>10} {spinner} {binary_bytes}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(name);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// A line every few seconds, such as `reading 1.2 GiB of 8.0 GiB, 410 MiB/s, ETA 16 s`.
#[derive(Debug, Default)]
struct Lines {
    done: AtomicU64,
    phase: Mutex<Option<Phase>>,
}

#[derive(Debug, Clone, Copy)]
struct Phase {
    name: &'static str,
    total: Option<u64>,
    begun: Instant,
    next_line: Instant,
}

impl Lines {
    fn phase(&self, name: &'static str, total: Option<u64>) {
        let now = Instant::now();
        let mut phase = lock(&self.phase);
        self.done.store(0, Ordering::Relaxed);
        *phase = Some(Phase {
            name,
            total,
            begun: now,
            // What is over sooner is not worth a line.
            next_line: now + BETWEEN_LINES,
        });
    }

    fn advance(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // Whoever finds another thread at it leaves it to that one.
        let Ok(mut phase) = self.phase.try_lock() else {
            return;
        };
        let Some(phase) = phase.as_mut() else {
            return;
        };
        let now = Instant::now();
        if now >= phase.next_line {
            phase.next_line = now + BETWEEN_LINES;
            let line = phase.line(done, now - phase.begun);
            // A closed standard error does not stop the work.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }
}

impl Phase {
    fn line(&self, done: u64, elapsed: Duration) -> String {
        let (name, size) = (self.name, units::bytes(done));
        let rate = units::rate(done, elapsed);
        match self.total {
            Some(total) if done > 0 => {
                let left = total.saturating_sub(done) as f64 / done as f64;
                let eta = Duration::try_from_secs_f64(elapsed.as_secs_f64() * left)
                    .unwrap_or(Duration::MAX);
                let (total, eta) = (units::bytes(total), units::time_left(eta));
                format!("{name} {size} of {total}, {rate}, ETA {eta}")
            }
            Some(total) => format!("{name} {size} of {}", units::bytes(total)),
            None => format!("{name} {size}, {rate}"),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is only shown: a panic elsewhere cannot have broken it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(total: Option<u64>) -> Phase {
        let now = Instant::now();
        Phase {
            name: "reading",
            total,
            begun: now,
            next_line: now,
        }
    }

    #[test]
    fn lines_name_phase_rate_and_time_left() {
        let done = 1200 << 20;
        let time = Duration::from_secs(3);
        assert_eq!(
            phase(Some(8 << 30)).line(done, time),
            "reading 1.2 GiB of 8.0 GiB, 400 MiB/s, ETA 18 s"
        );
        assert_eq!(phase(None).line(done, time), "reading 1.2 GiB, 400 MiB/s");
        assert_eq!(phase(Some(1 << 20)).line(0, time), "reading 0 B of 1.0 MiB");
    }

    #[test]
    fn every_phase_has_some_seconds_before_its_first_line() {
        let lines = Lines::default();
        for name in ["reading", "writing"] {
            let begun = Instant::now();
            lines.phase(name, None);
            let next = lock(&lines.phase).map(|phase| phase.next_line);
            assert!(next.is_some_and(|next| next >= begun + BETWEEN_LINES));
        }
    }

    #[test]
    fn the_wish_to_stop_is_passed_on() {
        let reporter = Reporter::new(ProgressChoice::None, Interrupt::default());
        assert!(!reporter.cancelled());
    }
}
