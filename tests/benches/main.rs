//! `./dev bench`: what patches take and how fast the hot paths are, printed as a table or, with `--json`, as JSON.
//!
//! Sizes are ratios to what an ideal coder blind to the weights would take. Speeds are ratios to a memory copy of the same
//! bytes, on one thread, the median of several runs in this one process. Nothing here asserts a time.
//!
//! All sections, or those that are named: `./dev bench sizes wire`; of `wire` also its parts, such as `egress`.

mod sizes;
mod speeds;
mod whole;
mod wire;

use serde_json::{Map, Value};
use std::process::ExitCode;

/// A table of the report.
struct Section {
    /// What it is called in JSON, and selected by.
    name: &'static str,
    title: &'static str,
    columns: &'static [&'static str],
}

const SECTIONS: [Section; 5] = [
    Section {
        name: "sizes",
        title: "Patches, all overhead included, against the blind bound",
        columns: &[
            "set",
            "pair",
            "changed",
            "bytes",
            "bytes_per_change",
            "of_blind_bound",
            "x_smaller",
            "composed_is_direct",
        ],
    },
    Section {
        name: "mixture_of_experts",
        title: "91,000 tensors of 65,536 FP8 elements (a quarter F32 scales), 0.013 % changed",
        columns: &[
            "members",
            "sets",
            "changed",
            "bytes",
            "overhead",
            "overhead_share",
        ],
    },
    Section {
        name: "speeds",
        title: "Hot paths on one thread, bf16, against a memory copy of the dense bytes",
        columns: &["path", "changed_percent", "gb_per_s", "of_memcpy"],
    },
    Section {
        name: "operations",
        title: "Whole operations of the program: medians of several runs, and the most memory that was resident",
        columns: &["operation", "seconds", "bytes", "of_full", "peak_mb"],
    },
    Section {
        name: "wire",
        title: "Serving, each figure a ratio within this run or an amount, beside what it ought to be",
        columns: &["figure", "measured", "target", "met", "note"],
    },
];

impl Section {
    /// Its rows, if it is among what was selected; with nothing selected, everything is.
    fn measure(&self, selected: &[String]) -> Option<Value> {
        let is = |name: &str| selected.iter().any(|selected| selected == name);
        let all = selected.is_empty() || is(self.name);
        if self.name == "wire" {
            let mut parts = wire::PARTS.to_vec();
            parts.retain(|part| all || is(part));
            return (!parts.is_empty()).then(|| wire::measure(&parts));
        }
        all.then(|| match self.name {
            "sizes" => sizes::measure(),
            "mixture_of_experts" => sizes::mixture_of_experts(),
            "speeds" => speeds::measure(),
            _ => whole::measure(),
        })
    }
}

fn main() -> ExitCode {
    let mut selected: Vec<String> = std::env::args().skip(1).collect();
    let as_json = selected.iter().any(|arg| arg == "--json");
    selected.retain(|arg| arg != "--json");
    let names: Vec<&str> = (SECTIONS.iter().map(|section| section.name))
        .chain(wire::PARTS)
        .collect();
    if let Some(unknown) = selected.iter().find(|name| !names.contains(&name.as_str())) {
        eprintln!(
            "there is no section {unknown}; there are {}",
            names.join(", ")
        );
        return ExitCode::from(2);
    }
    let mut report = Map::new();
    for section in &SECTIONS {
        if let Some(rows) = section.measure(&selected) {
            if !as_json {
                table(section.title, section.columns, &rows);
            }
            report.insert(section.name.to_owned(), rows);
        }
    }
    if as_json {
        println!("{:#}", Value::Object(report));
    }
    ExitCode::SUCCESS
}

/// Print rows, an array of objects, as a table of `columns`.
fn table(title: &str, columns: &[&str], rows: &Value) {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64() {
            Some(x) if !number.is_u64() => format!("{x:.4}"),
            _ => number.to_string(),
        },
        Value::Bool(met) => (if *met { "yes" } else { "NO" }).to_owned(),
        Value::Null => "-".to_owned(),
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
