//! Serving: how fast, how far, how frugal. Each figure is a ratio within this one run, beside what it ought to be.

#[path = "wire/egress.rs"]
mod egress;
#[path = "wire/fetch.rs"]
mod fetch;
#[path = "wire/link.rs"]
mod link;
#[path = "wire/raw.rs"]
mod raw;
#[path = "wire/readers.rs"]
mod readers;
#[path = "wire/scene.rs"]
mod scene;
#[path = "wire/slices.rs"]
mod slices;

use deltaic_tests::checkpoints;
use scene::Scene;
use serde_json::{Value, json};

/// Something that was measured, and what it ought to be.
pub(crate) struct Figure {
    what: String,
    measured: f64,
    /// None where the figure is for information.
    target: Option<String>,
    met: bool,
    note: String,
}

impl Figure {
    fn new(what: &str, measured: f64, target: Option<String>, met: bool) -> Self {
        Self {
            what: what.to_owned(),
            measured,
            target,
            met,
            note: String::new(),
        }
    }

    fn at_least(what: &str, measured: f64, least: f64) -> Self {
        let met = measured >= least;
        Self::new(what, measured, Some(format!(">= {least}")), met)
    }

    fn at_most(what: &str, measured: f64, most: f64) -> Self {
        let met = measured <= most;
        Self::new(what, measured, Some(format!("<= {most}")), met)
    }

    fn amount(what: &str, measured: f64) -> Self {
        Self::new(what, measured, None, true)
    }

    fn noting(mut self, note: String) -> Self {
        self.note = note;
        self
    }

    fn row(self) -> Value {
        json!({
            "figure": self.what,
            "measured": self.measured,
            "met": self.target.as_ref().map(|_| self.met),
            "target": self.target,
            "note": self.note,
        })
    }
}

/// The median.
fn middle(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Run on a runtime of its own, which ends with all servers of it.
fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    runtime.block_on(work)
}

/// The parts of this section, by the names that select them.
pub(crate) const PARTS: [&str; 5] = ["egress", "fetch", "link", "readers", "slices"];

/// All parts of `parts`.
pub(crate) fn measure(parts: &[&str]) -> Value {
    let wants = |part: &[&str]| part.iter().any(|part| parts.contains(part));
    let large = wants(&["egress", "link", "readers"]).then(Scene::large);
    let policy = (wants(&["fetch", "link", "slices"]))
        .then(|| checkpoints::large("policy-bf16", "fetches of policy-bf16"))
        .flatten()
        .map(|set| Scene::of_folders(&set.versions));
    let mut figures = Vec::new();
    if let Some(scene) = &large {
        if wants(&["egress"]) {
            figures.extend(block_on(egress::measure(scene)));
        }
        if wants(&["link"]) {
            figures.extend(block_on(link::contents(scene)));
        }
        if wants(&["readers"]) {
            figures.extend(block_on(readers::measure(scene)));
        }
    }
    if let Some(scene) = &policy {
        if wants(&["fetch"]) {
            figures.extend(block_on(fetch::measure(scene)));
        }
        if wants(&["link"]) {
            figures.extend(block_on(link::patches(scene)));
        }
        if wants(&["slices"]) {
            figures.extend(block_on(slices::measure(scene)));
        }
    }
    figures.into_iter().map(Figure::row).collect()
}
