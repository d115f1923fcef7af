//! Whole operations of the program, on the largest real set that is there.

use deltaic_tests::checkpoints;
use deltaic_tests::stores::ScratchStore;
use serde_json::{Value, json};
use std::time::Instant;

const RUNS: usize = 3;

/// Run `operation` several times: (median seconds, what the last run printed).
fn median(mut operation: impl FnMut(usize) -> Value) -> (f64, Value) {
    let mut last = Value::Null;
    let mut times: Vec<f64> = (0..RUNS)
        .map(|run| {
            let begun = Instant::now();
            last = operation(run);
            begun.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[RUNS / 2], last)
}

/// Commit, export, join, and pulls by distance.
pub(crate) fn measure() -> Value {
    let set = checkpoints::large("policy-bf16", "whole operations on policy-bf16")
        .unwrap_or_else(checkpoints::small);
    let store = ScratchStore::new();
    let newest = set.versions.len() - 1;
    let mut rows = Vec::new();
    let mut full = 0;
    let mut row = |operation: String, seconds: f64, bytes: u64, full: u64| {
        rows.push(json!({
            "operation": operation,
            "seconds": seconds,
            "bytes": bytes,
            "of_full": bytes as f64 / full as f64,
        }));
    };
    let mut times = Vec::new();
    for (number, version) in set.versions.iter().enumerate() {
        let begun = Instant::now();
        let commit = store.commit("bench", version);
        let seconds = begun.elapsed().as_secs_f64();
        full = commit["full_bytes"].as_u64().unwrap_or_default();
        let bytes = commit["new_bytes"].as_u64().unwrap_or_default();
        if number == 0 {
            row(
                "commit of the first version".to_owned(),
                seconds,
                bytes,
                full,
            );
        } else {
            times.push((seconds, bytes));
        }
    }
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (seconds, bytes) = times[times.len() / 2];
    row("commit of a step".to_owned(), seconds, bytes, full);
    let (seconds, _) = median(|run| {
        let out = store.place(&format!("out{run}"));
        store.json(&["export", "bench", "-o", &out])
    });
    row(
        "export of the newest version".to_owned(),
        seconds,
        full,
        full,
    );
    let (seconds, pulled) = median(|run| {
        let replica = store.place(&format!("join{run}"));
        store.json(&["pull", "bench", "-o", &replica])
    });
    let received = |pulled: &Value| pulled["received_bytes"].as_u64().unwrap_or_default();
    row(
        "pull into an empty folder".to_owned(),
        seconds,
        received(&pulled),
        full,
    );
    for distance in [1, 2, 4, 8, 12].into_iter().filter(|d| *d <= newest) {
        let replica = store.place("replica");
        let pull =
            |version: usize| store.json(&["pull", &format!("bench@v{version}"), "-o", &replica]);
        pull(newest - distance);
        // Back and forth, the way there alone being timed.
        let mut seconds = Vec::new();
        let mut bytes = 0;
        for _ in 0..RUNS {
            let begun = Instant::now();
            bytes = received(&pull(newest));
            seconds.push(begun.elapsed().as_secs_f64());
            pull(newest - distance);
        }
        seconds.sort_by(f64::total_cmp);
        row(
            format!("pull over {distance} versions"),
            seconds[RUNS / 2],
            bytes,
            full,
        );
    }
    Value::Array(rows)
}
