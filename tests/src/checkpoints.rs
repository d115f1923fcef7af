//! Checkpoint folders: safetensors files to write and to read, and the real ones that tests run on.

use crate::places;
use deltaic_format::object::TensorSpec;
use deltaic_format::{Dtype, safetensors};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// A tensor to be written.
#[derive(Debug, Clone)]
pub struct NamedTensor {
    /// Its name.
    pub name: String,
    /// Its dtype.
    pub dtype: Dtype,
    /// Its dimensions.
    pub shape: Vec<u64>,
    /// Its bytes.
    pub content: Vec<u8>,
}

impl NamedTensor {
    /// A tensor of one dimension that holds `content`.
    pub fn flat(name: &str, dtype: Dtype, content: Vec<u8>) -> Self {
        let values = content.len() as u64 * 8 / dtype.bits();
        Self {
            name: name.to_owned(),
            dtype,
            shape: vec![values],
            content,
        }
    }
}

/// The beginning of a safetensors file with tensors of these names, dtypes and shapes in this order, as Python's package
/// would write it.
fn header<'a>(tensors: impl Iterator<Item = (&'a str, Dtype, &'a [u64])>) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    header.insert(
        "__metadata__".to_owned(),
        serde_json::json!({"format": "pt"}),
    );
    let mut offset = 0;
    for (name, dtype, shape) in tensors {
        let end = offset + shape.iter().product::<u64>() * dtype.bits() / 8;
        let entry = serde_json::json!({
            "dtype": dtype.name(),
            "shape": shape,
            "data_offsets": [offset, end],
        });
        header.insert(name.to_owned(), entry);
        offset = end;
    }
    let mut header = serde_json::Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file
}

/// A safetensors file of `tensors` in this order.
pub fn safetensors_file(tensors: &[NamedTensor]) -> Vec<u8> {
    let specs = tensors.iter();
    let mut file = header(specs.map(|t| (t.name.as_str(), t.dtype, t.shape.as_slice())));
    tensors.iter().for_each(|t| file.extend(&t.content));
    file
}

/// Write a safetensors file of `tensors` tensors of `len` zero bytes each, which takes no room on the disk. Returns where
/// the first tensor begins.
///
/// # Errors
///
/// If the file cannot be written.
pub fn write_sparse(path: &Path, dtype: Dtype, tensors: u64, len: u64) -> io::Result<u64> {
    let names: Vec<String> = (0..tensors).map(|i| format!("layers.{i}.weight")).collect();
    let shape = [len * 8 / dtype.bits()];
    let begin = header(names.iter().map(|name| (name.as_str(), dtype, &shape[..])));
    fs::write(path, &begin)?;
    let data = begin.len() as u64;
    fs::File::options()
        .write(true)
        .open(path)?
        .set_len(data + tensors * len)?;
    Ok(data)
}

/// Write a checkpoint folder: weight files by path below it, and a config.
///
/// # Errors
///
/// If a file cannot be written.
pub fn write_folder(folder: &Path, files: &[(&str, Vec<NamedTensor>)]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, tensors) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(path, safetensors_file(tensors))?;
    }
    fs::write(
        folder.join("config.json"),
        "{\n  \"model_type\": \"llama\"\n}\n",
    )
}

/// A tensor that was read.
#[derive(Debug, Clone)]
pub struct TensorContent {
    /// Name, dtype, shape.
    pub spec: TensorSpec,
    /// Its bytes.
    pub content: Vec<u8>,
}

/// All tensors of a checkpoint folder in the order of a tree: by file name, then as their data lies.
///
/// # Errors
///
/// If a file cannot be read or is no safetensors file.
pub fn read_folder(folder: &Path) -> io::Result<Vec<TensorContent>> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|e| e == "safetensors"));
    paths.sort();
    let mut tensors = Vec::new();
    for path in paths {
        let file = fs::read(&path)?;
        let invalid = |why: String| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{}: {why}", path.display()),
            )
        };
        let Some((prefix, rest)) = file.split_first_chunk() else {
            return Err(invalid("too short".to_owned()));
        };
        let length = safetensors::header_len(*prefix, file.len() as u64)
            .map_err(|e| invalid(e.to_string()))?;
        let (header, mut data) = rest.split_at(length as usize);
        let layout = safetensors::parse_header(header, data.len() as u64)
            .map_err(|e| invalid(e.to_string()))?;
        for spec in layout.tensors {
            let (content, after) = data.split_at(spec.byte_len() as usize);
            data = after;
            tensors.push(TensorContent {
                spec,
                content: content.to_vec(),
            });
        }
    }
    Ok(tensors)
}

/// Say that a test does not run; printed even where the output of passing tests is not.
pub fn skipped(what: &str, why: &str) {
    // Nothing is lost if this cannot be printed.
    let _ = writeln!(io::stderr(), "skipped: {what}: {why}");
}

/// The expanded versions of a data set: one folder each, and what is known about them.
#[derive(Debug, Clone)]
pub struct RealCheckpoints {
    /// `v000`, `v001`, …
    pub versions: Vec<PathBuf>,
    /// `facts.json`.
    pub facts: serde_json::Value,
}

/// The large data set `set`, expanded; where the data is not there, says that `what` is skipped.
///
/// # Panics
///
/// If the data is there but cannot be expanded.
pub fn large(set: &str, what: &str) -> Option<RealCheckpoints> {
    let Some(data) = places::shared_data() else {
        skipped(
            what,
            "the real checkpoints are not there (../shared/data beside the workspace)",
        );
        return None;
    };
    Some(expanded(&data.join("expand.py"), &data.join(set)))
}

/// The small data set of the repository, expanded.
///
/// # Panics
///
/// If it cannot be expanded.
pub fn small() -> RealCheckpoints {
    let set = places::data().join("policy-small");
    expanded(&set.join("expand.py"), &set)
}

/// As [`small`]; where there is no Python to expand it with, says that `what` is skipped.
///
/// # Panics
///
/// If there is one and it cannot be expanded.
pub fn small_with_python(what: &str) -> Option<RealCheckpoints> {
    let python = Command::new("python3").args(["-c", "import lzma"]).output();
    if python.is_ok_and(|output| output.status.success()) {
        return Some(small());
    }
    skipped(what, "there is no python3 to expand the real checkpoints");
    None
}

/// Expand `set` with its script unless that was done before.
fn expanded(script: &Path, set: &Path) -> RealCheckpoints {
    // Tests of one process take turns; those of another one find the finished folder or make their own.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let name = set.file_name().expect("a data set has a name");
    let folder = places::kept("checkpoints").join(name);
    let facts = fs::read(set.join("facts.json")).expect("facts belong to a data set");
    let sums = fs::read(set.join("SHA256SUMS")).expect("sums belong to a data set");
    if fs::read(folder.join("SHA256SUMS")).ok().as_deref() != Some(sums.as_slice()) {
        let unfinished = folder.with_extension(std::process::id().to_string());
        fs::create_dir_all(&unfinished).expect("the scratch folder can be made");
        let status = Command::new("python3")
            .args([script, set, &unfinished])
            .status()
            .expect("python3 runs");
        assert!(status.success(), "{} failed", script.display());
        fs::write(unfinished.join("SHA256SUMS"), sums).expect("the scratch folder can be written");
        // A folder of an older data set is in the way; one of the same was made by another process.
        let _ = fs::remove_dir_all(&folder);
        let _ = fs::rename(&unfinished, &folder);
    }
    let mut versions: Vec<PathBuf> = fs::read_dir(&folder)
        .expect("the expanded set is there")
        .map(|entry| entry.expect("it can be listed").path())
        .filter(|path| path.is_dir())
        .collect();
    versions.sort();
    RealCheckpoints {
        versions,
        facts: serde_json::from_slice(&facts).expect("facts are JSON"),
    }
}
