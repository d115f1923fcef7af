//! Export: the committed files of a version, byte for byte, in a folder that is no replica.

mod private;

use crate::arrival::{bad, receive_file};
use crate::contents::Contents;
use crate::disk::{Finish, Staging, check_tree, is_blocked, locate, sync_folder};
use crate::error::{At, ClientError, Result};
use crate::parts::check_cancelled;
use crate::source::{Ask, Source};
use bytes::Bytes;
use deltaic_format::fetch::{Delivery, Span, TensorWish};
use deltaic_format::name::TreePath;
use deltaic_format::object::{FileEntry, FileMode, Snapshot, TensorView, WeightFileEntry};
use deltaic_format::progress::Progress;
use private::PrivateFolder;
use rayon::prelude::*;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// What was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExportOutcome {
    /// Number of files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Write the files of `want`, or those at or below `only`, to `folder`, replacing files and symlinks of the same names.
///
/// Each is staged in a folder of this export's own in `folder/.deltaic`, where no committed file can lie, and gets its
/// place by rename, only once all are whole, durable and have the hashes that the version names. So a failure or a crash
/// leaves no half file, and exports that run at once do not meet. Nothing is written through a symlink.
///
/// # Errors
///
/// [`ClientError::Invalid`] if nothing lies at `only`, or something is in the way of a file: a folder in its place, or
/// no folder where one is needed; and if the source fails or files cannot be written. Nothing has its name then, unless
/// the disk failed between the renames.
pub fn export(
    source: &dyn Source,
    want: &Snapshot,
    only: Option<&TreePath>,
    folder: &Path,
    progress: &dyn Progress,
) -> Result<ExportOutcome> {
    check_tree(want)?;
    let files = select(want, only)?;
    check_places(folder, &files)?;
    let private = PrivateFolder::create(folder)?;
    let export = Export {
        source,
        want,
        root: folder,
        progress,
        staging: Staging::new(private.path().to_owned()),
        files,
    };
    export.run()
}

/// A file that is written; it is staged under its place in the list of them.
struct ExportFile<'a> {
    path: &'a TreePath,
    content: Content<'a>,
}

enum Content<'a> {
    /// Number of the weight file, what the tree says of it, and the length of its tensors' bytes.
    Weights(usize, &'a WeightFileEntry, u64),
    Plain(&'a FileEntry),
}

impl ExportFile<'_> {
    fn len(&self) -> u64 {
        match self.content {
            Content::Weights(_, entry, data_len) => entry.data_offset() + data_len,
            Content::Plain(entry) => entry.size,
        }
    }

    fn mode(&self) -> FileMode {
        match self.content {
            Content::Weights(..) => FileMode::Plain,
            Content::Plain(entry) => entry.mode,
        }
    }
}

/// The files of `want` at or below `only`.
fn select<'a>(want: &'a Snapshot, only: Option<&TreePath>) -> Result<Vec<ExportFile<'a>>> {
    let weights = want.weight_files().enumerate();
    let weights = weights.map(|(number, (spec, entry))| ExportFile {
        path: &spec.path,
        content: Content::Weights(number, entry, spec.data_len()),
    });
    let plain = want.files().iter().map(|entry| ExportFile {
        path: &entry.path,
        content: Content::Plain(entry),
    });
    let selected = |file: &ExportFile<'_>| only.is_none_or(|only| file.path.lies_in(only));
    let files: Vec<_> = weights.chain(plain).filter(selected).collect();
    match only {
        Some(only) if files.is_empty() => Err(ClientError::Invalid {
            what: format!("{} has no file or folder {only}", want.commit.version),
        }),
        _ => Ok(files),
    }
}

/// Fail if something is in the way of a file.
fn check_places(root: &Path, files: &[ExportFile<'_>]) -> Result<()> {
    match fs::metadata(root) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(io::Error::from(ErrorKind::NotADirectory)).at(root),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).at(root),
    }
    let none = BTreeSet::new();
    for file in files {
        is_blocked(root, file.path, &none)?;
    }
    Ok(())
}

struct Export<'a> {
    source: &'a dyn Source,
    want: &'a Snapshot,
    root: &'a Path,
    progress: &'a dyn Progress,
    staging: Staging,
    files: Vec<ExportFile<'a>>,
}

impl Export<'_> {
    fn run(&self) -> Result<ExportOutcome> {
        let bytes = self.files.iter().map(ExportFile::len).sum();
        self.progress.phase("exporting", Some(bytes));
        for number in 0..self.files.len() {
            self.begin(number)?;
        }
        self.write_tensors()?;
        for (number, file) in self.files.iter().enumerate() {
            check_cancelled(self.progress)?;
            let finish = Finish {
                mode: file.mode(),
                permissions: None,
                modified: None,
            };
            self.staging.finish(number, finish)?;
        }
        self.place()?;
        Ok(ExportOutcome {
            files: self.files.len() as u64,
            bytes,
        })
    }

    /// Stage a file, and write what of it is stored as a file: a header, or all of it.
    fn begin(&self, number: usize) -> Result<()> {
        let file = &self.files[number];
        self.staging.create(number, file.len())?;
        let (stored, begin) = match file.content {
            Content::Plain(entry) => ((entry.id, entry.size), 0),
            Content::Weights(_, entry, _) => {
                let prefix = entry.header_len.to_le_bytes();
                self.staging.write_at(number, 0, &prefix)?;
                self.progress.advance(prefix.len() as u64);
                ((entry.header, entry.header_len), prefix.len() as u64)
            }
        };
        let mut put = |at, bytes: &[u8]| self.staging.write_at(number, begin + at, bytes);
        receive_file(
            self.source,
            self.want.id,
            stored,
            file.path.as_str(),
            self.progress,
            &mut put,
        )?;
        Ok(())
    }

    /// Fetch all tensors of the weight files that are staged.
    fn write_tensors(&self) -> Result<()> {
        let staged: HashMap<usize, usize> = (self.files.iter().enumerate())
            .filter_map(|(number, file)| match file.content {
                Content::Weights(weight_file, ..) => Some((weight_file, number)),
                Content::Plain(_) => None,
            })
            .collect();
        let views = self.want.tensors();
        let wanted = (views.iter())
            .filter(|view| staged.contains_key(&view.file) && view.spec.byte_len() > 0);
        let wishes: Vec<TensorWish> = wanted
            .map(|view| TensorWish {
                tensor: view.index,
                have: None,
            })
            .collect();
        // A tensor stays here until it is complete and right.
        let mut open: BTreeSet<usize> = wishes.iter().map(|wish| wish.tensor).collect();
        let mut contents = Contents::default();
        let (staging, progress) = (&self.staging, self.progress);
        let write = |contents: &mut Contents<'_>, open: &mut BTreeSet<usize>| -> Result<()> {
            let complete = contents.write(|parts| {
                parts.par_iter().try_for_each(|part| {
                    let file = staged[&part.view.file];
                    staging.write_at(file, part.offset(), &part.bytes)?;
                    progress.advance(part.bytes.len() as u64);
                    Ok(())
                })
            })?;
            complete.iter().for_each(|view| {
                open.remove(&view.index);
            });
            Ok(())
        };
        if wishes.is_empty() {
            return Ok(());
        }
        let ask = Ask {
            want: self.want,
            held: None,
            wishes: &wishes,
        };
        self.source.fetch(&ask, &mut |delivery| {
            check_cancelled(self.progress)?;
            let (view, span, bytes) = expected(&views, &open, delivery)?;
            match contents.take(view, span, bytes)? {
                true => write(&mut contents, &mut open),
                false => Ok(()),
            }
        })?;
        write(&mut contents, &mut open)?;
        match open.first() {
            Some(&tensor) => Err(bad(&views[tensor], "not all of it came")),
            None => Ok(()),
        }
    }

    /// Give all files their places, and make those durable.
    fn place(&self) -> Result<()> {
        check_places(self.root, &self.files)?;
        let mut folders: BTreeSet<PathBuf> = BTreeSet::new();
        for (number, file) in self.files.iter().enumerate() {
            let to = locate(self.root, file.path)?;
            self.staging.place(number, &to)?;
            let within = Path::new(file.path.as_str()).ancestors().skip(1);
            folders.extend(within.map(|within| self.root.join(within)));
        }
        folders.iter().try_for_each(|folder| sync_folder(folder))
    }
}

/// The tensor that a delivery is of, if it is one that is still open.
fn expected<'v>(
    views: &[TensorView<'v>],
    open: &BTreeSet<usize>,
    delivery: Delivery,
) -> Result<(TensorView<'v>, Span, Bytes)> {
    let Delivery::Content { span, bytes } = delivery else {
        let what = "a patch came, but nothing is held";
        return Err(ClientError::delivery("a tensor", what));
    };
    match views.get(span.tensor) {
        Some(view) if open.contains(&span.tensor) => Ok((*view, span, bytes)),
        _ => {
            let object = format!("tensor number {}", span.tensor);
            Err(ClientError::delivery(object, "it was not asked for"))
        }
    }
}
