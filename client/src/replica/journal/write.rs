//! Writing a journal, record by record.

use super::{
    HEADER_LEN, JOURNAL, Journal, KIND_BYTES, KIND_REMOVE, KIND_RENAME, KIND_TARGET, KIND_VOID,
    KIND_WORDS, MAGIC, Target, VERSION, Volume,
};
use crate::disk::{create_new, remove_if_there, sync_folder};
use crate::error::{At, Result};
use crate::replica::folder::Folder;
use deltaic_format::bytes::{put_string, put_varint};
use deltaic_format::name::TreePath;
use deltaic_format::object::CanonicalObject;
use deltaic_format::patch::Changes;
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::PathBuf;

const BUFFER_LEN: usize = 1 << 20;

/// A journal in the making; without [`finish`](Self::finish) it is worth nothing.
#[derive(Debug)]
pub(crate) struct JournalWriter {
    path: PathBuf,
    file: BufWriter<File>,
    hasher: blake3::Hasher,
    records: u64,
    pub(crate) target: Target,
    void: HashSet<usize>,
    volume: Volume,
    indexes: Vec<u8>,
}

/// A place in a journal in the making, to go back to.
#[derive(Debug)]
pub(crate) struct Mark {
    position: u64,
    hasher: blake3::Hasher,
    records: u64,
    bytes: u64,
}

impl JournalWriter {
    /// Begin the journal of the way to `target`.
    pub(crate) fn create(folder: &Folder, target: Target) -> Result<Self> {
        let path = folder.internal(JOURNAL);
        remove_if_there(&path)?;
        let file = create_new(&path)?;
        let mut writer = Self {
            path,
            file: BufWriter::with_capacity(BUFFER_LEN, file),
            hasher: blake3::Hasher::new(),
            records: 0,
            target,
            void: HashSet::new(),
            volume: Volume::default(),
            indexes: Vec::new(),
        };
        let mut header = Vec::with_capacity(HEADER_LEN as usize);
        header.extend(MAGIC);
        header.push(VERSION);
        writer.write(&header)?;
        let body = target_body(&writer.target);
        writer.record(KIND_TARGET, &[&body])?;
        Ok(writer)
    }

    /// The elements that `changes` names, in piece `piece` of a tensor, get `words`, packed.
    pub(crate) fn words(
        &mut self,
        tensor: usize,
        piece: u64,
        changes: &Changes,
        words: &[u8],
    ) -> Result<()> {
        let mut head = Vec::with_capacity(20);
        head.extend((tensor as u64).to_le_bytes());
        head.extend(piece.to_le_bytes());
        head.extend((changes.len() as u32).to_le_bytes());
        let mut indexes = std::mem::take(&mut self.indexes);
        indexes.clear();
        for (element, _) in changes.iter() {
            indexes.extend(element.to_le_bytes());
        }
        let written = self.record(KIND_WORDS, &[&head, &indexes, words]);
        self.indexes = indexes;
        self.volume.add_words(tensor, words.len());
        written
    }

    /// Weight file `file` gets `bytes` at `offset`.
    pub(crate) fn bytes(&mut self, file: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut head = Vec::with_capacity(12);
        head.extend((file as u32).to_le_bytes());
        head.extend(offset.to_le_bytes());
        self.volume.add_bytes(bytes.len());
        self.record(KIND_BYTES, &[&head, bytes])
    }

    /// The file `path` goes away.
    pub(crate) fn remove(&mut self, path: &TreePath) -> Result<()> {
        let mut body = Vec::new();
        put_string(&mut body, path.as_str());
        self.record(KIND_REMOVE, &[&body])
    }

    /// The staged file becomes `path`.
    pub(crate) fn rename(&mut self, staged: usize, path: &TreePath) -> Result<()> {
        let mut body = Vec::new();
        body.extend((staged as u32).to_le_bytes());
        put_string(&mut body, path.as_str());
        self.record(KIND_RENAME, &[&body])
    }

    /// The words of `tensor` are not to be written.
    pub(crate) fn void(&mut self, tensor: usize) -> Result<()> {
        self.void.insert(tensor);
        self.record(KIND_VOID, &[&(tensor as u64).to_le_bytes()])
    }

    /// Where it ends now.
    pub(crate) fn mark(&mut self) -> Result<Mark> {
        Ok(Mark {
            position: self.file.stream_position().at(&self.path)?,
            hasher: self.hasher.clone(),
            records: self.records,
            bytes: self.volume.bytes,
        })
    }

    /// Take back the [`bytes`](Self::bytes) that were written since `mark`, when nothing else was.
    pub(crate) fn go_back(&mut self, mark: Mark) -> Result<()> {
        self.file
            .seek(SeekFrom::Start(mark.position))
            .at(&self.path)?;
        self.file.get_ref().set_len(mark.position).at(&self.path)?;
        self.hasher = mark.hasher;
        self.records = mark.records;
        self.volume.bytes = mark.bytes;
        Ok(())
    }

    /// Make the journal complete and durable.
    pub(crate) fn finish(mut self) -> Result<Journal> {
        let records = self.records;
        self.write(&records.to_le_bytes())?;
        let hash = *self.hasher.finalize().as_bytes();
        self.write(&hash)?;
        self.file.flush().at(&self.path)?;
        self.file.get_ref().sync_all().at(&self.path)?;
        if let Some(folder) = self.path.parent() {
            sync_folder(folder)?;
        }
        Ok(Journal::new(
            self.path,
            self.target,
            self.void,
            &self.volume,
        ))
    }

    fn record(&mut self, kind: u8, body: &[&[u8]]) -> Result<()> {
        let len = 1 + body.iter().map(|part| part.len() as u64).sum::<u64>();
        self.write(&len.to_le_bytes())?;
        self.write(&[kind])?;
        body.iter().try_for_each(|part| self.write(part))?;
        self.records += 1;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.update(bytes);
        self.file.write_all(bytes).at(&self.path)
    }
}

fn target_body(target: &Target) -> Vec<u8> {
    let Target { snapshot, labels } = target;
    let mut body = snapshot.id.0.to_vec();
    for object in [
        snapshot.commit.to_bytes(),
        snapshot.tree.to_bytes(),
        snapshot.schema.to_bytes(),
    ] {
        put_varint(&mut body, object.len() as u64);
        body.extend(object);
    }
    put_string(&mut body, &labels.repo);
    put_string(&mut body, &labels.revision);
    body.push(u8::from(labels.path.is_some()));
    put_string(&mut body, labels.path.as_ref().map_or("", TreePath::as_str));
    body
}
