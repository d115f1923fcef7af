//! The commit of a prepared pull: the journal is applied, read back, and becomes the replica's state.
//!
//! Nothing here stops half-way for good: whatever goes wrong, the complete journal stays, and applying it again from the
//! start leads to the same files. Files are read and written, not mapped: engines and users share this folder, and a
//! mapping of a file that someone truncates, or that no longer fits the disk, is a crash where this is an error.

use super::folder::{FileStat, Folder, sync_folder};
use super::inspect::{scan_weight_file, tensor_name};
use super::journal::{Journal, Record, Target};
use super::plan::selected_paths;
use super::state::Held;
use super::{FaultPoint, Proof};
use crate::error::{At, ClientError, Result};
use crate::parts::read_exact_at;
use deltaic_format::name::TreePath;
use deltaic_format::object::{FileMode, TensorView};
use deltaic_format::patch::{PIECE_ELEMENTS, piece_count, piece_len};
use deltaic_format::progress::{Progress, Silent};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Changed elements that lie no further apart, in bytes, are written with what lies between, at once.
const GAP: usize = 16 << 10;

/// Applies a journal.
pub(super) struct Commit<'a> {
    folder: &'a Folder,
    target: &'a Target,
    tensors: Vec<TensorView<'a>>,
    /// How files looked that the journal does not touch.
    stats: BTreeMap<TreePath, FileStat>,
    fault: &'a FaultPoint,
    /// The weight file that was written to last.
    open: Option<(usize, File, PathBuf)>,
    /// Weight files that were changed where they lie.
    written: BTreeSet<usize>,
    /// Files that were put in place.
    placed: BTreeSet<TreePath>,
    /// Folders in which names came or went.
    renamed_in: BTreeSet<PathBuf>,
    /// What is not as it was written.
    failed: BTreeSet<String>,
    buffer: Vec<u8>,
}

impl<'a> Commit<'a> {
    pub(super) fn new(
        folder: &'a Folder,
        journal: &'a Journal,
        stats: BTreeMap<TreePath, FileStat>,
        fault: &'a FaultPoint,
    ) -> Self {
        let target = journal.target();
        Self {
            folder,
            target,
            tensors: target.snapshot.tensors(),
            stats,
            fault,
            open: None,
            written: BTreeSet::new(),
            placed: BTreeSet::new(),
            renamed_in: BTreeSet::new(),
            failed: BTreeSet::new(),
            buffer: Vec::new(),
        }
    }

    /// Apply the journal and prove what was written. If the files do not hold it, the error says so and the journal
    /// stays.
    pub(super) fn run(
        mut self,
        journal: &Journal,
        proof: Proof,
        progress: &dyn Progress,
    ) -> Result<Held> {
        let progress = &Unstoppable(progress);
        progress.phase("writing", None);
        self.apply(journal, progress)?;
        progress.phase("proving", None);
        self.read_back(journal)?;
        if proof == Proof::Full {
            self.prove_weight_files(progress)?;
        }
        if !self.failed.is_empty() {
            return Err(ClientError::Unusable {
                path: self.folder.root().to_owned(),
                what: self.failed.into_iter().collect(),
            });
        }
        let mut touched = BTreeMap::new();
        for path in self.touched_paths() {
            (self.fault)("settle")?;
            let stat = self.folder.settle(&path)?;
            touched.insert(path, Some(stat));
        }
        self.save(touched)
    }

    /// Apply a journal that a crash left. What it touches may have been changed by others since, so it is marked to
    /// be read in full before anything relies on it.
    pub(super) fn replay(mut self, journal: &Journal) -> Result<Held> {
        self.apply(journal, &Silent)?;
        let touched = self.touched_paths().into_iter().map(|path| (path, None));
        let touched = touched.collect();
        self.save(touched)
    }

    /// Every file that the journal writes.
    fn touched_paths(&self) -> BTreeSet<TreePath> {
        let schema = &self.target.snapshot.schema;
        let written = self
            .written
            .iter()
            .map(|file| schema.files[*file].path.clone());
        written.chain(self.placed.iter().cloned()).collect()
    }

    /// Make the target the replica's state.
    fn save(self, mut touched: BTreeMap<TreePath, Option<FileStat>>) -> Result<Held> {
        let Target { snapshot, labels } = self.target.clone();
        let files = selected_paths(&snapshot, labels.path.as_ref())
            .into_iter()
            .map(|path| {
                let stat = touched
                    .remove(&path)
                    .unwrap_or_else(|| self.stats.get(&path).copied());
                (path, stat)
            })
            .collect();
        let held = Held {
            snapshot,
            labels,
            files,
        };
        (self.fault)("state")?;
        held.save(self.folder)?;
        (self.fault)("done")?;
        Ok(held)
    }

    /// Apply every record and make all of it durable.
    fn apply(&mut self, journal: &Journal, progress: &dyn Progress) -> Result<()> {
        journal.for_each(|record| match record {
            Record::Words {
                tensor,
                piece,
                indexes,
                words,
            } => {
                self.write_words(tensor, piece, indexes, words)?;
                progress.advance(words.len() as u64);
                Ok(())
            }
            Record::Bytes {
                file,
                offset,
                bytes,
            } => {
                self.write_bytes(file, offset, bytes)?;
                progress.advance(bytes.len() as u64);
                Ok(())
            }
            Record::Remove { path } => self.remove(&path),
            Record::Rename { staged, mode, path } => self.place(staged, mode, &path),
            Record::Void { .. } => Ok(()),
        })?;
        self.open = None;
        let schema = &self.target.snapshot.schema;
        for number in &self.written {
            let path = &schema.files[*number].path;
            if self.failed.contains(path.as_str()) {
                continue;
            }
            (self.fault)("sync")?;
            let (file, location) = self.folder.open(path, true)?;
            file.sync_all().at(&location)?;
        }
        for folder in self.renamed_in.iter().filter(|folder| folder.is_dir()) {
            (self.fault)("sync")?;
            sync_folder(folder)?;
        }
        Ok(())
    }

    /// Write words of a piece, in runs of neighbouring elements.
    fn write_words(
        &mut self,
        tensor: usize,
        piece: u64,
        indexes: &[u8],
        words: &[u8],
    ) -> Result<()> {
        let (view, begin) = self.piece(tensor, piece)?;
        if !self.open_weight_file(view.file)? {
            return Ok(());
        }
        (self.fault)("words")?;
        let Some((_, file, location)) = &self.open else {
            return Ok(());
        };
        for run in Runs::new(&view, piece, indexes, words)? {
            self.buffer.resize(run.bytes.len(), 0);
            let offset = begin + run.bytes.start as u64;
            read_exact_at(file, location, offset, &mut self.buffer)?;
            run.for_each_word(|at, word| self.buffer[at..at + word.len()].copy_from_slice(word));
            file.write_all_at(&self.buffer, offset).at(location)?;
        }
        Ok(())
    }

    fn write_bytes(&mut self, number: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        if !self.open_weight_file(number)? {
            return Ok(());
        }
        (self.fault)("bytes")?;
        self.check_bytes(number, offset, bytes)?;
        match &self.open {
            Some((_, file, location)) => file.write_all_at(bytes, offset).at(location),
            None => Ok(()),
        }
    }

    /// Check that bytes lie within their weight file, which never grows.
    fn check_bytes(&self, number: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let snapshot = &self.target.snapshot;
        let len = snapshot.tree.weight_files[number].data_offset()
            + snapshot.schema.files[number].data_len();
        match offset.checked_add(bytes.len() as u64) {
            Some(end) if end <= len => Ok(()),
            _ => {
                let path = &snapshot.schema.files[number].path;
                let what = format!("bytes past the end of {path}");
                Err(ClientError::corrupt("the journal", what))
            }
        }
    }

    /// Delete a file; it may be gone already, or have given way to a folder.
    fn remove(&mut self, path: &TreePath) -> Result<()> {
        (self.fault)("remove")?;
        let location = self.folder.root().join(path.as_str());
        match fs::symlink_metadata(&location) {
            Ok(metadata) if !metadata.is_dir() && self.folder.locate(path).is_ok() => {
                fs::remove_file(&location).at(&location)?;
            }
            _ => {}
        }
        self.folder.remove_empty_parents(path);
        self.note_folders_of(path);
        Ok(())
    }

    /// Move a staged file to its place, unless that was done already.
    fn place(&mut self, staged: usize, mode: FileMode, path: &TreePath) -> Result<()> {
        self.placed.insert(path.clone());
        self.note_folders_of(path);
        let from = self.folder.staged(staged);
        let to = self.folder.locate(path)?;
        let metadata = match fs::symlink_metadata(&from) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            metadata => metadata.at(&from)?,
        };
        (self.fault)("rename")?;
        let parent = to.parent().unwrap_or(self.folder.root());
        fs::create_dir_all(parent).at(parent)?;
        let bits = metadata.permissions().mode();
        // Whoever may read it may run it.
        let bits = match mode {
            FileMode::Plain => bits & !0o111,
            FileMode::Executable => bits | (bits & 0o444) >> 2,
        };
        fs::set_permissions(&from, Permissions::from_mode(bits)).at(&from)?;
        fs::rename(&from, &to).at(&to)
    }

    /// Note the folders whose names have to be made durable for `path` to be there, or gone.
    fn note_folders_of(&mut self, path: &TreePath) {
        let within = Path::new(path.as_str()).ancestors().skip(1);
        let folders = within.map(|within| self.folder.root().join(within));
        self.renamed_in.extend(folders);
    }

    /// A tensor of the target and where its piece `piece` begins in the file.
    fn piece(&self, tensor: usize, piece: u64) -> Result<(TensorView<'a>, u64)> {
        let view = (self.tensors.get(tensor).copied())
            .filter(|view| piece < piece_count(view.spec.elements()))
            .ok_or_else(|| {
                let what = format!("there is no piece {piece} of a tensor {tensor}");
                ClientError::corrupt("the journal", what)
            })?;
        let begin = view.offset + piece * PIECE_ELEMENTS * view.spec.class.width() as u64;
        Ok((view, begin))
    }

    /// Open weight file `number` for writing. If it is not there in its full length, which only others can have
    /// done, it is noted as failed.
    fn open_weight_file(&mut self, number: usize) -> Result<bool> {
        if (self.open.as_ref()).is_some_and(|(open, ..)| *open == number) {
            return Ok(true);
        }
        let snapshot = &self.target.snapshot;
        let (Some(spec), Some(entry)) = (
            snapshot.schema.files.get(number),
            snapshot.tree.weight_files.get(number),
        ) else {
            let what = format!("there is no weight file {number}");
            return Err(ClientError::corrupt("the journal", what));
        };
        self.written.insert(number);
        let size = self.folder.stat(&spec.path).map(|stat| stat.size);
        if size != Some(entry.data_offset() + spec.data_len()) {
            self.failed.insert(spec.path.to_string());
            return Ok(false);
        }
        let (file, location) = self.folder.open(&spec.path, true)?;
        self.open = Some((number, file, location));
        Ok(true)
    }

    /// Compare what the journal wrote with what the files hold now.
    fn read_back(&mut self, journal: &Journal) -> Result<()> {
        journal.for_each(|record| {
            let good = match record {
                Record::Words {
                    tensor,
                    piece,
                    indexes,
                    words,
                } => self.holds_words(tensor, piece, indexes, words)?,
                Record::Bytes {
                    file,
                    offset,
                    bytes,
                } => self.holds_bytes(file, offset, bytes)?,
                _ => None,
            };
            self.failed.extend(good);
            Ok(())
        })?;
        self.open = None;
        Ok(())
    }

    /// The name of the tensor if its file does not hold these words.
    fn holds_words(
        &mut self,
        tensor: usize,
        piece: u64,
        indexes: &[u8],
        words: &[u8],
    ) -> Result<Option<String>> {
        let (view, begin) = self.piece(tensor, piece)?;
        if !self.open_weight_file(view.file)? {
            return Ok(None);
        }
        let Some((_, file, location)) = &self.open else {
            return Ok(None);
        };
        let mut good = true;
        for run in Runs::new(&view, piece, indexes, words)? {
            self.buffer.resize(run.bytes.len(), 0);
            let offset = begin + run.bytes.start as u64;
            read_exact_at(file, location, offset, &mut self.buffer)?;
            run.for_each_word(|at, word| good &= self.buffer[at..at + word.len()] == *word);
        }
        Ok((!good).then(|| tensor_name(&view)))
    }

    /// The name of the file if it does not hold these bytes.
    fn holds_bytes(&mut self, number: usize, offset: u64, bytes: &[u8]) -> Result<Option<String>> {
        if !self.open_weight_file(number)? {
            return Ok(None);
        }
        let Some((_, file, location)) = &self.open else {
            return Ok(None);
        };
        self.buffer.resize(bytes.len(), 0);
        read_exact_at(file, location, offset, &mut self.buffer)?;
        let path = &self.target.snapshot.schema.files[number].path;
        Ok((self.buffer != bytes).then(|| path.to_string()))
    }

    /// Check header and moments of everything in the weight files that were written.
    fn prove_weight_files(&mut self, progress: &dyn Progress) -> Result<()> {
        let mut rest = &self.tensors[..];
        for (number, (spec, entry)) in self.target.snapshot.weight_files().enumerate() {
            let (tensors, after) = rest.split_at(spec.tensors.len());
            rest = after;
            let touched = self.written.contains(&number) || self.placed.contains(&spec.path);
            if !touched || self.failed.contains(spec.path.as_str()) {
                continue;
            }
            let (header, good) =
                scan_weight_file(self.folder, entry, tensors, &spec.path, progress)?;
            if !header {
                self.failed.insert(format!("the header of {}", spec.path));
            }
            let bad = tensors.iter().zip(good).filter(|(_, good)| !good);
            self.failed.extend(bad.map(|(view, _)| tensor_name(view)));
        }
        Ok(())
    }
}

/// Passes progress on, and takes no wish to stop: a commit under way is completed.
struct Unstoppable<'a>(&'a dyn Progress);

impl Progress for Unstoppable<'_> {
    fn phase(&self, name: &'static str, total: Option<u64>) {
        self.0.phase(name, total);
    }

    fn advance(&self, bytes: u64) {
        self.0.advance(bytes);
    }
}

/// Words of a piece in runs that are read and written at once.
struct Runs<'a> {
    indexes: &'a [[u8; 4]],
    words: &'a [u8],
    width: usize,
}

/// Neighbouring words of a piece.
struct Run<'a> {
    /// Where they lie in the piece, with what lies between them.
    bytes: Range<usize>,
    indexes: &'a [[u8; 4]],
    words: &'a [u8],
    width: usize,
}

impl<'a> Runs<'a> {
    fn new(view: &TensorView<'_>, piece: u64, indexes: &'a [u8], words: &'a [u8]) -> Result<Self> {
        let width = view.spec.class.width();
        let indexes = indexes.as_chunks().0;
        let end = piece_len(view.spec.elements(), piece);
        let ascending =
            indexes.is_sorted_by(|a, b| u32::from_le_bytes(*a) < u32::from_le_bytes(*b));
        let inside =
            (indexes.last()).is_some_and(|last| u64::from(u32::from_le_bytes(*last)) < end);
        if !ascending || !inside || words.len() != indexes.len() * width {
            let what = format!("words of {} are not in their piece", tensor_name(view));
            return Err(ClientError::corrupt("the journal", what));
        }
        Ok(Self {
            indexes,
            words,
            width,
        })
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = Run<'a>;

    fn next(&mut self) -> Option<Run<'a>> {
        let at = |index: &[u8; 4]| u32::from_le_bytes(*index) as usize * self.width;
        let begin = at(self.indexes.first()?);
        let near = |pair: &&[[u8; 4]]| at(&pair[1]) - at(&pair[0]) <= GAP;
        let count = 1 + self.indexes.windows(2).take_while(near).count();
        let (indexes, rest) = self.indexes.split_at(count);
        let end = at(&indexes[count - 1]) + self.width;
        let (words, rest_words) = self.words.split_at(count * self.width);
        (self.indexes, self.words) = (rest, rest_words);
        Some(Run {
            bytes: begin..end,
            indexes,
            words,
            width: self.width,
        })
    }
}

impl Run<'_> {
    /// Give every word, with where it lies in the run's bytes.
    fn for_each_word(&self, mut each: impl FnMut(usize, &[u8])) {
        for (index, word) in self.indexes.iter().zip(self.words.chunks_exact(self.width)) {
            let at = u32::from_le_bytes(*index) as usize * self.width - self.bytes.start;
            each(at, word);
        }
    }
}
