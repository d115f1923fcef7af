//! The files of an uploaded version: safetensors headers, and those that are no weight files.

use super::checkpoint::UploadedCheckpoint;
use super::refused;
use super::spool::Place;
use crate::error::{Result, StoreError};
use crate::records::ContentKey;
use crate::store::SMALL_FILE;
use deltaic_format::ids::FileId;
use deltaic_format::object::{Snapshot, TensorSpec, WeightFileSpec};
use deltaic_format::patch::PIECE_ELEMENTS;
use deltaic_format::safetensors::parse_header;
use std::collections::HashMap;

/// Parts of all files at most.
const MAX_PARTS: usize = 1 << 22;

/// Bytes of all headers together, which are held in memory.
const MAX_HEADERS: u64 = 512 << 20;

/// Files that came, by their ids.
#[derive(Debug, Default)]
pub(super) struct SentFiles {
    files: HashMap<FileId, SentFile>,
    parts: usize,
}

/// Where in the spool the bytes of a file are.
#[derive(Debug, Default)]
struct SentFile {
    /// Where each part begins in the file, ascending without gaps.
    parts: Vec<(u64, Place)>,
    len: u64,
}

/// Where the bytes of a file of the version come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileOrigin {
    /// It has none.
    Empty,
    Sent,
    /// The parent has the same file.
    Parent,
}

impl SentFiles {
    /// Take note of a part of a file.
    pub(super) fn add(&mut self, place: Place, id: FileId, offset: u64, len: u64) -> Result<()> {
        let held = self.files.get(&id).map_or(0, |file| file.len);
        let end = offset.checked_add(len);
        if len == 0 || end.is_some_and(|end| end <= held) {
            // It came before.
            return Ok(());
        }
        let Some(end) = end.filter(|_| offset == held) else {
            return Err(refused(format!(
                "file {id}: bytes from {offset} on came after {held}"
            )));
        };
        self.parts += 1;
        if self.parts > MAX_PARTS {
            return Err(refused("files come in too many parts"));
        }
        let file = self.files.entry(id).or_default();
        file.parts.push((offset, place));
        file.len = end;
        Ok(())
    }

    /// Where the file of the version that has these bytes comes from.
    pub(super) fn origin(
        &self,
        parents: &HashMap<FileId, u64>,
        (id, size): (FileId, u64),
        name: &str,
    ) -> Result<FileOrigin> {
        if size == 0 {
            return Ok(FileOrigin::Empty);
        }
        match (self.files.get(&id), parents.get(&id)) {
            (Some(sent), _) if sent.len == size => Ok(FileOrigin::Sent),
            (_, Some(&held)) if held == size => Ok(FileOrigin::Parent),
            (None, None) => Err(refused(format!("file {name}: nothing of it came"))),
            (sent, held) => {
                let found = sent.map(|sent| sent.len).or(held.copied());
                Err(refused(format!(
                    "file {name} has {size} bytes, {} came",
                    found.unwrap_or_default()
                )))
            }
        }
    }
}

/// Files that a version has, and their lengths.
pub(super) fn files_of(version: &Snapshot) -> HashMap<FileId, u64> {
    let tree = &version.tree;
    let headers = tree.weight_files.iter().map(|f| (f.header, f.header_len));
    headers
        .chain(tree.files.iter().map(|f| (f.id, f.size)))
        .collect()
}

impl UploadedCheckpoint<'_> {
    /// Read all headers; each must be that of the tensors that the schema says.
    pub(super) fn load_headers(&self, parents: &HashMap<FileId, u64>) -> Result<Vec<Vec<u8>>> {
        let version = &self.received.version;
        let total = version
            .tree
            .weight_files
            .iter()
            .map(|f| f.header_len)
            .sum::<u64>();
        if total > MAX_HEADERS {
            return Err(refused(format!("safetensors headers of {total} bytes")));
        }
        let mut headers = Vec::new();
        for (spec, file) in version.weight_files() {
            let whole = (file.header, file.header_len);
            let name = format!("header of {}", spec.path);
            let origin = self.received.files.origin(parents, whole, &name)?;
            let mut header = vec![0; file.header_len as usize];
            self.fill_from_file(whole, origin, 0, &mut header)?;
            if FileId::of(&header) != file.header {
                return Err(refused(format!(
                    "file {name} does not hash to {}",
                    file.header
                )));
            }
            check_header(spec, &header)
                .map_err(|what| refused(format!("weight file {}: {what}", spec.path)))?;
            headers.push(header);
        }
        Ok(headers)
    }

    /// Fill `out` from `offset` on of a file, which has so many bytes.
    pub(super) fn fill_from_file(
        &self,
        (id, size): (FileId, u64),
        origin: FileOrigin,
        offset: u64,
        out: &mut [u8],
    ) -> Result<()> {
        match origin {
            FileOrigin::Empty => Ok(()),
            FileOrigin::Sent => self.fill_from_spool(id, offset, out),
            FileOrigin::Parent if size <= SMALL_FILE => {
                let missing = || StoreError::corrupt(format!("file {id}"), "it is missing");
                let bytes = self.store.small_file(id)?.ok_or_else(missing)?;
                copy(&bytes, offset, out)
                    .ok_or_else(|| StoreError::corrupt(format!("file {id}"), "it is too short"))
            }
            FileOrigin::Parent => self.fill_from_large(ContentKey::file(id), offset, out),
        }
    }

    fn fill_from_spool(&self, id: FileId, mut offset: u64, mut out: &mut [u8]) -> Result<()> {
        let missing = || refused(format!("file {id}: some of its bytes did not come"));
        let file = self.received.files.files.get(&id).ok_or_else(missing)?;
        let mut at = file.parts.partition_point(|part| part.0 <= offset);
        while !out.is_empty() {
            let part = at.checked_sub(1).and_then(|at| file.parts.get(at));
            let &(begin, place) = part.ok_or_else(missing)?;
            let filled = self.spool.read(place, |bytes| {
                let rest = bytes.get((offset - begin) as usize..).unwrap_or_default();
                let len = rest.len().min(out.len());
                out[..len].copy_from_slice(&rest[..len]);
                Ok(len)
            })?;
            out = &mut out[filled..];
            offset += filled as u64;
            at += 1;
        }
        Ok(())
    }

    /// The same of a file that the store has as a content.
    fn fill_from_large(&self, key: ContentKey, mut offset: u64, mut out: &mut [u8]) -> Result<()> {
        let short = || StoreError::corrupt(key, "it is too short");
        let reader = self.reader(key)?;
        while !out.is_empty() {
            if offset >= reader.elements() {
                return Err(short());
            }
            let content = reader.piece(offset / PIECE_ELEMENTS)?;
            let within = offset % PIECE_ELEMENTS;
            let len = (content.len() - within as usize).min(out.len());
            copy(&content, within, &mut out[..len]).ok_or_else(short)?;
            out = &mut out[len..];
            offset += len as u64;
        }
        Ok(())
    }
}

fn copy(from: &[u8], offset: u64, out: &mut [u8]) -> Option<()> {
    let from = from.get(usize::try_from(offset).ok()?..)?;
    out.copy_from_slice(from.get(..out.len())?);
    Some(())
}

/// Whether `header` describes the tensors of `spec`, so that what is exported is the file that was meant.
fn check_header(spec: &WeightFileSpec, header: &[u8]) -> Result<(), String> {
    let layout = parse_header(header, spec.data_len()).map_err(|e| e.to_string())?;
    let alike = |(a, b): (&TensorSpec, &TensorSpec)| {
        (&a.name, a.dtype, &a.shape) == (&b.name, b.dtype, &b.shape)
    };
    let same = layout.tensors.len() == spec.tensors.len()
        && layout.tensors.iter().zip(&spec.tensors).all(alike);
    match same {
        true => Ok(()),
        false => Err("its header describes other tensors than the schema".to_owned()),
    }
}
