//! `./dev bench`: what patches take and how fast the hot paths are, printed as a table or, with `--json`, as JSON.
//!
//! Sizes are ratios to what an ideal coder blind to the weights would take. Speeds are ratios to a memory copy of the same
//! bytes, on one thread, the median of several runs in this one process. Nothing here asserts a time.

mod sizes;
mod speeds;
mod whole;

use serde_json::{Value, json};

fn main() {
    let as_json = std::env::args().any(|arg| arg == "--json");
    let report = json!({
        "sizes": sizes::measure(),
        "mixture_of_experts": sizes::mixture_of_experts(),
        "speeds": speeds::measure(),
        "operations": whole::measure(),
    });
    if as_json {
        println!("{report:#}");
        return;
    }
    table(
        "Patches, all overhead included, against the blind bound",
        &[
            "set",
            "pair",
            "changed",
            "bytes",
            "bytes_per_change",
            "of_blind_bound",
            "x_smaller",
            "composed_is_direct",
        ],
        &report["sizes"],
    );
    table(
        "91,000 tensors of 65,536 FP8 elements (a quarter F32 scales), 0.013 % changed",
        &[
            "members",
            "sets",
            "changed",
            "bytes",
            "overhead",
            "overhead_share",
        ],
        &report["mixture_of_experts"],
    );
    table(
        "Hot paths on one thread, bf16, against a memory copy of the dense bytes",
        &["path", "changed_percent", "gb_per_s", "of_memcpy"],
        &report["speeds"],
    );
    table(
        "Whole operations of the program: medians of several runs, and the most memory that was resident",
        &["operation", "seconds", "bytes", "of_full", "peak_mb"],
        &report["operations"],
    );
}

/// Print rows, an array of objects, as a table of `columns`.
fn table(title: &str, columns: &[&str], rows: &Value) {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64() {
            Some(x) if !number.is_u64() => format!("{x:.4}"),
            _ => number.to_string(),
        },
        other => other.to_string(),
    };
    let rows: Vec<Vec<String>> = rows
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| columns.iter().map(|column| text(&row[*column])).collect())
        .collect();
    let width = |i: usize| {
        let cells = rows.iter().map(|row| row[i].len());
        cells.chain([columns[i].len()]).max().unwrap_or(0)
    };
    println!("\n{title}\n");
    let line = |cells: Vec<&str>| {
        for (i, cell) in cells.iter().enumerate() {
            print!("{cell:>width$}  ", width = width(i));
        }
        println!();
    };
    line(columns.to_vec());
    for row in &rows {
        line(row.iter().map(String::as_str).collect());
    }
}
