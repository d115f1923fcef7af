//! `deltaic diff`: what changed between two versions.

use crate::arguments::{Ends, RangeTarget, RevisionOrNone, two_ends};
use crate::files::{ChangedFile, changed_files};
use crate::output::{Answer, Page};
use crate::report::{Failure, Result};
use crate::session::Session;
use crate::table::Table;
use crate::units;
use crate::versions::{printable, shape_text};
use clap::{Args, ValueEnum};
use deltaic_format::answers::{TensorChange, TensorDiff};
use deltaic_format::object::{Counterparts, Snapshot};
use deltaic_format::revision::Selector;
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
    target: RangeTarget,
    /// The revisions may be given apart, as in `acme/policy v41 v42`.
    #[arg(value_name = "A", hide = true)]
    first: Option<Ends>,
    /// The second of them.
    #[arg(value_name = "B", hide = true)]
    second: Option<Selector>,
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
    /// Elements that are others, those of tensors that were added or retyped among them, as in a commit.
    changed: u64,
    full_bytes: u64,
    patch_bytes: u64,
    /// Tensors that have no counterpart to compare with, and their elements.
    added: Unlike,
    removed: Unlike,
    retyped: Unlike,
    /// Tensors that lie in another file than before.
    moved: u64,
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
    /// Dtype and shape, and what they were where that is not the same.
    dtype: &'static str,
    shape: Vec<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from_dtype: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from_shape: Option<Vec<u64>>,
    #[serde(flatten)]
    counts: Counts,
}

impl ChangedTensor {
    /// How it changed, in a word: with a dtype or shape that is another one.
    fn change(&self) -> String {
        match (self.from_dtype, &self.from_shape) {
            (Some(from), _) => format!("{from}→{}", self.dtype),
            (None, Some(from)) => format!("{}→{}", shape_text(from), shape_text(&self.shape)),
            (None, None) => self.kind.to_owned(),
        }
    }
}

/// Tensors that have no counterpart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
struct Unlike {
    tensors: u64,
    elements: u64,
}

impl Unlike {
    fn of(diffs: &[TensorDiff], change: TensorChange) -> Self {
        let mut unlike = Self::default();
        for diff in diffs.iter().filter(|diff| diff.change == change) {
            unlike.tensors += 1;
            unlike.elements += diff.spec.elements();
        }
        unlike
    }
}

/// The tensors of a layer that changed in the same way.
#[derive(Serialize)]
struct ChangedLayer {
    layer: String,
    kind: &'static str,
    #[serde(skip)]
    change: String,
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

    /// Cells of what changed in a way of this `kind`: what cannot be compared has no shifts to tell of.
    fn cells_of(&self, kind: &str) -> [String; 7] {
        if kind == TensorChange::Changed.name() {
            return self.cells();
        }
        let mut cells = [const { String::new() }; 7];
        cells[0] = units::count(self.elements);
        if kind != TensorChange::Removed.name() {
            cells[5] = units::bytes(self.patch_bytes);
        }
        cells
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
        if self.moved > 0 {
            let (tensors, are) = (
                units::plural(self.moved, "tensor", "tensors"),
                if self.moved == 1 { "is" } else { "are" },
            );
            page.line(&format!("{tensors} {are} in other files now"))?;
        }
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
        let patched = self.changed - self.added.elements - self.retyped.elements;
        let whole = self.whole_words();
        let tensors = self.tensors.iter();
        let count = tensors
            .filter(|t| t.kind == TensorChange::Changed.name())
            .count() as u64;
        if count == 0 {
            return match self.patch_bytes {
                0 => whole,
                bytes => format!("{whole} · {} sent", units::bytes(bytes)),
            };
        }
        let share = units::percent(patched, self.elements);
        let (changed, elements) = (units::count(patched), units::count(self.elements));
        let tensors = units::plural(count, "tensor", "tensors");
        let whole = match whole.as_str() {
            "" => String::new(),
            whole => format!("; {whole}"),
        };
        let (patch, full) = (
            units::bytes(self.patch_bytes),
            units::bytes(self.full_bytes),
        );
        let ratio = units::ratio(self.full_bytes, self.patch_bytes);
        format!(
            "{share} changed ({changed} of {elements} elements, in {tensors}){whole} · patch {patch} \
             ({ratio} smaller than {full})"
        )
    }

    /// `2 tensors added (1.5 M elements), 1 tensor removed (512 elements)`, or nothing.
    fn whole_words(&self) -> String {
        let kinds = [
            (self.added, "added"),
            (self.removed, "removed"),
            (self.retyped, "retyped"),
        ];
        let kinds = kinds.iter().filter(|(unlike, _)| unlike.tensors > 0);
        let kinds = kinds.map(|(unlike, word)| {
            let tensors = units::plural(unlike.tensors, "tensor", "tensors");
            format!(
                "{tensors} {word} ({} elements)",
                units::count(unlike.elements)
            )
        });
        kinds.collect::<Vec<_>>().join(", ")
    }

    fn tensor_table(&self) -> Table {
        let mut table = Table::new(&[
            "TENSOR", "CHANGE", ">CHANGED", ">SHARE", ">+1", ">-1", ">FURTHER", ">PATCH", ">EACH",
        ]);
        for tensor in &self.tensors {
            let [a, b, c, d, e, f, g] = tensor.counts.cells_of(tensor.kind);
            table.row([
                printable(&tensor.name),
                tensor.change(),
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
            "LAYER", "CHANGE", ">TENSORS", ">CHANGED", ">SHARE", ">+1", ">-1", ">FURTHER",
            ">PATCH", ">EACH",
        ]);
        for layer in &self.layers {
            let [a, b, c, d, e, f, g] = layer.counts.cells_of(layer.kind);
            let tensors = units::thousands(layer.tensors);
            let (name, change) = (printable(&layer.layer), layer.change.clone());
            table.row([name, change, tensors, a, b, c, d, e, f, g]);
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
    let repo = &args.target.repo;
    let (from, to) = two_ends(&args.target, args.first.as_ref(), args.second.as_ref())
        .map_err(|what| Failure::usage(what).hint("see `deltaic diff --help`"))?;
    let RevisionOrNone::Revision(from) = from else {
        let hint = format!("see what the first version holds with `deltaic show {repo}@v0`");
        return Err(
            Failure::usage("diff compares two versions, and none is no version").hint(hint),
        );
    };
    let main = Selector::default();
    let repositories = session.repositories()?;
    let from = session.snapshot(&repositories, repo, from)?;
    let to = session.snapshot(&repositories, repo, to.unwrap_or(&main))?;
    let tensors = repositories.diff(repo, &from, &to)?;
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
    let old = Counterparts::new(from, &to.schema);
    let tensors = diffs.iter().map(|diff| {
        let gone = diff.change == TensorChange::Removed;
        let before = old.of(&diff.path, &diff.spec).filter(|_| !gone);
        let (dtype, shape) = (diff.spec.dtype, &diff.spec.shape);
        ChangedTensor {
            name: diff.spec.name.clone(),
            path: diff.path.to_string(),
            kind: diff.change.name(),
            dtype: dtype.name(),
            shape: shape.clone(),
            from_dtype: before
                .map(|before| before.spec.dtype.name())
                .filter(|&before| before != dtype.name()),
            from_shape: before
                .map(|before| before.spec.shape.clone())
                .filter(|before| before != shape),
            counts: Counts::of(diff),
        }
    });
    let moved = (to.tensors().iter())
        .filter(|view| {
            let before = old.of(view.path, view.spec);
            before.is_some_and(|before| before.path != view.path)
        })
        .count() as u64;
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
        added: Unlike::of(diffs, TensorChange::Added),
        removed: Unlike::of(diffs, TensorChange::Removed),
        retyped: Unlike::of(diffs, TensorChange::Retyped),
        moved,
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
    let mut layers: HashMap<(&str, String), ChangedLayer> = HashMap::new();
    for tensor in tensors {
        let (name, change) = (layer_of(&tensor.name), tensor.change());
        let layer = (layers.entry((name, change.clone()))).or_insert_with(|| ChangedLayer {
            layer: name.to_owned(),
            kind: tensor.kind,
            change,
            tensors: 0,
            counts: Counts::default(),
        });
        layer.tensors += 1;
        layer.counts.add(&tensor.counts);
    }
    let changed = TensorChange::Changed.name();
    for ((name, _), layer) in layers.iter_mut().filter(|(_, layer)| layer.kind == changed) {
        layer.counts.elements = elements.get(name).copied().unwrap_or_default();
    }
    let mut layers: Vec<ChangedLayer> = layers.into_values().collect();
    layers.sort_by(|a, b| {
        let by_change = || (a.kind, &a.change).cmp(&(b.kind, &b.change));
        natural_order(&a.layer, &b.layer).then_with(by_change)
    });
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
        assert_eq!(counts.cells_of("changed"), cells);
        assert_eq!(cells[4], "10.00 %");
        assert_eq!(cells[6], "1.62 B");
        let added = ["1,000", "", "", "", "", "162 B", ""].map(str::to_owned);
        assert_eq!(counts.cells_of("added"), added);
        let removed = ["1,000", "", "", "", "", "", ""].map(str::to_owned);
        assert_eq!(counts.cells_of("removed"), removed);
    }
}
