//! Where an operation stands, on standard error: bars on a terminal, plain lines elsewhere.

use crate::interrupt::Interrupt;
use crate::units;
use deltaic_format::progress::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
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

/// Shows progress, and passes on the user's wish to stop. Clones show the same progress.
#[derive(Debug, Clone)]
pub struct Reporter {
    interrupt: Interrupt,
    display: Arc<Display>,
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
        let terminal = io::stderr().is_terminal();
        let display = match choice {
            ProgressChoice::Auto if terminal => Display::Bar(Mutex::default()),
            ProgressChoice::Auto => Display::Lines(Lines::new(BETWEEN_LINES)),
            // Whoever asks for lines sees every phase, however short.
            ProgressChoice::Plain => Display::Lines(Lines::new(Duration::ZERO)),
            ProgressChoice::None => Display::Nothing,
        };
        Self {
            interrupt,
            display: Arc::new(display),
        }
    }

    /// Take the bar away, because the operation has ended or something else is about to be printed.
    pub fn clear(&self) {
        match &*self.display {
            Display::Bar(bar) => {
                if let Some(bar) = lock(bar).take() {
                    bar.finish_and_clear();
                }
            }
            Display::Lines(lines) => lines.clear(),
            Display::Nothing => {}
        }
    }
}

impl Progress for Reporter {
    fn phase(&self, name: &'static str, total: Option<u64>) {
        let total = total.filter(|&bytes| bytes > 0);
        match &*self.display {
            Display::Bar(bar) => {
                let next = new_bar(name, total);
                if let Some(last) = lock(bar).replace(next) {
                    last.finish_and_clear();
                }
            }
            Display::Lines(lines) => lines.phase(name, total),
            Display::Nothing => {}
        }
    }

    fn advance(&self, bytes: u64) {
        match &*self.display {
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
            "{msg:>10} [{bar:30}] {binary_bytes} of {bound}{binary_total_bytes}, {binary_bytes_per_sec}{left}"
        }
        None => "{msg:>10} {spinner} {binary_bytes}, {elapsed}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        let bound = bound(name);
        let style = style
            .with_key(
                "bound",
                move |_: &ProgressState, out: &mut dyn fmt::Write| {
                    // A bar that cannot be written does not stop the work.
                    let _ = out.write_str(bound);
                },
            )
            .with_key("left", |state: &ProgressState, out: &mut dyn fmt::Write| {
                let total = state.len().unwrap_or_default();
                if can_be_foretold(state.pos(), total, state.elapsed()) {
                    let _ = write!(out, ", ETA {}", units::time_left(state.eta()));
                }
            });
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(name);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// What stands before the total of a phase that may end sooner: what a patch takes is known when it is made.
fn bound(phase: &str) -> &'static str {
    match phase {
        "receiving" => "at most ",
        _ => "",
    }
}

/// Whether enough is done to say when the rest will be.
fn can_be_foretold(done: u64, total: u64, elapsed: Duration) -> bool {
    elapsed >= Duration::from_secs(2) && done.saturating_mul(20) >= total && done > 0
}

/// A line every few seconds, such as `reading 1.2 GiB of 8.0 GiB, 410 MiB/s, ETA 16 s`, also while a phase has nothing
/// to tell of.
#[derive(Debug)]
struct Lines {
    shared: Arc<Shared>,
    /// How long a phase lasts before its first line; what is over sooner is not worth one.
    first_after: Duration,
    writer: OnceLock<JoinHandle<()>>,
}

/// What whoever works and whoever writes lines have in common.
#[derive(Debug, Default)]
struct Shared {
    done: AtomicU64,
    state: Mutex<State>,
    /// The state has changed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    phase: Option<Phase>,
    ended: bool,
}

#[derive(Debug, Clone, Copy)]
struct Phase {
    name: &'static str,
    total: Option<u64>,
    begun: Instant,
    next_line: Instant,
}

impl Lines {
    fn new(first_after: Duration) -> Self {
        Self {
            shared: Arc::default(),
            first_after,
            writer: OnceLock::new(),
        }
    }

    fn phase(&self, name: &'static str, total: Option<u64>) {
        let now = Instant::now();
        let mut state = lock(&self.shared.state);
        let done = self.shared.done.swap(0, Ordering::Relaxed);
        if let Some(last) = &state.phase {
            last.write_end(done, now);
        }
        let mut phase = Phase {
            name,
            total,
            begun: now,
            next_line: now + self.first_after,
        };
        phase.write_if_due(0, now);
        state.phase = Some(phase);
        drop(state);
        self.shared.changed.notify_one();
        self.writer.get_or_init(|| {
            let shared = self.shared.clone();
            std::thread::spawn(move || shared.write_lines())
        });
    }

    fn advance(&self, bytes: u64) {
        self.shared.done.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Write no more lines until the next phase.
    fn clear(&self) {
        let last = lock(&self.shared.state).phase.take();
        if let Some(last) = last {
            last.write_end(self.shared.done.load(Ordering::Relaxed), Instant::now());
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        lock(&self.shared.state).ended = true;
        self.shared.changed.notify_one();
        if let Some(writer) = self.writer.take() {
            // It cannot have anything else to tell than a panic, which was told.
            let _ = writer.join();
        }
    }
}

impl Shared {
    /// Write a line whenever one is due, until the end.
    fn write_lines(&self) {
        let mut state = lock(&self.state);
        while !state.ended {
            let now = Instant::now();
            let mut wait = BETWEEN_LINES;
            if let Some(phase) = &mut state.phase {
                phase.write_if_due(self.done.load(Ordering::Relaxed), now);
                wait = phase.next_line.saturating_duration_since(now);
            }
            let waited = self.changed.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Phase {
    fn write_if_due(&mut self, done: u64, now: Instant) {
        if now < self.next_line {
            return;
        }
        self.next_line = now + BETWEEN_LINES;
        // A closed standard error does not stop the work.
        let _ = writeln!(io::stderr(), "{}", self.line(done, now - self.begun));
    }

    /// Say that the phase is over, if a line has left it looking unfinished.
    fn write_end(&self, done: u64, now: Instant) {
        let elapsed = now - self.begun;
        if self.total.is_some() && done > 0 && elapsed >= BETWEEN_LINES {
            let (name, size, time) = (self.name, units::bytes(done), units::duration(elapsed));
            let _ = writeln!(io::stderr(), "{name}: {size} in {time}");
        }
    }

    fn line(&self, done: u64, elapsed: Duration) -> String {
        let (name, size) = (self.name, units::bytes(done));
        let rate = units::rate(done, elapsed);
        match self.total {
            Some(total) if can_be_foretold(done, total, elapsed) => {
                let left = total.saturating_sub(done) as f64 / done as f64;
                let eta = Duration::try_from_secs_f64(elapsed.as_secs_f64() * left)
                    .unwrap_or(Duration::MAX);
                let (total, eta) = (units::bytes(total), units::time_left(eta));
                let bound = bound(name);
                format!("{name} {size} of {bound}{total}, {rate}, ETA {eta}")
            }
            Some(total) => {
                let rate = if done > 0 {
                    format!(", {rate}")
                } else {
                    String::new()
                };
                format!(
                    "{name} {size} of {}{}{rate}",
                    bound(name),
                    units::bytes(total)
                )
            }
            None if done > 0 => format!("{name} {size}, {rate}"),
            None if elapsed < BETWEEN_LINES => format!("{name}…"),
            None => format!("{name}… {}", units::time_left(elapsed)),
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
        let receiving = Phase {
            name: "receiving",
            ..phase(Some(8 << 30))
        };
        assert_eq!(
            receiving.line(300 << 20, time),
            "receiving 300 MiB of at most 8.0 GiB, 100 MiB/s"
        );
        assert_eq!(
            phase(Some(1 << 30)).line(512 << 20, Duration::from_secs(1)),
            "reading 512 MiB of 1.0 GiB, 512 MiB/s"
        );
    }

    #[test]
    fn phases_without_a_total_are_told_of_too() {
        let proving = Phase {
            name: "proving",
            ..phase(None)
        };
        assert_eq!(proving.line(0, Duration::ZERO), "proving…");
        assert_eq!(proving.line(0, Duration::from_secs(6)), "proving… 6 s");
    }

    #[test]
    fn the_next_line_comes_some_seconds_after_the_last() {
        for first_after in [BETWEEN_LINES, Duration::ZERO] {
            let lines = Lines::new(first_after);
            for name in ["reading", "writing"] {
                let begun = Instant::now();
                lines.phase(name, None);
                let next = lock(&lines.shared.state).phase.map(|phase| phase.next_line);
                assert!(next.is_some_and(|next| next >= begun + BETWEEN_LINES));
            }
            lines.clear();
            assert!(lock(&lines.shared.state).phase.is_none());
        }
    }

    #[test]
    fn the_wish_to_stop_is_passed_on() {
        let reporter = Reporter::new(ProgressChoice::None, Interrupt::default());
        assert!(!reporter.cancelled());
    }
}
