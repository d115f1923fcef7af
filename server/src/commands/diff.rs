//! `deltaic diff`: what changed between two versions.

use crate::arguments::RangeSpec;
use crate::files::{ChangedFile, changed_files};
use crate::output::{Answer, Page};
use crate::report::Result;
use crate::session::Session;
use crate::table::Table;
use crate::units;
use crate::versions::printable;
use clap::{Args, ValueEnum};
use deltaic_format::object::Snapshot;
use deltaic_store::{TensorChange, TensorDiff};
use serde::Serialize;
use std::collections::HashMap;
use std::io;

/// Show what changed between two versions: how many elements, how far, in how many bytes.
///
/// A shift counts representable values: +1 is the next larger number of the tensor's type. Other files that differ are
/// listed below the weights.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic diff acme/policy@v41..v42            per layer
  deltaic diff acme/policy@main~5 --by tensor  the last five versions, per tensor
  deltaic diff acme/policy@best..dev:v7        from a tag to another branch's v7")]
pub struct DiffArgs {
    /// Repository and two revisions; the second is main if not named.
    #[arg(value_name = "REPO@A..B")]
    range: RangeSpec,
    /// List changes by this.
    #[arg(long, value_name = "WHAT", default_value = "layer")]
    by: Grouping,
}

/// What changes are listed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Grouping {
    /// Layers of the model.
    Layer,
    /// Tensors.
    Tensor,
}

#[derive(Serialize)]
struct Difference {
    repo: String,
    from: u64,
    from_commit: String,
    to: u64,
    to_commit: String,
    elements: u64,
    changed: u64,
    full_bytes: u64,
    patch_bytes: u64,
    tensors: Vec<ChangedTensor>,
    layers: Vec<ChangedLayer>,
    /// Files that differ in more than tensors.
    files: Vec<ChangedFile>,
    #[serde(skip)]
    by: Option<Grouping>,
}

#[derive(Serialize)]
struct ChangedTensor {
    name: String,
    path: String,
    kind: &'static str,
    #[serde(flatten)]
    counts: Counts,
}

#[derive(Serialize)]
struct ChangedLayer {
    layer: String,
    tensors: u64,
    #[serde(flatten)]
    counts: Counts,
}

/// Elements, and how far those went that changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
struct Counts {
    elements: u64,
    changed: u64,
    plus_one: u64,
    minus_one: u64,
    patch_bytes: u64,
}

impl Counts {
    fn of(tensor: &TensorDiff) -> Self {
        Self {
            elements: tensor.spec.elements(),
            changed: tensor.changed,
            plus_one: tensor.plus_one,
            minus_one: tensor.minus_one,
            patch_bytes: tensor.patch_bytes,
        }
    }

    fn add(&mut self, other: &Self) {
        self.elements += other.elements;
        self.changed += other.changed;
        self.plus_one += other.plus_one;
        self.minus_one += other.minus_one;
        self.patch_bytes += other.patch_bytes;
    }

    /// Changed elements, their share, those that went one up, one down and further, bytes, bytes per element.
    fn cells(&self) -> [String; 7] {
        let further = self.changed.saturating_sub(self.plus_one + self.minus_one);
        [
            units::count(self.changed),
            units::percent(self.changed, self.elements),
            units::percent(self.plus_one, self.changed),
            units::percent(self.minus_one, self.changed),
            units::percent(further, self.changed),
            units::bytes(self.patch_bytes),
            units::bytes_per(self.patch_bytes, self.changed),
        ]
    }
}

impl Answer for Difference {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let (from, to) = (self.from, self.to);
        let title = format!(
            "{} v{from} {} .. v{to} {}",
            self.repo,
            &self.from_commit[..12],
            &self.to_commit[..12]
        );
        page.line(&page.paint.yellow(&title))?;
        page.line(&self.words())?;
        if !self.tensors.is_empty() {
            page.line("")?;
            match self.by {
                Some(Grouping::Tensor) => self.tensor_table().print(page)?,
                _ => self.layer_table().print(page)?,
            }
        }
        if self.files.is_empty() {
            return Ok(());
        }
        page.line("")?;
        self.file_table().print(page)
    }
}

impl Difference {
    fn words(&self) -> String {
        if self.tensors.is_empty() {
            return match self.files.len() as u64 {
                0 => "nothing changed".to_owned(),
                files => {
                    let files = units::plural(files, "other file", "other files");
                    format!("no weight changed; {files} changed")
                }
            };
        }
        let share = units::percent(self.changed, self.elements);
        let (changed, elements) = (units::count(self.changed), units::count(self.elements));
        let tensors = units::plural(self.tensors.len() as u64, "tensor", "tensors");
        let (patch, full) = (
            units::bytes(self.patch_bytes),
            units::bytes(self.full_bytes),
        );
        let ratio = units::ratio(self.full_bytes, self.patch_bytes);
        format!(
            "{share} changed ({changed} of {elements} elements, in {tensors}) · patch {patch} \
             ({ratio} smaller than {full})"
        )
    }

    fn tensor_table(&self) -> Table {
        let mut table = Table::new(&[
            "TENSOR", "CHANGE", ">CHANGED", ">SHARE", ">+1", ">-1", ">FURTHER", ">PATCH", ">EACH",
        ]);
        for tensor in &self.tensors {
            let [a, b, c, d, e, f, g] = tensor.counts.cells();
            table.row([
                printable(&tensor.name),
                tensor.kind.to_owned(),
                a,
                b,
                c,
                d,
                e,
                f,
                g,
            ]);
        }
        table
    }

    fn file_table(&self) -> Table {
        let mut table = Table::new(&["FILE", "CHANGE", ">SIZE"]);
        for file in &self.files {
            let change = file.change.name().to_owned();
            table.row([file.path.clone(), change, units::bytes(file.size)]);
        }
        table
    }

    fn layer_table(&self) -> Table {
        let mut table = Table::new(&[
            "LAYER", ">TENSORS", ">CHANGED", ">SHARE", ">+1", ">-1", ">FURTHER", ">PATCH", ">EACH",
        ]);
        for layer in &self.layers {
            let [a, b, c, d, e, f, g] = layer.counts.cells();
            let tensors = units::thousands(layer.tensors);
            table.row([printable(&layer.layer), tensors, a, b, c, d, e, f, g]);
        }
        table
    }
}

/// Run the command.
///
/// # Errors
///
/// If there are no such revisions, or what lies between them cannot be read.
pub fn run(args: &DiffArgs, session: &Session) -> Result<()> {
    let store = session.store()?;
    let RangeSpec { repo, from, to } = &args.range;
    let from = session.snapshot(&store, repo, from)?;
    let to = session.snapshot(&store, repo, to)?;
    let tensors = store.diff(&from, &to, &session.progress)?;
    session.answer(&difference(repo.to_string(), &from, &to, &tensors, args.by))
}

fn difference(
    repo: String,
    from: &Snapshot,
    to: &Snapshot,
    diffs: &[TensorDiff],
    by: Grouping,
) -> Difference {
    let mut total = Counts::default();
    // What was removed is no part of the version that is reached.
    let there = diffs
        .iter()
        .filter(|diff| diff.change != TensorChange::Removed);
    there.for_each(|diff| total.add(&Counts::of(diff)));
    let tensors = diffs.iter().map(|diff| ChangedTensor {
        name: diff.spec.name.clone(),
        path: diff.path.to_string(),
        kind: diff.change.name(),
        counts: Counts::of(diff),
    });
    let tensors: Vec<ChangedTensor> = tensors.collect();
    Difference {
        repo,
        from: from.commit.version.0,
        from_commit: from.id.to_string(),
        to: to.commit.version.0,
        to_commit: to.id.to_string(),
        elements: to.elements(),
        changed: total.changed,
        full_bytes: to.full_bytes(),
        patch_bytes: total.patch_bytes,
        layers: by_layer(&tensors, to),
        tensors,
        files: changed_files(Some(from), to),
        by: Some(by),
    }
}

/// The sums per layer, with all elements that the layer has in `to`, in the order of the layers' numbers.
fn by_layer(tensors: &[ChangedTensor], to: &Snapshot) -> Vec<ChangedLayer> {
    let mut elements: HashMap<&str, u64> = HashMap::new();
    for spec in to.schema.tensors() {
        *elements.entry(layer_of(&spec.name)).or_default() += spec.elements();
    }
    let mut layers: HashMap<&str, ChangedLayer> = HashMap::new();
    for tensor in tensors {
        let name = layer_of(&tensor.name);
        let layer = layers.entry(name).or_insert_with(|| ChangedLayer {
            layer: name.to_owned(),
            tensors: 0,
            counts: Counts::default(),
        });
        layer.tensors += 1;
        layer.counts.add(&tensor.counts);
    }
    for (name, layer) in &mut layers {
        layer.counts.elements = elements.get(name).copied().unwrap_or_default();
    }
    let mut layers: Vec<ChangedLayer> = layers.into_values().collect();
    layers.sort_by(|a, b| natural_order(&a.layer, &b.layer));
    layers
}

/// The layer that a tensor belongs to: its name up to the first number (`model.layers.3`), or without its last part.
fn layer_of(name: &str) -> &str {
    let mut end = 0;
    for part in name.split('.') {
        end += part.len();
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            return &name[..end];
        }
        end += 1;
    }
    name.rsplit_once('.').map_or(name, |(layer, _)| layer)
}

/// By parts, numbers by their value: `layers.9` comes before `layers.10`.
fn natural_order(a: &str, b: &str) -> std::cmp::Ordering {
    let key = |text: &str| -> Vec<(u64, String)> {
        let part = |part: &str| (part.parse().unwrap_or(u64::MAX), part.to_owned());
        text.split('.').map(part).collect()
    };
    key(a).cmp(&key(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_belong_to_layers() {
        for (name, layer) in [
            ("model.layers.3.self_attn.q_proj.weight", "model.layers.3"),
            ("model.embed_tokens.weight", "model.embed_tokens"),
            ("lm_head.weight", "lm_head"),
            ("scalar", "scalar"),
            ("h.12.mlp.experts.7.w", "h.12"),
        ] {
            assert_eq!(layer_of(name), layer);
        }
    }

    #[test]
    fn layers_are_in_the_order_of_their_numbers() {
        let mut layers = ["model.norm", "model.layers.10", "model.layers.9", "lm_head"];
        layers.sort_by(|a, b| natural_order(a, b));
        assert_eq!(
            layers,
            ["lm_head", "model.layers.9", "model.layers.10", "model.norm"]
        );
    }

    #[test]
    fn what_went_further_than_one_is_the_rest() {
        let counts = Counts {
            elements: 1000,
            changed: 100,
            plus_one: 60,
            minus_one: 30,
            patch_bytes: 162,
        };
        let cells = counts.cells();
        assert_eq!(cells[4], "10.00 %");
        assert_eq!(cells[6], "1.62 B");
    }
}
