//! An upload as what a commit reads: the parent's contents with what came applied, and contents that came whole.

use super::deliveries::Part;
use super::files::{FileOrigin, files_of};
use super::received::Received;
use super::refused;
use super::spool::Spool;
use crate::checkpoint::{Checkpoint, PlainFile};
use crate::commit::Written;
use crate::contents::ContentReader;
use crate::error::{Result, StoreError};
use crate::records::ContentKey;
use crate::store::Store;
use deltaic_format::ElementClass;
use deltaic_format::base::decode_base_of;
use deltaic_format::fetch::AnswerKind;
use deltaic_format::object::{Counterparts, Schema, Snapshot, TensorEntry, TensorView};
use deltaic_format::patch::{Changes, PIECE_ELEMENTS, apply, piece_len};
use deltaic_format::patch_set::PatchSetReader;
use moka::sync::Cache;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of decoded patch sets that are kept: a set holds many tensors, which are mostly read one after the other.
const CACHE_BYTES: u64 = 256 << 20;

/// Contents that are being read piece by piece, at most: one or two for each thread of a commit.
const READERS: usize = 16;

/// Where a tensor's content comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// It has no elements.
    Empty,
    /// It is what the parent has in its place.
    Unchanged,
    /// The parent's tensor of this number, with patches that came.
    Patches(u32),
    /// It came whole.
    Content,
    /// The parent's tensor of this number has the same content.
    Parent(u32),
    /// The uploaded tensor of this number has the same content.
    Twin(u32),
}

/// A patch set of which members are wanted.
struct DecodedSet {
    class: ElementClass,
    /// Elements of each member, and its changes.
    members: Vec<(u32, Changes)>,
}

/// What came of an upload, on top of its parent.
pub(super) struct UploadedCheckpoint<'a> {
    pub(super) store: &'a Store,
    pub(super) spool: &'a Spool,
    pub(super) received: &'a Received,
    parents: Vec<TensorView<'a>>,
    tensors: Vec<TensorView<'a>>,
    /// Per tensor.
    sources: Vec<Source>,
    /// Per weight file, the number of its first tensor.
    first_tensors: Vec<usize>,
    /// Per tensor, where it begins in its file's data.
    offsets: Vec<u64>,
    headers: Vec<Vec<u8>>,
    files: Vec<PlainFile>,
    origins: Vec<FileOrigin>,
    readers: Mutex<Vec<(ContentKey, Arc<ContentReader<'a>>)>>,
    sets: Cache<u32, Arc<DecodedSet>>,
    /// The commit passes words on; what failed first is kept here as it was.
    failure: Mutex<Option<StoreError>>,
}

impl<'a> UploadedCheckpoint<'a> {
    /// See what was received on top of `parent`, which the branch stands at.
    pub(super) fn new(
        store: &'a Store,
        spool: &'a Spool,
        received: &'a Received,
        parent: Option<&'a Snapshot>,
    ) -> Result<Self> {
        let version = &received.version;
        let weigh = |_: &u32, set: &Arc<DecodedSet>| {
            let changes = set.members.iter().map(|member| 40 + 12 * member.1.len());
            changes.sum::<u64>().try_into().unwrap_or(u32::MAX)
        };
        let mut checkpoint = Self {
            store,
            spool,
            received,
            parents: parent.map(Snapshot::tensors).unwrap_or_default(),
            tensors: version.tensors(),
            sources: Vec::new(),
            first_tensors: Vec::new(),
            offsets: Vec::new(),
            headers: Vec::new(),
            files: Vec::new(),
            origins: Vec::new(),
            readers: Mutex::default(),
            sets: Cache::builder()
                .max_capacity(CACHE_BYTES)
                .weigher(weigh)
                .build(),
            failure: Mutex::default(),
        };
        for file in &version.schema.files {
            checkpoint.first_tensors.push(checkpoint.offsets.len());
            let mut offset = 0;
            for spec in &file.tensors {
                checkpoint.offsets.push(offset);
                offset += spec.byte_len();
            }
        }
        checkpoint.sources = checkpoint.find_sources(parent)?;
        let held = parent.map(files_of).unwrap_or_default();
        checkpoint.headers = checkpoint.load_headers(&held)?;
        for file in version.files() {
            let whole = (file.id, file.size);
            let origin = (received.files).origin(&held, whole, file.path.as_str())?;
            checkpoint.origins.push(origin);
            checkpoint.files.push(PlainFile {
                path: file.path.clone(),
                mode: file.mode,
                size: file.size,
            });
        }
        Ok(checkpoint)
    }

    /// Where each tensor's content comes from.
    fn find_sources(&self, parent: Option<&Snapshot>) -> Result<Vec<Source>> {
        let held = parent.map(|parent| Counterparts::new(parent, &self.received.version.schema));
        let mut sources = Vec::with_capacity(self.tensors.len());
        let mut missing = Vec::new();
        for view in &self.tensors {
            let old = held
                .as_ref()
                .and_then(|held| held.patchable(view.path, view.spec));
            sources.push(match (self.received.deliveries.kind(view.index), old) {
                (Some(AnswerKind::Content), _) => Source::Content,
                (Some(AnswerKind::Patches), Some(old)) => Source::Patches(old.index as u32),
                (Some(AnswerKind::Patches), None) => {
                    let what = "patches came for it, and the parent has nothing that they could start from";
                    return Err(bad_tensor(view, what));
                }
                (None, _) if view.spec.elements() == 0 => Source::Empty,
                (None, Some(old)) if old.entry.id == view.entry.id => Source::Unchanged,
                (None, _) => {
                    missing.push(view.index);
                    // Replaced below.
                    Source::Empty
                }
            });
        }
        if !missing.is_empty() {
            self.find_twins(&missing, &mut sources)?;
        }
        Ok(sources)
    }

    /// Where the contents of tensors come from of which nothing was sent: other tensors, of the parent or sent ones.
    fn find_twins(&self, missing: &[usize], sources: &mut [Source]) -> Result<()> {
        let key = |view: &TensorView<'_>| (view.spec.class, view.entry.id);
        let sent = (self.tensors.iter())
            .filter(|view| self.received.deliveries.kind(view.index).is_some())
            .map(|view| (key(view), view, Source::Twin(view.index as u32)));
        let held =
            (self.parents.iter()).map(|view| (key(view), view, Source::Parent(view.index as u32)));
        let known: HashMap<_, _> = sent
            .chain(held)
            .map(|(key, view, source)| (key, (view.spec.elements(), source)))
            .collect();
        for &tensor in missing {
            let view = &self.tensors[tensor];
            sources[tensor] = match known.get(&key(view)) {
                Some(&(elements, source)) if elements == view.spec.elements() => source,
                _ => return Err(bad_tensor(view, "nothing of it came")),
            };
        }
        Ok(())
    }

    /// A content of the parent to be read piece by piece.
    pub(super) fn reader(&self, key: ContentKey) -> Result<Arc<ContentReader<'a>>> {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, reader)) = readers.iter().find(|(known, _)| *known == key) {
            return Ok(Arc::clone(reader));
        }
        drop(readers);
        let reader = Arc::new(self.store.contents().open(key)?);
        if reader.pieces() > 1 {
            readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
            if readers.len() >= READERS {
                readers.remove(0);
            }
            readers.push((key, Arc::clone(&reader)));
        }
        Ok(reader)
    }

    /// Fill `out` with a piece of a tensor.
    fn fill(&self, tensor: usize, piece: u64, out: &mut [u8]) -> Result<()> {
        match self.sources[tensor] {
            Source::Empty => Ok(()),
            Source::Content => self.fill_with_content(tensor, piece, out),
            Source::Patches(parent) => {
                self.fill_from_parent(parent, piece, out)?;
                self.apply_patches(tensor, piece, out)
            }
            Source::Parent(parent) => self.fill_from_parent(parent, piece, out),
            Source::Twin(twin) => self.fill(twin as usize, piece, out),
            Source::Unchanged => {
                let what = "it is unchanged, and read nevertheless";
                Err(bad_tensor(&self.tensors[tensor], what))
            }
        }
    }

    fn fill_from_parent(&self, parent: u32, piece: u64, out: &mut [u8]) -> Result<()> {
        let key = key_of(&self.parents[parent as usize]);
        let content = self.reader(key)?.piece(piece)?;
        if content.len() != out.len() {
            let what = "it has another number of elements than its tree says";
            return Err(StoreError::corrupt(key, what));
        }
        out.copy_from_slice(&content);
        Ok(())
    }

    fn fill_with_content(&self, tensor: usize, piece: u64, out: &mut [u8]) -> Result<()> {
        let view = &self.tensors[tensor];
        let class = view.spec.class;
        let mut content = Vec::new();
        for part in self.received.deliveries.in_piece(tensor, piece) {
            let place = self.received.deliveries.place(part.record());
            self.spool.read(place, |base| {
                decode_base_of(class, part.elements(), base, &mut content)
                    .map_err(|e| bad_tensor(view, e))
            })?;
            bytes_of(part, class, out).copy_from_slice(&content);
        }
        Ok(())
    }

    fn apply_patches(&self, tensor: usize, piece: u64, out: &mut [u8]) -> Result<()> {
        let view = &self.tensors[tensor];
        let class = view.spec.class;
        for part in self.received.deliveries.in_piece(tensor, piece) {
            let set = self.decoded_set(view, part.record())?;
            let changes = match set.members.get(part.member()) {
                Some((elements, changes))
                    if set.class == class && u64::from(*elements) == part.elements() =>
                {
                    changes
                }
                _ => return Err(bad_tensor(view, "its patch is that of something else")),
            };
            apply(class, bytes_of(part, class, out), changes).map_err(|e| self.blame(view, e))?;
        }
        Ok(())
    }

    fn decoded_set(&self, view: &TensorView<'_>, record: u32) -> Result<Arc<DecodedSet>> {
        let decode = || {
            let place = self.received.deliveries.place(record);
            self.spool.read(place, |bytes| {
                let reader = PatchSetReader::new(bytes).map_err(|e| bad_tensor(view, e))?;
                let changes = reader.all().map_err(|e| bad_tensor(view, e))?;
                Ok(Arc::new(DecodedSet {
                    class: reader.class(),
                    members: reader.members().zip(changes).collect(),
                }))
            })
        };
        // Threads that want the same set share one decoding, and its error, which is kept by the one that met it.
        let set = self
            .sets
            .try_get_with(record, || decode().map_err(|error| self.note(error)));
        set.map_err(|what| StoreError::Checkpoint {
            what: what.to_string(),
        })
    }

    /// Why what came for a tensor does not fit: the parent's content may be damaged, if it was used.
    fn blame(&self, view: &TensorView<'_>, what: impl ToString) -> StoreError {
        let parent = match self.sources[view.index] {
            Source::Patches(parent) | Source::Parent(parent) => Some(parent),
            Source::Twin(twin) => return self.blame(&self.tensors[twin as usize], what),
            Source::Empty | Source::Unchanged | Source::Content => None,
        };
        let proven = parent.map_or(Ok(()), |parent| {
            let reader = self
                .store
                .contents()
                .open(key_of(&self.parents[parent as usize]))?;
            reader.read(|_| Ok(()))
        });
        match proven {
            Ok(()) => bad_tensor(view, what),
            Err(error) => error,
        }
    }

    /// Keep the first error; returns its words.
    fn note(&self, error: StoreError) -> String {
        let words = error.to_string();
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(error);
        words
    }

    /// Why a commit of this failed with `error`.
    pub(super) fn failure(&self, error: StoreError) -> StoreError {
        match error {
            StoreError::Checkpoint { what } => {
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.take().unwrap_or_else(|| refused(what))
            }
            other => other,
        }
    }

    /// What was made of the upload is what its maker named, to the last byte.
    pub(super) fn check_tree(&self, written: &mut Written) -> Result<()> {
        let version = &self.received.version;
        let made = (written.tree.tensors.iter()).zip(&mut written.tensors);
        for (view, (entry, stored)) in self.tensors.iter().zip(made) {
            self.check_tensor(view, entry)?;
            if view.entry.patch.is_none() && entry.patch.is_some() {
                // Its maker could not read the parent's content, and counts it as whole.
                let record = self.store.contents().record(key_of(view))?;
                stored.changed = view.spec.elements();
                stored.patch_bytes = record.whole_bytes;
            }
        }
        let headers = version.weight_files().zip(&written.tree.weight_files);
        for ((spec, sent), made) in headers {
            if sent != made {
                let what = format!(
                    "the header of {} does not hash to {}",
                    spec.path, sent.header
                );
                return Err(refused(what));
            }
        }
        for (sent, made) in version.files().iter().zip(&written.tree.files) {
            if sent != made {
                let what = format!(
                    "file {} hashes to {}, not to {}",
                    sent.path, made.id, sent.id
                );
                return Err(refused(what));
            }
        }
        Ok(())
    }

    fn check_tensor(&self, view: &TensorView<'_>, made: &TensorEntry) -> Result<()> {
        let sent = view.entry;
        if sent.id != made.id {
            let what = format!("it hashes to {}, not to {}", made.id, sent.id);
            return Err(self.blame(view, what));
        }
        if sent.moments != made.moments {
            return Err(self.blame(view, "its moments are not those of its content"));
        }
        match (sent.patch, made.patch) {
            (Some(sent), Some(made)) if sent != made => {
                Err(bad_tensor(view, format!("its patch is {made}, not {sent}")))
            }
            (Some(_), None) => self.check_unpatched(view),
            _ => Ok(()),
        }
    }

    /// A tensor names a patch, and none was made: there is none, or what it starts from is damaged.
    fn check_unpatched(&self, view: &TensorView<'_>) -> Result<()> {
        let version = &self.received.version;
        let commit = version.commit.parents.first();
        let parent = commit.map(|&id| self.store.snapshot(id)).transpose()?;
        let held = parent
            .as_ref()
            .map(|parent| Counterparts::new(parent, &version.schema));
        let old = held
            .as_ref()
            .and_then(|held| held.patchable(view.path, view.spec));
        if let Some(old) = old.filter(|old| old.entry.id != view.entry.id) {
            let what = "it cannot be read, so that the patch from it cannot be checked";
            return Err(StoreError::corrupt(key_of(&old), what));
        }
        Err(bad_tensor(
            view,
            "it names a patch, and there is nothing that one could lead from",
        ))
    }
}

impl Checkpoint for UploadedCheckpoint<'_> {
    fn schema(&self) -> &Schema {
        &self.received.version.schema
    }

    fn header(&self, file: usize) -> &[u8] {
        &self.headers[file]
    }

    fn read_data(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<(), String> {
        if out.is_empty() {
            return Ok(());
        }
        let first = self.first_tensors[file];
        let end = self.first_tensors.get(file + 1).copied();
        let offsets = &self.offsets[first..end.unwrap_or(self.offsets.len())];
        // The last that begins there or before: those without elements come before it.
        let tensor = first + offsets.partition_point(|&begin| begin <= offset) - 1;
        let spec = self.tensors[tensor].spec;
        let width = spec.class.width() as u64;
        let piece = (offset - self.offsets[tensor]) / width / PIECE_ELEMENTS;
        debug_assert_eq!(
            out.len() as u64,
            piece_len(spec.elements(), piece) * width,
            "a commit reads whole pieces"
        );
        self.fill(tensor, piece, out).map_err(|e| self.note(e))
    }

    fn unchanged(&self, tensor: usize) -> bool {
        self.sources[tensor] == Source::Unchanged
    }

    fn files(&self) -> &[PlainFile] {
        &self.files
    }

    fn read_file(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<(), String> {
        let entry = &self.received.version.files()[file];
        self.fill_from_file((entry.id, entry.size), self.origins[file], offset, out)
            .map_err(|e| self.note(e))
    }

    fn check_unchanged(&self) -> Result<(), String> {
        Ok(())
    }
}

/// The bytes of a part, of those of its piece.
fn bytes_of<'b>(part: &Part, class: ElementClass, piece: &'b mut [u8]) -> &'b mut [u8] {
    let elements = part.within_piece();
    &mut piece[elements.start * class.width()..elements.end * class.width()]
}

fn key_of(view: &TensorView<'_>) -> ContentKey {
    ContentKey::new(view.spec.class, view.entry.id)
}

fn bad_tensor(view: &TensorView<'_>, what: impl ToString) -> StoreError {
    let (name, path) = (&view.spec.name, view.path);
    refused(format!("tensor {name:?} of {path}: {}", what.to_string()))
}
