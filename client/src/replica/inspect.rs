//! Finding out what a replica's files still hold, before anything relies on it.
//!
//! A file that looks as the last pull left it (`FileStat`) is taken at its word unless a full scan is asked for;
//! any other is read: header and plain files by their hash, tensors by their moments.

use super::folder::Folder;
use super::stamp::FileStat;
use super::state::Held;
use crate::arrival::tensor_name;
use crate::error::Result;
use crate::parts::{hash_range, moments_of_range, read_exact_at};
use deltaic_format::name::TreePath;
use deltaic_format::object::{TensorView, WeightFileEntry};
use deltaic_format::progress::Progress;
use deltaic_format::safetensors::LENGTH_PREFIX;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// What of a held version is there.
#[derive(Debug, Default)]
pub(super) struct Inspection {
    /// Per weight file, whether it is a regular file of the right length, so that its tensors lie where they should.
    pub weight_files: Vec<bool>,
    /// Per weight file, whether its header is right.
    pub headers: Vec<bool>,
    /// Per tensor, whether its content is right.
    pub tensors: Vec<bool>,
    /// Per other file, whether its content is right.
    pub files: Vec<bool>,
    /// How each file that is there looked before it was read.
    pub stats: BTreeMap<TreePath, FileStat>,
    /// What should be there and is not, in words.
    pub problems: Vec<String>,
}

/// Compare the files of `held` with what it says; read all of them in full if `scan_all`.
pub(super) fn inspect(
    folder: &Folder,
    held: &Held,
    scan_all: bool,
    progress: &dyn Progress,
) -> Result<Inspection> {
    let tree = &held.snapshot.tree;
    let mut inspection = Inspection {
        weight_files: vec![false; tree.weight_files.len()],
        headers: vec![false; tree.weight_files.len()],
        tensors: vec![false; tree.tensors.len()],
        files: vec![false; tree.files.len()],
        ..Inspection::default()
    };
    let mut suspects = BTreeMap::new();
    for (path, recorded) in &held.files {
        match folder.stat(path) {
            None => inspection.problems.push(format!("{path} is missing")),
            Some(stat) => {
                inspection.stats.insert(path.clone(), stat);
                suspects.insert(path, scan_all || *recorded != Some(stat));
            }
        }
    }
    let size = |path: &TreePath| inspection.stats.get(path).map_or(0, |stat| stat.size);
    let total = (suspects.iter()).filter(|s| *s.1).map(|s| size(s.0)).sum();
    progress.phase("checking", Some(total));
    inspect_weight_files(folder, held, &suspects, &mut inspection, progress)?;
    inspect_files(folder, held, &suspects, &mut inspection, progress)?;
    Ok(inspection)
}

fn inspect_weight_files(
    folder: &Folder,
    held: &Held,
    suspects: &BTreeMap<&TreePath, bool>,
    inspection: &mut Inspection,
    progress: &dyn Progress,
) -> Result<()> {
    let views = held.snapshot.tensors();
    let mut rest = &views[..];
    for (number, (spec, entry)) in held.snapshot.weight_files().enumerate() {
        let (tensors, after) = rest.split_at(spec.tensors.len());
        rest = after;
        let Some(&suspect) = suspects.get(&spec.path) else {
            continue;
        };
        let first = views.len() - after.len() - tensors.len();
        let found = if suspect {
            let expected = entry.data_offset() + spec.data_len();
            let size = inspection.stats.get(&spec.path).map_or(0, |stat| stat.size);
            if size != expected {
                let problem = format!("{} has {size} bytes instead of {expected}", spec.path);
                inspection.problems.push(problem);
                continue;
            }
            scan_weight_file(folder, entry, tensors, &spec.path, progress)?
        } else {
            (true, vec![true; tensors.len()])
        };
        inspection.weight_files[number] = true;
        inspection.headers[number] = found.0;
        if !found.0 {
            (inspection.problems).push(format!("the header of {}", spec.path));
        }
        for (view, good) in tensors.iter().zip(&found.1) {
            if !good {
                inspection.problems.push(tensor_name(view));
            }
        }
        inspection.tensors[first..first + tensors.len()].copy_from_slice(&found.1);
    }
    Ok(())
}

/// Whether the header, and each tensor, of a weight file of the right length is right.
pub(super) fn scan_weight_file(
    folder: &Folder,
    entry: &WeightFileEntry,
    tensors: &[TensorView<'_>],
    path: &TreePath,
    progress: &dyn Progress,
) -> Result<(bool, Vec<bool>)> {
    let (file, location) = folder.open(path, false)?;
    let header = header_is((&file, &location), entry, progress)?;
    let tensors = tensors
        .par_iter()
        .map_init(Vec::new, |buffer, view| {
            let range = view.offset..view.offset + view.spec.byte_len();
            let moments =
                moments_of_range((&file, &location), range, view.spec.class, buffer, progress)?;
            Ok(moments == view.entry.moments)
        })
        .collect::<Result<_>>()?;
    Ok((header, tensors))
}

/// Whether a weight file of the right length begins with the right length and header.
pub(super) fn header_is(
    file: (&File, &Path),
    entry: &WeightFileEntry,
    progress: &dyn Progress,
) -> Result<bool> {
    let mut prefix = [0; LENGTH_PREFIX as usize];
    read_exact_at(file.0, file.1, 0, &mut prefix)?;
    progress.advance(LENGTH_PREFIX);
    let range = LENGTH_PREFIX..entry.data_offset();
    let hash = hash_range(file, range, &mut Vec::new(), progress)?;
    Ok(u64::from_le_bytes(prefix) == entry.header_len && hash == entry.header.0)
}

fn inspect_files(
    folder: &Folder,
    held: &Held,
    suspects: &BTreeMap<&TreePath, bool>,
    inspection: &mut Inspection,
    progress: &dyn Progress,
) -> Result<()> {
    let mut buffer = Vec::new();
    for (number, entry) in held.snapshot.files().iter().enumerate() {
        let Some(&suspect) = suspects.get(&entry.path) else {
            continue;
        };
        let mut good = true;
        if suspect {
            let size = inspection
                .stats
                .get(&entry.path)
                .map_or(0, |stat| stat.size);
            let (file, location) = folder.open(&entry.path, false)?;
            good = size == entry.size
                && hash_range((&file, &location), 0..size, &mut buffer, progress)? == entry.id.0;
        }
        if !good {
            inspection.problems.push(entry.path.to_string());
        }
        inspection.files[number] = good;
    }
    Ok(())
}
