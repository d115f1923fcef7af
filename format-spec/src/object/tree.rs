//! Tree: the content of one version.

use super::{CanonicalObject, MAX_FILES, MAX_STRING, MAX_TENSORS};
use crate::bytes::{ByteReader, put_string, put_varint};
use crate::error::{FormatError, Result};
use crate::ids::{FileId, PatchId, SchemaId, TensorId, TreeId};
use crate::moments::Moments;
use crate::name::TreePath;

const WHAT: &str = "tree";

/// Largest safetensors header, as in the `safetensors` package.
const MAX_HEADER: u64 = 100_000_000;

/// The part of a weight file that is no tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WeightFileEntry {
    /// Its safetensors header, verbatim, without the 8-byte length.
    pub header: FileId,
    /// Length of the header in bytes.
    pub header_len: u64,
}

/// A tensor's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorEntry {
    /// Hash of its bytes.
    pub id: TensorId,
    /// Its moments, in its class.
    pub moments: Moments,
    /// The patch from the first parent's content of this tensor, where it changed and has one.
    pub patch: Option<PatchId>,
}

/// Whether a file may be executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileMode {
    /// It may not.
    Plain = 0,
    /// It may.
    Executable = 1,
}

/// A file that is no weight file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FileEntry {
    /// Where it lies.
    pub path: TreePath,
    /// Whether it may be executed.
    pub mode: FileMode,
    /// Its length in bytes.
    pub size: u64,
    /// Hash of its bytes.
    pub id: FileId,
}

/// The content of one version.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tree {
    /// Names, dtypes and shapes.
    pub schema: SchemaId,
    /// Per weight file of the schema, what is no tensor.
    pub weight_files: Vec<WeightFileEntry>,
    /// Per tensor of the schema, its content.
    pub tensors: Vec<TensorEntry>,
    /// All other files, ascending by path.
    pub files: Vec<FileEntry>,
}

impl CanonicalObject for Tree {
    const WHAT: &'static str = WHAT;
    const CONTEXT: &'static str = "deltaic 2026-11-30 tree v1";
    type Id = TreeId;

    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.schema.0);
        put_varint(out, self.weight_files.len() as u64);
        for file in &self.weight_files {
            out.extend(file.header.0);
            put_varint(out, file.header_len);
        }
        put_varint(out, self.tensors.len() as u64);
        for tensor in &self.tensors {
            out.extend(tensor.id.0);
            out.extend(tensor.moments.l.to_le_bytes());
            out.extend(tensor.moments.q.to_le_bytes());
        }
        for eight in self.tensors.chunks(8) {
            let bits = eight.iter().enumerate();
            out.push(bits.fold(0, |byte, (i, t)| byte | u8::from(t.patch.is_some()) << i));
        }
        for patch in self.tensors.iter().filter_map(|t| t.patch) {
            out.extend(patch.0);
        }
        put_varint(out, self.files.len() as u64);
        for file in &self.files {
            put_string(out, file.path.as_str());
            out.push(file.mode as u8);
            put_varint(out, file.size);
            out.extend(file.id.0);
        }
    }

    fn get(reader: &mut ByteReader<'_>) -> Result<Self> {
        let schema = SchemaId(reader.array()?);
        let count = reader.count("number of weight files", MAX_FILES, 33)?;
        let mut weight_files = Vec::with_capacity(count);
        for _ in 0..count {
            weight_files.push(WeightFileEntry {
                header: FileId(reader.array()?),
                header_len: reader.varint_up_to("length of a header", MAX_HEADER)?,
            });
        }
        Ok(Self {
            schema,
            weight_files,
            tensors: get_tensors(reader)?,
            files: get_files(reader)?,
        })
    }

    fn id_from(hash: [u8; 32]) -> TreeId {
        TreeId(hash)
    }
}

fn get_tensors(reader: &mut ByteReader<'_>) -> Result<Vec<TensorEntry>> {
    let count = reader.count("number of tensors", MAX_TENSORS, 48)?;
    let mut tensors = Vec::with_capacity(count);
    for _ in 0..count {
        tensors.push(TensorEntry {
            id: TensorId(reader.array()?),
            moments: Moments {
                l: reader.u64()?,
                q: reader.u64()?,
            },
            patch: None,
        });
    }
    let listed = reader.bytes(count.div_ceil(8))?;
    for (i, byte) in listed.iter().enumerate() {
        for bit in (0..8).filter(|bit| byte >> bit & 1 == 1) {
            let Some(tensor) = tensors.get_mut(8 * i + bit) else {
                return Err(FormatError::invalid(
                    WHAT,
                    "a patch id of a tensor past the last",
                ));
            };
            tensor.patch = Some(PatchId(reader.array()?));
        }
    }
    Ok(tensors)
}

fn get_files(reader: &mut ByteReader<'_>) -> Result<Vec<FileEntry>> {
    let count = reader.count("number of files", MAX_FILES, 35)?;
    let mut files: Vec<FileEntry> = Vec::with_capacity(count);
    for _ in 0..count {
        let file = FileEntry {
            path: TreePath::new(reader.string("path", MAX_STRING)?)?,
            mode: match reader.u8()? {
                0 => FileMode::Plain,
                1 => FileMode::Executable,
                _ => return Err(FormatError::invalid(WHAT, "an unknown file mode")),
            },
            size: reader.varint()?,
            id: FileId(reader.array()?),
        };
        if files.last().is_some_and(|last| last.path >= file.path) {
            return Err(FormatError::invalid(WHAT, "files are not in order"));
        }
        files.push(file);
    }
    Ok(files)
}
