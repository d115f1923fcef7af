//! Whole operations of the program, on the largest real set that can be had, else on a made-up one, and the memory that each
//! takes; last, the commit of a checkpoint of 8 GiB, for its memory alone.

use deltaic_format::{Dtype, ElementClass};
use deltaic_tests::checkpoints::{self, NamedTensor};
use deltaic_tests::program::Program;
use deltaic_tests::stores::ScratchStore;
use deltaic_tests::weights::{self, Density, Update};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

const RUNS: usize = 3;

/// Tensors of the large checkpoint, and bytes of each.
const LARGE: (u64, u64) = (32, 256 << 20);

/// One operation, done several times.
#[derive(Default)]
struct Runs {
    seconds: Vec<f64>,
    bytes: Vec<u64>,
    peak: u64,
}

impl Runs {
    /// Run the program once, and note what it took and the bytes that its answer tells by the name of `key`.
    fn run(&mut self, store: &ScratchStore, args: &[&str], key: &str) -> Value {
        let begun = Instant::now();
        let (answer, peak) = store.measured(args);
        self.seconds.push(begun.elapsed().as_secs_f64());
        self.bytes.push(answer[key].as_u64().unwrap_or_default());
        self.peak = self.peak.max(peak);
        answer
    }

    /// A row of the table: medians, the highest memory.
    fn row(mut self, operation: &str, full: u64) -> Value {
        self.seconds.sort_by(f64::total_cmp);
        self.bytes.sort_unstable();
        let middle = self.seconds.len() / 2;
        let bytes = self.bytes[middle];
        json!({
            "operation": operation,
            "seconds": self.seconds[middle],
            "bytes": bytes,
            "of_full": bytes as f64 / full as f64,
            "peak_mb": self.peak as f64 / 1e6,
        })
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("checkpoint paths are UTF-8")
}

/// Commit, export, join, and pulls by distance.
pub(crate) fn measure() -> Value {
    let program = Program::beside_this_one().unwrap_or_else(|why| panic!("{why}"));
    let store = ScratchStore::new(program.clone());
    let versions = checkpoints::large("policy-bf16", "whole operations on policy-bf16")
        .or_else(|| checkpoints::small_with_python("whole operations on policy-small"))
        .map_or_else(|| made_up(&store), |set| set.versions);
    let newest = versions.len() - 1;
    let (mut first, mut steps) = (Runs::default(), Runs::default());
    let mut full = 0;
    for (number, version) in versions.iter().enumerate() {
        let runs = if number == 0 { &mut first } else { &mut steps };
        let commit = runs.run(&store, &["commit", "bench", text(version)], "new_bytes");
        full = commit["full_bytes"].as_u64().unwrap_or_default();
    }
    let mut rows = vec![
        first.row("commit of the first version", full),
        steps.row("commit of a step", full),
    ];
    let (mut exports, mut joins) = (Runs::default(), Runs::default());
    for run in 0..RUNS {
        let out = store.place(&format!("out{run}"));
        exports.run(&store, &["export", "bench", "-o", &out], "bytes");
        let replica = store.place(&format!("join{run}"));
        let args = ["pull", "bench", "-o", &replica];
        joins.run(&store, &args, "received_bytes");
    }
    rows.push(exports.row("export of the newest version", full));
    rows.push(joins.row("pull into an empty folder", full));
    for distance in [1, 2, 4, 8, 12].into_iter().filter(|d| *d <= newest) {
        let replica = store.place("replica");
        let mut pulls = Runs::default();
        // Back and forth, the way there alone being timed.
        for _ in 0..RUNS {
            let old = format!("bench@v{}", newest - distance);
            store.json(&["pull", &old, "-o", &replica]);
            let args = ["pull", "bench", "-o", &replica];
            pulls.run(&store, &args, "received_bytes");
        }
        rows.push(pulls.row(&format!("pull over {distance} versions"), full));
    }
    rows.push(large(program));
    Value::Array(rows)
}

/// Versions of 64 MB, of which each changes a five-hundredth.
fn made_up(store: &ScratchStore) -> Vec<PathBuf> {
    let mut tensors: Vec<NamedTensor> = (0..16)
        .map(|i| {
            let content = weights::bf16_weights(2_000_000, i);
            NamedTensor::flat(&format!("layers.{i}.weight"), Dtype::BF16, content)
        })
        .collect();
    (0..13)
        .map(|version| {
            let folder = store.path(&format!("v{version}"));
            let files = [("model.safetensors", tensors.clone())];
            checkpoints::write_folder(&folder, &files).expect("it can be written");
            for (number, tensor) in (0..).zip(&mut tensors) {
                let (class, seed) = (ElementClass::BF16, 100 * version + number);
                let density = Density::Share(0.002);
                tensor.content =
                    weights::updated(class, &tensor.content, density, Update::Step, seed);
            }
            folder
        })
        .collect()
}

/// The first commit of a checkpoint that is larger than what may be resident: zeros, which take no room on the disk.
fn large(program: Program) -> Value {
    let store = ScratchStore::new(program);
    let path = store.path("large.safetensors");
    let (tensors, len) = LARGE;
    checkpoints::write_sparse(&path, Dtype::BF16, tensors, len).expect("it can be written");
    let mut runs = Runs::default();
    runs.run(&store, &["commit", "large", text(&path)], "new_bytes");
    runs.row("commit of 8 GiB of zeros", tensors * len)
}
