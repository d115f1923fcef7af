//! Export: the committed files of a version, byte for byte, in a folder that is no replica.

use crate::error::{At, ClientError, Result};
use crate::handles::Handles;
use crate::parts::check_cancelled;
use crate::source::Source;
use deltaic_format::base::decode_base_of;
use deltaic_format::fetch::{Delivery, PieceRef, TensorWish};
use deltaic_format::ids::FileId;
use deltaic_format::name::TreePath;
use deltaic_format::object::{FileMode, Snapshot, TensorView};
use deltaic_format::patch::{PIECE_ELEMENTS, piece_count, piece_len};
use deltaic_format::progress::Progress;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExportOutcome {
    /// Number of files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Write the files of `want`, or those at or below `only`, to `folder`, replacing files of the same names.
///
/// Each is written under a temporary name beside its place and gets its own only once all are whole and have the
/// hashes that the version names, so that a failure or a crash leaves no half file.
///
/// # Errors
///
/// [`ClientError::Invalid`] if nothing lies at `only`; and if the source fails or files cannot be written.
pub fn export(
    source: &dyn Source,
    want: &Snapshot,
    only: Option<&TreePath>,
    folder: &Path,
    progress: &dyn Progress,
) -> Result<ExportOutcome> {
    let selected = |path: &TreePath| only.is_none_or(|only| path.lies_in(only));
    let mut export = Export {
        source,
        want,
        folder,
        progress,
        files: Vec::new(),
        handles: Handles::default(),
    };
    let result = export.run(&selected, only);
    if result.is_err() {
        // A partial file in the way of a later export would only be overwritten.
        export
            .files
            .iter()
            .for_each(|file| drop(fs::remove_file(&file.part)));
    }
    result
}

/// A file on its way.
struct PartFile {
    part: PathBuf,
    target: PathBuf,
}

struct Export<'a> {
    source: &'a dyn Source,
    want: &'a Snapshot,
    folder: &'a Path,
    progress: &'a dyn Progress,
    files: Vec<PartFile>,
    handles: Handles,
}

impl Export<'_> {
    fn run(
        &mut self,
        selected: &dyn Fn(&TreePath) -> bool,
        only: Option<&TreePath>,
    ) -> Result<ExportOutcome> {
        fs::create_dir_all(self.folder).at(self.folder)?;
        let mut outcome = ExportOutcome::default();
        self.progress
            .phase("exporting", Some(self.bytes_of(selected)));
        // Number of each weight file among the files on their way.
        let mut weight_files = HashMap::new();
        for (number, (spec, entry)) in self.want.weight_files().enumerate() {
            if selected(&spec.path) {
                weight_files.insert(number, self.files.len());
                let file = self.create(&spec.path, FileMode::Plain)?;
                let part = self.part(self.files.len() - 1);
                file.write_all_at(&entry.header_len.to_le_bytes(), 0)
                    .at(&part)?;
                let at = entry.data_offset() - entry.header_len;
                self.write_file(&file, &part, at, entry.header, entry.header_len)?;
                outcome.bytes += entry.data_offset() + spec.data_len();
            }
        }
        for entry in self.want.files() {
            if selected(&entry.path) {
                let file = self.create(&entry.path, entry.mode)?;
                let part = self.part(self.files.len() - 1);
                self.write_file(&file, &part, 0, entry.id, entry.size)?;
                outcome.bytes += entry.size;
            }
        }
        if let (true, Some(only)) = (self.files.is_empty(), only) {
            return Err(ClientError::Invalid {
                what: format!("{} has no file or folder {only}", self.want.commit.version),
            });
        }
        self.write_tensors(&weight_files)?;
        self.publish()?;
        outcome.files = self.files.len() as u64;
        Ok(outcome)
    }

    fn bytes_of(&self, selected: &dyn Fn(&TreePath) -> bool) -> u64 {
        let weights = self
            .want
            .weight_files()
            .filter(|(spec, _)| selected(&spec.path));
        let weights: u64 = weights
            .map(|(spec, entry)| entry.data_offset() + spec.data_len())
            .sum();
        let files = self.want.files().iter().filter(|file| selected(&file.path));
        weights + files.map(|file| file.size).sum::<u64>()
    }

    fn part(&self, number: usize) -> PathBuf {
        self.files[number].part.clone()
    }

    /// Begin a file under its temporary name.
    fn create(&mut self, path: &TreePath, mode: FileMode) -> Result<File> {
        let target = self.folder.join(path.as_str());
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Err(ClientError::Invalid {
                what: format!("{} cannot be the place of a file", target.display()),
            });
        };
        fs::create_dir_all(parent).at(parent)?;
        let part = parent.join(format!(".{}.part", name.to_string_lossy()));
        let file = File::create(&part).at(&part)?;
        if mode == FileMode::Executable {
            let mut permissions = file.metadata().at(&part)?.permissions();
            // Executable for whoever may read it, as the umask left that.
            let readable = permissions.mode() & 0o444;
            permissions.set_mode(permissions.mode() | readable >> 2);
            file.set_permissions(permissions).at(&part)?;
        }
        self.files.push(PartFile { part, target });
        Ok(file)
    }

    /// Write a stored file at `at`, and check its hash.
    fn write_file(
        &self,
        file: &File,
        part: &Path,
        mut at: u64,
        id: FileId,
        size: u64,
    ) -> Result<()> {
        let mut hasher = blake3::Hasher::new();
        let mut left = size;
        self.source.file(id, size, &mut |bytes| {
            check_cancelled(self.progress)?;
            left = left
                .checked_sub(bytes.len() as u64)
                .ok_or_else(|| ClientError::delivery(format!("file {id}"), "it is too long"))?;
            hasher.update(bytes);
            file.write_all_at(bytes, at).at(part)?;
            at += bytes.len() as u64;
            self.progress.advance(bytes.len() as u64);
            Ok(())
        })?;
        if left > 0 || hasher.finalize().as_bytes() != id.as_bytes() {
            return Err(ClientError::delivery(
                format!("file {id}"),
                "it does not have its hash",
            ));
        }
        Ok(())
    }

    /// Fetch all tensors of the weight files on their way.
    fn write_tensors(&self, weight_files: &HashMap<usize, usize>) -> Result<()> {
        let views = self.want.tensors();
        let wanted = views
            .iter()
            .filter(|view| weight_files.contains_key(&view.file));
        let wishes: Vec<TensorWish> = wanted
            .map(|view| TensorWish {
                tensor: view.index,
                have: None,
            })
            .collect();
        let mut begun: HashMap<usize, (u64, blake3::Hasher)> = (wishes.iter())
            .map(|wish| (wish.tensor, (0, blake3::Hasher::new())))
            .collect();
        let mut content = Vec::new();
        self.source.fetch(self.want, &wishes, &mut |delivery| {
            check_cancelled(self.progress)?;
            let Delivery::Content { piece, bytes } = delivery else {
                return Err(ClientError::delivery(
                    "a tensor",
                    "a patch came, but nothing is held",
                ));
            };
            let PieceRef { tensor, piece } = piece;
            let (Some(view), Some((next, hasher))) = (views.get(tensor), begun.get_mut(&tensor))
            else {
                return Err(ClientError::delivery("a tensor", "it was not asked for"));
            };
            if *next != piece {
                return Err(ClientError::delivery(
                    name(view),
                    "its pieces came out of order",
                ));
            }
            *next += 1;
            let elements = piece_len(view.spec.elements(), piece);
            decode_base_of(view.spec.class, elements, bytes, &mut content)
                .map_err(|error| ClientError::delivery(name(view), error))?;
            hasher.update(&content);
            let offset = view.offset + piece * PIECE_ELEMENTS * view.spec.class.width() as u64;
            self.write_at(weight_files[&view.file], offset, &content)
        })?;
        for (tensor, (pieces, hasher)) in begun {
            let view = &views[tensor];
            let complete = pieces == piece_count(view.spec.elements());
            if !complete || hasher.finalize().as_bytes() != view.entry.id.as_bytes() {
                return Err(ClientError::delivery(
                    name(view),
                    "it is incomplete or does not have its hash",
                ));
            }
        }
        Ok(())
    }

    fn write_at(&self, number: usize, offset: u64, content: &[u8]) -> Result<()> {
        let part = &self.files[number].part;
        let open = || OpenOptions::new().write(true).open(part).at(part);
        self.handles
            .get(number, open)?
            .write_all_at(content, offset)
            .at(part)?;
        self.progress.advance(content.len() as u64);
        Ok(())
    }

    /// Make all files durable and give them their names.
    fn publish(&self) -> Result<()> {
        for file in &self.files {
            File::open(&file.part)
                .and_then(|part| part.sync_all())
                .at(&file.part)?;
        }
        for file in &self.files {
            fs::rename(&file.part, &file.target).at(&file.target)?;
            let folder = file.target.parent().unwrap_or(self.folder);
            File::open(folder)
                .and_then(|folder| folder.sync_all())
                .at(folder)?;
        }
        Ok(())
    }
}

fn name(view: &TensorView<'_>) -> String {
    format!("tensor {} ({})", view.spec.name, view.path)
}
