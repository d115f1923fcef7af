//! `deltaic show`: one version.

use crate::output::{Answer, Page};
use crate::report::Result;
use crate::session::{Session, branch_of};
use crate::table::Table;
use crate::units;
use crate::versions::{
    Change, VersionName, files_changed, files_words, name_of, printable, shape_text,
};
use clap::Args;
use deltaic_format::answers::{TensorStats, VersionStats};
use deltaic_format::name::TreePath;
use deltaic_format::object::{Snapshot, TensorView};
use deltaic_format::revision::RevisionSpec;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;

/// Tensors that are listed to people who did not ask for more.
const LISTED: usize = 40;

/// Show one version: what was said of it, what it holds, what changed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deltaic show acme/policy                        the newest version of main
  deltaic show acme/policy@step=1200 -v           every tensor of that step
  deltaic show acme/policy@v42:model.safetensors  one file of it")]
pub struct ShowArgs {
    /// Repository, revision and, where only part of it matters, a file or folder.
    #[arg(value_name = "REPO[@REV][:PATH]", value_parser = crate::arguments::revision)]
    revision: RevisionSpec,
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    name: VersionName,
    parents: Vec<String>,
    time: String,
    message: String,
    meta: BTreeMap<String, String>,
    #[serde(flatten)]
    change: Change,
    /// Files that differ from the first parent's in more than tensors.
    files_changed: u64,
    /// Known only when a commit is made.
    new_bytes: Option<u64>,
    files: Vec<ShownFile>,
    tensors: Vec<ShownTensor>,
    #[serde(skip)]
    time_ms: i64,
    #[serde(skip)]
    every_tensor: bool,
}

#[derive(Serialize)]
struct ShownFile {
    path: String,
    size: u64,
    tensors: usize,
}

#[derive(Serialize)]
struct ShownTensor {
    name: String,
    path: String,
    dtype: &'static str,
    shape: Vec<u64>,
    id: String,
    elements: u64,
    changed: u64,
    patch_bytes: u64,
}

impl Answer for Shown {
    fn print(&self, page: &mut Page<'_>) -> io::Result<()> {
        let title = format!("{} · {}", self.name, self.change.words(self.name.version));
        page.line(&page.paint.yellow(&title))?;
        if let Some(files) = files_words(self.name.version, self.files_changed) {
            page.line(&files)?;
        }
        page.field("Commit", self.name.commit)?;
        for parent in &self.parents {
            page.field("Parent", parent)?;
        }
        page.field("Time", units::local_time(self.time_ms))?;
        for line in self.message.lines() {
            page.field("Message", printable(line))?;
        }
        for (key, value) in &self.meta {
            page.field("Meta", printable(&format!("{key}={value}")))?;
        }
        page.line("")?;
        self.file_table().print(page)?;
        if !self.tensors.is_empty() {
            page.line("")?;
        }
        self.tensor_table().print(page)?;
        match self.tensors.len().saturating_sub(self.listed()) {
            0 => Ok(()),
            more => {
                let more = units::plural(more as u64, "more tensor", "more tensors");
                page.line(&page.paint.dim(&format!("and {more}: -v lists all")))
            }
        }
    }
}

impl Shown {
    fn listed(&self) -> usize {
        if self.every_tensor {
            usize::MAX
        } else {
            LISTED
        }
    }

    fn file_table(&self) -> Table {
        let mut table = Table::new(&["FILE", ">SIZE", ">TENSORS"]);
        for file in &self.files {
            let tensors = match file.tensors {
                0 => String::new(),
                count => units::thousands(count as u64),
            };
            table.row([file.path.clone(), units::bytes(file.size), tensors]);
        }
        table
    }

    fn tensor_table(&self) -> Table {
        let listed = self.tensors.iter().take(self.listed());
        if self.parents.is_empty() {
            // There is nothing to compare with.
            let mut table = Table::new(&["TENSOR", "DTYPE", "SHAPE", ">ELEMENTS", ">STORED"]);
            for tensor in listed {
                table.row([
                    printable(&tensor.name),
                    tensor.dtype.to_owned(),
                    shape_text(&tensor.shape),
                    units::count(tensor.elements),
                    units::bytes(tensor.patch_bytes),
                ]);
            }
            return table;
        }
        let mut table = Table::new(&["TENSOR", "DTYPE", "SHAPE", ">CHANGED", ">SHARE", ">PATCH"]);
        for tensor in listed {
            table.row([
                printable(&tensor.name),
                tensor.dtype.to_owned(),
                shape_text(&tensor.shape),
                units::count(tensor.changed),
                units::percent(tensor.changed, tensor.elements),
                units::bytes(tensor.patch_bytes),
            ]);
        }
        table
    }
}

/// Run the command.
///
/// # Errors
///
/// If there is no such revision or path, or it cannot be read.
pub fn run(args: &ShowArgs, session: &Session) -> Result<()> {
    let repositories = session.repositories()?;
    let RevisionSpec {
        repo,
        selector,
        path,
    } = &args.revision;
    let snapshot = session.snapshot_of(&repositories, &args.revision)?;
    let stats = repositories.version_stats(repo, &snapshot)?;
    let branch = branch_of(&repositories, repo, selector)?;
    let wanted = |file: &TreePath| path.as_ref().is_none_or(|path| file.lies_in(path));
    let commit = &snapshot.commit;
    session.answer(&Shown {
        name: name_of(repo, branch, snapshot.id, commit),
        parents: commit.parents.iter().map(ToString::to_string).collect(),
        time: units::rfc3339(commit.time_ms),
        message: commit.message.clone(),
        meta: commit.meta.clone(),
        change: Change::from(&stats),
        files_changed: files_changed(&repositories, repo, &snapshot)?,
        new_bytes: stats.new_bytes,
        files: shown_files(&snapshot, wanted),
        tensors: shown_tensors(&snapshot, &stats, wanted),
        time_ms: commit.time_ms,
        every_tensor: session.settings.verbose,
    })
}

fn shown_files(snapshot: &Snapshot, wanted: impl Fn(&TreePath) -> bool) -> Vec<ShownFile> {
    let weights = snapshot.weight_files().map(|(spec, entry)| {
        let size = entry.data_offset() + spec.data_len();
        (&spec.path, size, spec.tensors.len())
    });
    let others = snapshot
        .files()
        .iter()
        .map(|file| (&file.path, file.size, 0));
    let files = weights.chain(others).filter(|(path, ..)| wanted(path));
    files
        .map(|(path, size, tensors)| ShownFile {
            path: path.to_string(),
            size,
            tensors,
        })
        .collect()
}

fn shown_tensors(
    snapshot: &Snapshot,
    stats: &VersionStats,
    wanted: impl Fn(&TreePath) -> bool,
) -> Vec<ShownTensor> {
    let show = |(view, stats): (TensorView<'_>, &TensorStats)| ShownTensor {
        name: view.spec.name.clone(),
        path: view.path.to_string(),
        dtype: view.spec.dtype.name(),
        shape: view.spec.shape.clone(),
        id: view.entry.id.to_string(),
        elements: view.spec.elements(),
        changed: stats.changed,
        patch_bytes: stats.patch_bytes,
    };
    let tensors = snapshot.tensors().into_iter().zip(&stats.tensors);
    tensors
        .filter(|(view, _)| wanted(view.path))
        .map(show)
        .collect()
}
