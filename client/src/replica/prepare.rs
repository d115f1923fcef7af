//! Preparing a pull: everything that it needs is gathered, checked and made durable in the journal and in staged
//! files, while the replica's own files stay as they are.

use super::folder::{Folder, sync_folder};
use super::inspect::tensor_name;
use super::journal::{JournalWriter, Target};
use super::plan::{Action, Base, Plan};
use super::receive::Receiver;
use super::seeds::{Seeds, file_label, tensor_label};
use crate::error::{At, ClientError, Result};
use crate::handles::Handles;
use crate::parts::{check_cancelled, parts, read_exact_at};
use crate::source::Source;
use deltaic_format::fetch::TensorWish;
use deltaic_format::ids::FileId;
use deltaic_format::object::{FileMode, Snapshot, TensorView};
use deltaic_format::progress::Progress;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

/// What came of a preparation.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub received_bytes: u64,
    /// Elements.
    pub changed: u64,
    /// Tensors.
    pub patched: u64,
    pub whole: u64,
    pub seeded: u64,
    pub unchanged: u64,
}

/// A preparation under way.
pub(super) struct Preparation<'a> {
    pub folder: &'a Folder,
    pub base: Option<&'a Base<'a>>,
    pub want: &'a Snapshot,
    pub plan: &'a Plan<'a>,
    pub journal: JournalWriter,
    pub progress: &'a dyn Progress,
    pub tally: Tally,
    staged: Handles,
    buffer: Vec<u8>,
}

impl<'a> Preparation<'a> {
    /// Begin the way from `base` to `target`.
    pub(super) fn new(
        (folder, base): (&'a Folder, Option<&'a Base<'a>>),
        want: &'a Snapshot,
        plan: &'a Plan<'a>,
        target: Target,
        progress: &'a dyn Progress,
    ) -> Result<Self> {
        Ok(Self {
            folder,
            base,
            want,
            plan,
            journal: JournalWriter::create(folder, target)?,
            progress,
            tally: Tally {
                unchanged: plan.unchanged,
                ..Tally::default()
            },
            staged: Handles::default(),
            buffer: Vec::new(),
        })
    }

    /// Gather everything, from what is held, then from `seeds`, then from `source`. What is returned becomes the
    /// journal once it is finished.
    pub(super) fn run(
        mut self,
        source: &dyn Source,
        mut seeds: Seeds,
    ) -> Result<(JournalWriter, Tally)> {
        self.progress.phase("reusing", None);
        for &number in &self.plan.files {
            self.stage_file(number, source, &mut seeds)?;
        }
        self.begin_weight_files(source)?;
        let wishes = self.copy_what_is_here(&mut seeds)?;
        if !wishes.is_empty() {
            let total = source.plan(self.want, &wishes)?.bytes;
            self.progress.phase("receiving", Some(total));
            let want = self.want;
            let mut receiver = Receiver::new(&mut self, &wishes);
            source.fetch(want, &wishes, &mut |delivery| receiver.receive(delivery))?;
            receiver.finish()?;
        }
        self.journal_files()?;
        Ok((self.journal, self.tally))
    }

    /// Write `bytes` at `offset` of weight file `file`, as far as a preparation may: into the journal if the file is
    /// changed where it lies, else into the staged one.
    pub(super) fn put(&mut self, file: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        if self.plan.weight_files[&file].in_place {
            return self.journal.bytes(file, offset, bytes);
        }
        let path = self.folder.staged(file);
        let open = || OpenOptions::new().write(true).open(&path).at(&path);
        let staged = self.staged.get(file, open)?;
        staged.write_all_at(bytes, offset).at(&path)
    }

    /// Number under which other file `number` is staged.
    fn staged_file(&self, number: usize) -> usize {
        self.want.schema.files.len() + number
    }

    /// Stage a file that is no weight file.
    fn stage_file(&mut self, number: usize, source: &dyn Source, seeds: &mut Seeds) -> Result<()> {
        let entry = &self.want.files()[number];
        let path = self.folder.staged(self.staged_file(number));
        let file = File::create(&path).at(&path)?;
        let mut put = |offset, part: &[u8]| file.write_all_at(part, offset).at(&path);
        let label = file_label(&entry.path);
        let id = entry.id;
        if let Some(seed) = seeds.find(&id.0, entry.size, label, self.progress)? {
            let mut hasher = blake3::Hasher::new();
            for range in parts(0..entry.size) {
                self.buffer.resize((range.end - range.start) as usize, 0);
                seeds.read(seed, range.start, &mut self.buffer)?;
                hasher.update(&self.buffer);
                put(range.start, &self.buffer)?;
            }
            return check_copied(entry.path.as_str(), id.0, &hasher);
        }
        let received = receive_file(
            source,
            id,
            entry.size,
            entry.path.as_str(),
            self.progress,
            &mut put,
        );
        self.tally.received_bytes += received?;
        Ok(())
    }

    /// Create the staged weight files, and write the headers that change.
    fn begin_weight_files(&mut self, source: &dyn Source) -> Result<()> {
        for (&number, plan) in &self.plan.weight_files {
            let (spec, entry) = (
                &self.want.schema.files[number],
                &self.want.tree.weight_files[number],
            );
            if !plan.in_place {
                let path = self.folder.staged(number);
                let file = File::create(&path).at(&path)?;
                file.set_len(entry.data_offset() + spec.data_len())
                    .at(&path)?;
            }
            if !plan.header {
                continue;
            }
            let begin = entry.data_offset() - entry.header_len;
            self.put(number, 0, &entry.header_len.to_le_bytes())?;
            let name = format!("the header of {}", spec.path);
            let progress = self.progress;
            let mut put = |offset, part: &[u8]| self.put(number, begin + offset, part);
            let received = receive_file(
                source,
                entry.header,
                entry.header_len,
                &name,
                progress,
                &mut put,
            )?;
            self.tally.received_bytes += received;
        }
        Ok(())
    }

    /// Copy every wanted content that is on this machine; the wishes are for the others.
    fn copy_what_is_here(&mut self, seeds: &mut Seeds) -> Result<Vec<TensorWish>> {
        let (plan, base) = (self.plan, self.base);
        let mut wishes = Vec::new();
        for (view, action) in plan.tensors.iter().zip(&plan.actions) {
            let tensor = view.index;
            match *action {
                Action::Keep => {}
                Action::Carry(held) | Action::Copy(held) => {
                    self.copy_held(view, held)?;
                    if let Action::Copy(_) = action {
                        self.tally.seeded += 1;
                        self.tally.changed += view.spec.elements();
                    }
                }
                Action::Patch(held) => wishes.push(TensorWish {
                    tensor,
                    have: base.map(|base| base.tensors[held].entry.id),
                }),
                Action::Fetch => {
                    let (id, label) = (&view.entry.id.0, tensor_label(view.spec));
                    match seeds.find(id, view.spec.byte_len(), label, self.progress)? {
                        None => wishes.push(TensorWish { tensor, have: None }),
                        Some(seed) => {
                            self.copy(view, |offset, out| seeds.read(seed, offset, out))?;
                            self.tally.seeded += 1;
                            self.tally.changed += view.spec.elements();
                        }
                    }
                }
            }
        }
        Ok(wishes)
    }

    fn copy_held(&mut self, view: &TensorView<'_>, held: usize) -> Result<()> {
        let Some(base) = self.base else {
            return Ok(());
        };
        let (file, location) = base.file_of(held)?;
        let begin = base.tensors[held].offset;
        self.copy(view, |offset, out| {
            read_exact_at(&file, &location, begin + offset, out)
        })
    }

    /// Copy the content of wanted tensor `view` from `read`, and check that it is what its id says.
    fn copy(
        &mut self,
        view: &TensorView<'_>,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut hasher = blake3::Hasher::new();
        let mut buffer = std::mem::take(&mut self.buffer);
        for range in parts(0..view.spec.byte_len()) {
            check_cancelled(self.progress)?;
            buffer.resize((range.end - range.start) as usize, 0);
            read(range.start, &mut buffer)?;
            hasher.update(&buffer);
            self.put(view.file, view.offset + range.start, &buffer)?;
            self.progress.advance(buffer.len() as u64);
        }
        self.buffer = buffer;
        check_copied(&tensor_name(view), view.entry.id.0, &hasher)
    }

    /// Make what is staged durable, and journal which files go and which ones come.
    fn journal_files(&mut self) -> Result<()> {
        for path in &self.plan.removed {
            self.journal.remove(path)?;
        }
        let mut staged = Vec::new();
        for (&number, file) in &self.plan.weight_files {
            if !file.in_place {
                let path = &self.want.schema.files[number].path;
                staged.push((number, FileMode::Plain, path));
            }
        }
        for &number in &self.plan.files {
            let entry = &self.want.files()[number];
            staged.push((self.staged_file(number), entry.mode, &entry.path));
        }
        for (number, mode, path) in staged {
            let location = self.folder.staged(number);
            File::open(&location)
                .and_then(|file| file.sync_all())
                .at(&location)?;
            self.journal.rename(number, mode, path)?;
        }
        match self.folder.staged(0).parent() {
            Some(folder) => sync_folder(folder),
            None => Ok(()),
        }
    }
}

/// Fail if a copied content is not what it was when it was chosen.
fn check_copied(object: &str, id: [u8; 32], hasher: &blake3::Hasher) -> Result<()> {
    if *hasher.finalize().as_bytes() == id {
        return Ok(());
    }
    Err(ClientError::proof(
        object,
        "its copy on this machine changed while it was read",
    ))
}

/// Give the bytes of file `id` to `put` as they come, and return their number; on error they are worth nothing.
fn receive_file(
    source: &dyn Source,
    id: FileId,
    size: u64,
    name: &str,
    progress: &dyn Progress,
    put: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<u64> {
    let mut received = 0u64;
    let mut hasher = blake3::Hasher::new();
    source.file(id, size, &mut |part| {
        check_cancelled(progress)?;
        if part.len() as u64 > size - received {
            return Err(ClientError::delivery(
                name,
                format!("more than its {size} bytes"),
            ));
        }
        put(received, part)?;
        hasher.update(part);
        received += part.len() as u64;
        Ok(())
    })?;
    if received != size || *hasher.finalize().as_bytes() != id.0 {
        let what = format!("{received} bytes of {size}, or of another content");
        return Err(ClientError::delivery(name, what));
    }
    Ok(received)
}
