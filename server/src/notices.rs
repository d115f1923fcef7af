//! What the libraries note while they work, such as a server that does not answer at once, as warnings for people.

use crate::output::Paint;
use crate::progress::Reporter;
use std::fmt;
use std::io::{self, Write};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Whose notes are for people.
const FROM: &str = "deltaic_client";

/// Shows warnings on standard error, between the lines of progress.
struct Notices {
    progress: Reporter,
    paint: Paint,
}

/// Show the libraries' warnings from now on.
pub fn show(progress: Reporter, paint: Paint) {
    // There can be one only; whoever came first keeps it.
    let _ = tracing_subscriber::registry()
        .with(Notices { progress, paint })
        .try_init();
}

impl<S: Subscriber> Layer<S> for Notices {
    fn enabled(&self, metadata: &tracing::Metadata<'_>, _context: Context<'_, S>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with(FROM)
    }

    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut words = Words::default();
        event.record(&mut words);
        self.progress.clear();
        let warning = self.paint.yellow("warning:");
        // A closed standard error does not stop the work.
        let _ = writeln!(io::stderr(), "{warning} {words}");
    }
}

/// The message of a note and the error that it names.
#[derive(Default)]
struct Words {
    message: String,
    error: Option<String>,
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "error" => self.error = Some(format!("{value:?}")),
            _ => {}
        }
    }
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.error {
            Some(error) => write!(f, ": {error}"),
            None => Ok(()),
        }
    }
}
