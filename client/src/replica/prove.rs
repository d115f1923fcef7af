//! The proof after a commit: what was written reads back, and what others may have touched is scanned.

use super::Proof;
use super::commit::Commit;
use super::inspect::scan_weight_file;
use super::journal::{Journal, Record};
use super::runs::Runs;
use crate::arrival::tensor_name;
use crate::error::Result;
use crate::parts::{hash_range, read_exact_at};
use deltaic_format::name::TreePath;
use deltaic_format::progress::Progress;
use std::collections::BTreeSet;

impl Commit<'_> {
    /// Check that the files hold what was written, all of what is in the weight files that changed if the proof is to
    /// be full, and all of what is in files that others may have touched since the commit began. What does not is noted as
    /// failed.
    pub(super) fn prove(
        &mut self,
        journal: &Journal,
        proof: Proof,
        progress: &dyn Progress,
    ) -> Result<()> {
        let full = match proof {
            Proof::Touched => BTreeSet::new(),
            Proof::Full => self.watch.paths().into_iter().collect(),
        };
        let scanned = self.weight_bytes(&full);
        progress.phase("proving", Some(journal.bytes() + scanned));
        self.read_back(journal, progress)?;
        self.scan_weight_files(&full, progress)?;
        (self.fault)("settle")?;
        for path in self.watch.paths() {
            self.watch.look(&path, self.folder.stat(&path));
        }
        let meddled = self.watch.paths().into_iter();
        let meddled: BTreeSet<_> = meddled.filter(|path| self.watch.is_meddled(path)).collect();
        if !meddled.is_empty() {
            progress.phase("checking", Some(self.weight_bytes(&meddled)));
            self.scan_weight_files(&meddled, progress)?;
            self.scan_files(&meddled, progress)?;
        }
        Ok(())
    }

    /// Bytes of the weight files among `paths`.
    fn weight_bytes(&self, paths: &BTreeSet<TreePath>) -> u64 {
        let files = self.target.snapshot.weight_files();
        let files = files.filter(|(spec, _)| paths.contains(&spec.path));
        files
            .map(|(spec, entry)| entry.data_offset() + spec.data_len())
            .sum()
    }

    /// Compare what the journal wrote with what the files hold now.
    fn read_back(&mut self, journal: &Journal, progress: &dyn Progress) -> Result<()> {
        journal.for_each(|record| {
            let good = match record {
                Record::Words {
                    tensor,
                    piece,
                    indexes,
                    words,
                } => {
                    progress.advance(words.len() as u64);
                    self.holds_words(tensor, piece, indexes, words)?
                }
                Record::Bytes {
                    file,
                    offset,
                    bytes,
                } => {
                    progress.advance(bytes.len() as u64);
                    self.holds_bytes(file, offset, bytes)?
                }
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

    /// Check header and moments of everything in the weight files among `paths`.
    fn scan_weight_files(
        &mut self,
        paths: &BTreeSet<TreePath>,
        progress: &dyn Progress,
    ) -> Result<()> {
        let mut rest = &self.tensors[..];
        for (spec, entry) in self.target.snapshot.weight_files() {
            let (tensors, after) = rest.split_at(spec.tensors.len());
            rest = after;
            if !paths.contains(&spec.path) || self.failed.contains(spec.path.as_str()) {
                continue;
            }
            let len = entry.data_offset() + spec.data_len();
            if self.folder.stat(&spec.path).map(|stat| stat.size) != Some(len) {
                self.failed.insert(spec.path.to_string());
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

    /// Check the files among `paths` that are no weight files.
    fn scan_files(&mut self, paths: &BTreeSet<TreePath>, progress: &dyn Progress) -> Result<()> {
        for entry in self.target.snapshot.files() {
            if !paths.contains(&entry.path) {
                continue;
            }
            let size = self.folder.stat(&entry.path).map(|stat| stat.size);
            let mut good = size == Some(entry.size);
            if good {
                let (file, location) = self.folder.open(&entry.path, false)?;
                let file = (&file, location.as_path());
                let hash = hash_range(file, 0..entry.size, &mut self.buffer, progress)?;
                good = hash == entry.id.0;
            }
            if !good {
                self.failed.insert(entry.path.to_string());
            }
        }
        Ok(())
    }
}
