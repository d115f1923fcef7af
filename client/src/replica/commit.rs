//! The commit of a prepared pull: the journal is applied, read back, and becomes the replica's state.
//!
//! Nothing here stops half-way for good: whatever goes wrong, the complete journal stays, and applying it again from the
//! start leads to the same files. Files are read and written, not mapped: engines and users share this folder, and a
//! mapping of a file that someone truncates, or that no longer fits the disk, is a crash where this is an error.

use super::folder::Folder;
use super::journal::{Journal, Record, Target};
use super::plan::selected_paths;
use super::runs::Runs;
use super::stamp::{FileStat, Watch, settled_time};
use super::state::Held;
use super::{FaultPoint, Proof};
use crate::disk::{open_if_there, sync_folder};
use crate::error::{At, ClientError, Result};
use crate::parts::read_exact_at;
use deltaic_format::name::TreePath;
use deltaic_format::object::TensorView;
use deltaic_format::patch::{PIECE_ELEMENTS, piece_count};
use deltaic_format::progress::Progress;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Applies a journal.
pub(super) struct Commit<'a> {
    pub(super) folder: &'a Folder,
    pub(super) target: &'a Target,
    pub(super) tensors: Vec<TensorView<'a>>,
    /// How files looked before anything was written.
    stats: BTreeMap<TreePath, FileStat>,
    pub(super) fault: &'a FaultPoint,
    /// The weight file that was written to last.
    pub(super) open: Option<(usize, File, PathBuf)>,
    /// Weight files that were changed where they lie.
    pub(super) written: BTreeSet<usize>,
    /// Files that were put in place.
    pub(super) placed: BTreeSet<TreePath>,
    /// What others do meanwhile to files that are changed or placed.
    pub(super) watch: Watch,
    /// Folders in which names came or went.
    renamed_in: BTreeSet<PathBuf>,
    /// What is not as it was written.
    pub(super) failed: BTreeSet<String>,
    pub(super) buffer: Vec<u8>,
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
            watch: Watch::default(),
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
        progress.phase("writing", Some(journal.bytes()));
        self.apply(journal, progress)?;
        self.prove(journal, proof, progress)?;
        if !self.failed.is_empty() {
            return Err(ClientError::Unusable {
                path: self.folder.root().to_owned(),
                what: self.failed.into_iter().collect(),
            });
        }
        let touched = self.watch.stats();
        self.save(touched)
    }

    /// Apply a journal that a crash left. What it touches may have been changed by others since, so it is marked to
    /// be read in full before anything relies on it.
    pub(super) fn replay(mut self, journal: &Journal, progress: &dyn Progress) -> Result<Held> {
        let progress = &Unstoppable(progress);
        progress.phase("replaying", Some(journal.bytes()));
        self.apply(journal, progress)?;
        let touched = self.watch.paths().into_iter().map(|path| (path, None));
        let touched = touched.collect();
        self.save(touched)
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
            Record::Rename { staged, path } => self.place(staged, &path),
            Record::Void { .. } => Ok(()),
        })?;
        self.open = None;
        self.settle()?;
        for folder in self.renamed_in.iter().filter(|folder| folder.is_dir()) {
            (self.fault)("sync")?;
            sync_folder(folder)?;
        }
        Ok(())
    }

    /// Settle what was changed where it lies, and make it durable.
    fn settle(&mut self) -> Result<()> {
        let schema = &self.target.snapshot.schema;
        for number in &self.written {
            let path = &schema.files[*number].path;
            if self.failed.contains(path.as_str()) {
                continue;
            }
            (self.fault)("sync")?;
            let (file, location) = self.folder.open(path, true)?;
            // What was written since our last write was not by us.
            self.watch.look(path, Some(stat_of(&file, &location)?));
            file.set_modified(settled_time()).at(&location)?;
            self.watch.wrote(path, stat_of(&file, &location)?);
            file.sync_all().at(&location)?;
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
        self.watch.look(view.path, Some(stat_of(file, location)?));
        for run in Runs::new(&view, piece, indexes, words)? {
            self.buffer.resize(run.bytes.len(), 0);
            let offset = begin + run.bytes.start as u64;
            read_exact_at(file, location, offset, &mut self.buffer)?;
            run.for_each_word(|at, word| self.buffer[at..at + word.len()].copy_from_slice(word));
            file.write_all_at(&self.buffer, offset).at(location)?;
        }
        self.watch.wrote(view.path, stat_of(file, location)?);
        Ok(())
    }

    fn write_bytes(&mut self, number: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        if !self.open_weight_file(number)? {
            return Ok(());
        }
        (self.fault)("bytes")?;
        self.check_bytes(number, offset, bytes)?;
        let Some((_, file, location)) = &self.open else {
            return Ok(());
        };
        let path = &self.target.snapshot.schema.files[number].path;
        self.watch.look(path, Some(stat_of(file, location)?));
        file.write_all_at(bytes, offset).at(location)?;
        self.watch.wrote(path, stat_of(file, location)?);
        Ok(())
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
    fn place(&mut self, staged: usize, path: &TreePath) -> Result<()> {
        self.placed.insert(path.clone());
        self.note_folders_of(path);
        let staging = self.folder.staging();
        let from = staging.path(staged);
        let to = self.folder.locate(path)?;
        let Some(file) = open_if_there(&from, false)? else {
            self.watch.begin(path, None);
            return Ok(());
        };
        (self.fault)("rename")?;
        // It was settled when it was staged.
        let settled = stat_of(&file, &from)?;
        staging.place(staged, &to)?;
        let placed = stat_of(&file, &to)?;
        // The rename alone may change the time of the last change.
        let expected = FileStat {
            ctime_ns: placed.ctime_ns,
            ..settled
        };
        self.watch.begin(path, Some(expected));
        self.watch.look(path, Some(placed));
        Ok(())
    }

    /// Note the folders whose names have to be made durable for `path` to be there, or gone.
    fn note_folders_of(&mut self, path: &TreePath) {
        let within = Path::new(path.as_str()).ancestors().skip(1);
        let folders = within.map(|within| self.folder.root().join(within));
        self.renamed_in.extend(folders);
    }

    /// A tensor of the target and where its piece `piece` begins in the file.
    pub(super) fn piece(&self, tensor: usize, piece: u64) -> Result<(TensorView<'a>, u64)> {
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
    pub(super) fn open_weight_file(&mut self, number: usize) -> Result<bool> {
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
        (self.watch).begin(&spec.path, self.stats.get(&spec.path).copied());
        let size = self.folder.stat(&spec.path).map(|stat| stat.size);
        if size != Some(entry.data_offset() + spec.data_len()) {
            self.failed.insert(spec.path.to_string());
            return Ok(false);
        }
        let (file, location) = self.folder.open(&spec.path, true)?;
        self.open = Some((number, file, location));
        Ok(true)
    }
}

fn stat_of(file: &File, location: &Path) -> Result<FileStat> {
    Ok(FileStat::of(&file.metadata().at(location)?))
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
