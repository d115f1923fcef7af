//! Verifying a replica: every byte that it holds against the ids of its version.

use super::folder::Folder;
use super::inspect::header_is;
use super::state::Held;
use crate::arrival::tensor_name;
use crate::disk::{INTERNAL, LOST_AND_FOUND};
use crate::error::{At, Result};
use crate::parts::{check_cancelled, hash_range};
use deltaic_format::name::TreePath;
use deltaic_format::object::{TensorView, WeightFileEntry};
use deltaic_format::progress::Progress;
use rayon::prelude::*;
use std::fs;
use std::path::Path;

/// One thing that is not as the version says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// `"tensor"`, `"header"` or `"file"`; `"extra"` for a file that the version does not have, which is no failure.
    pub kind: &'static str,
    /// The tensor or file.
    pub object: String,
    /// What is wrong with it.
    pub what: String,
}

/// What a verification found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VerifyReport {
    /// Everything that is not as the version says.
    pub problems: Vec<Problem>,
}

impl VerifyReport {
    /// Whether all that the version has is there and right.
    pub fn is_ok(&self) -> bool {
        self.problems.iter().all(|problem| problem.kind == "extra")
    }

    fn add(&mut self, kind: &'static str, object: impl ToString, what: impl ToString) {
        self.problems.push(Problem {
            kind,
            object: object.to_string(),
            what: what.to_string(),
        });
    }
}

/// Hash everything in `folder` that `held` says is there.
pub(super) fn verify(
    folder: &Folder,
    held: &Held,
    progress: &dyn Progress,
) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    let sizes = held.files.keys().filter_map(|path| folder.stat(path));
    progress.phase("verifying", Some(sizes.map(|stat| stat.size).sum()));
    let views = held.snapshot.tensors();
    let mut rest = &views[..];
    for (spec, entry) in held.snapshot.weight_files() {
        let (tensors, after) = rest.split_at(spec.tensors.len());
        rest = after;
        let expected = entry.data_offset() + spec.data_len();
        if held.files.contains_key(&spec.path)
            && has_length(folder, &spec.path, expected, &mut report)
        {
            verify_weight_file(folder, entry, tensors, &spec.path, &mut report, progress)?;
        }
    }
    let mut buffer = Vec::new();
    for entry in held.snapshot.files() {
        if held.files.contains_key(&entry.path)
            && has_length(folder, &entry.path, entry.size, &mut report)
        {
            let (file, location) = folder.open(&entry.path, false)?;
            let hash = hash_range((&file, &location), 0..entry.size, &mut buffer, progress)?;
            if hash != entry.id.0 {
                report.add("file", &entry.path, "its content is not the version's");
            }
        }
    }
    find_extra(folder.root(), folder.root(), held, &mut report)?;
    Ok(report)
}

/// Whether a file is there with its length; if not, that is a problem.
fn has_length(folder: &Folder, path: &TreePath, expected: u64, report: &mut VerifyReport) -> bool {
    match folder.stat(path) {
        None => report.add("file", path, "it is missing"),
        Some(stat) if stat.size == expected => return true,
        Some(stat) => {
            let what = format!("it has {} bytes instead of {expected}", stat.size);
            report.add("file", path, what);
        }
    }
    false
}

fn verify_weight_file(
    folder: &Folder,
    entry: &WeightFileEntry,
    tensors: &[TensorView<'_>],
    path: &TreePath,
    report: &mut VerifyReport,
    progress: &dyn Progress,
) -> Result<()> {
    let (file, location) = folder.open(path, false)?;
    let file = (&file, location.as_path());
    if !header_is(file, entry, progress)? {
        report.add("header", path, "it is not the version's");
    }
    let bad = tensors
        .par_iter()
        .map_init(Vec::new, |buffer, view| {
            let range = view.offset..view.offset + view.spec.byte_len();
            let hash = hash_range(file, range, buffer, progress)?;
            Ok((hash != view.entry.id.0).then(|| tensor_name(view)))
        })
        .collect::<Result<Vec<_>>>()?;
    for tensor in bad.into_iter().flatten() {
        report.add("tensor", tensor, "its content is not the version's");
    }
    check_cancelled(progress)
}

/// Report the files in `within` that the version does not have.
fn find_extra(root: &Path, within: &Path, held: &Held, report: &mut VerifyReport) -> Result<()> {
    for entry in fs::read_dir(within).at(within)? {
        let entry = entry.at(within)?;
        let location = entry.path();
        let name = entry.file_name();
        if within == root && (name == INTERNAL || name == LOST_AND_FOUND) {
            continue;
        }
        if entry.file_type().at(&location)?.is_dir() {
            find_extra(root, &location, held, report)?;
            continue;
        }
        let path = location.strip_prefix(root).unwrap_or(&location);
        let known = path.to_str().and_then(|text| TreePath::new(text).ok());
        if !known.is_some_and(|path| held.files.contains_key(&path)) {
            report.add(
                "extra",
                path.display(),
                "the version does not have this file",
            );
        }
    }
    Ok(())
}
