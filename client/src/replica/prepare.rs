//! Preparing a pull: everything that it needs is gathered, checked and made durable in the journal and in staged
//! files, while the replica's own files stay as they are.

use super::folder::Folder;
use super::journal::{JournalWriter, Target};
use super::plan::{Action, Base, Plan};
use super::receive::Receiver;
use super::request::Trust;
use super::seeds::{Seeds, file_label, tensor_label};
use super::stamp::settled_time;
use crate::arrival::{receive_file, tensor_name};
use crate::disk::{Finish, sync_folder};
use crate::error::{ClientError, Result};
use crate::parts::{check_cancelled, parts, read_exact_at};
use crate::source::{Ask, EdgesSource, Source};
use deltaic_format::fetch::TensorWish;
use deltaic_format::object::{FileMode, Snapshot, TensorView};
use deltaic_format::progress::Progress;
use std::collections::HashMap;

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
    pub trust: Trust,
    pub plan: &'a Plan<'a>,
    pub journal: JournalWriter,
    pub progress: &'a dyn Progress,
    pub tally: Tally,
    buffer: Vec<u8>,
}

impl<'a> Preparation<'a> {
    /// Begin the way from `base` to `target`.
    pub(super) fn new(
        (folder, base): (&'a Folder, Option<&'a Base<'a>>),
        (want, trust): (&'a Snapshot, Trust),
        plan: &'a Plan<'a>,
        target: Target,
        progress: &'a dyn Progress,
    ) -> Result<Self> {
        Ok(Self {
            folder,
            base,
            want,
            trust,
            plan,
            journal: JournalWriter::create(folder, target)?,
            progress,
            tally: Tally {
                unchanged: plan.unchanged,
                ..Tally::default()
            },
            buffer: Vec::new(),
        })
    }

    /// Gather everything, from what is held, then from `seeds`, then from `source`. What is returned becomes the
    /// journal once it is finished.
    pub(super) fn run(
        mut self,
        source: &dyn Source,
        seeds: &mut Seeds,
    ) -> Result<(JournalWriter, Tally)> {
        let found = self.search(seeds)?;
        let total = self.reusable_bytes(&found);
        self.progress.phase("reusing", Some(total));
        for &number in &self.plan.files {
            self.stage_file(number, source, (seeds, found.files.get(&number)))?;
        }
        self.begin_weight_files(source)?;
        let wishes = self.copy_what_is_here(seeds, &found)?;
        if !wishes.is_empty() {
            self.receive(source, &wishes)?;
        }
        self.journal_files()?;
        Ok((self.journal, self.tally))
    }

    /// Fetch what `wishes` name.
    fn receive(&mut self, source: &dyn Source, wishes: &[TensorWish]) -> Result<()> {
        let (trust, progress) = (self.trust, self.progress);
        let ask = Ask {
            want: self.want,
            held: self.base.map(|base| &base.held.snapshot),
            wishes,
        };
        // Long paths add up to more than is ever sent.
        let total = source.plan(&ask)?.bytes.min(self.want.full_bytes());
        progress.phase("receiving", Some(total));
        let mut received = 0;
        let mut receiver = Receiver::new(self, wishes);
        let mut count = |bytes| {
            received += bytes;
            progress.advance(bytes);
        };
        match trust {
            Trust::Edges => {
                EdgesSource::new(source, progress)
                    .fetch(&ask, &mut count, &mut |delivery| receiver.receive(delivery))?
            }
            Trust::Server | Trust::Content => source.fetch(&ask, &mut |delivery| {
                count(delivery.len());
                receiver.receive(delivery)
            })?,
        }
        receiver.finish()?;
        self.tally.received_bytes += received;
        Ok(())
    }

    /// Look in the seeds for what would have to be fetched.
    fn search(&self, seeds: &mut Seeds) -> Result<Found> {
        let mut found = Found::default();
        if seeds.is_empty() {
            return Ok(found);
        }
        self.progress.phase("searching seeds", None);
        for &number in &self.plan.files {
            let entry = &self.want.files()[number];
            let label = file_label(&entry.path);
            let seed = seeds.find(&entry.id.0, entry.size, label, self.progress)?;
            found.files.extend(seed.map(|seed| (number, seed)));
        }
        let plan = self.plan;
        for (view, action) in plan.tensors.iter().zip(&plan.actions) {
            if *action == Action::Fetch {
                let (id, len) = (&view.entry.id.0, view.spec.byte_len());
                let seed = seeds.find(id, len, tensor_label(view.spec), self.progress)?;
                found.tensors.extend(seed.map(|seed| (view.index, seed)));
            }
        }
        Ok(found)
    }

    /// Bytes that come one by one: files, headers, and tensors that are on this machine.
    fn reusable_bytes(&self, found: &Found) -> u64 {
        let files = self.plan.files.iter();
        let files: u64 = files.map(|number| self.want.files()[*number].size).sum();
        let headers = self
            .plan
            .weight_files
            .iter()
            .filter(|(_, file)| file.header);
        let headers: u64 = headers
            .map(|(number, _)| self.want.tree.weight_files[*number].header_len)
            .sum();
        let tensors = self.plan.tensors.iter().zip(&self.plan.actions);
        let is_here = |(view, action): &(&TensorView<'_>, &Action)| match action {
            Action::Carry(_) | Action::Copy(_) => true,
            Action::Fetch => found.tensors.contains_key(&view.index),
            Action::Keep | Action::Patch(_) => false,
        };
        let tensors = tensors.filter(is_here);
        let tensors: u64 = tensors.map(|(view, _)| view.spec.byte_len()).sum();
        files + headers + tensors
    }

    /// Whether weight file `file` is changed where it lies.
    pub(super) fn in_place(&self, file: usize) -> bool {
        self.plan.weight_files[&file].in_place
    }

    /// Write `bytes` at `offset` of weight file `file`, as far as a preparation may: into the journal if the file is
    /// changed where it lies, else into the staged one.
    pub(super) fn put(&mut self, file: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        match self.in_place(file) {
            true => self.journal.bytes(file, offset, bytes),
            false => self.folder.staging().write_at(file, offset, bytes),
        }
    }

    /// Number under which other file `number` is staged.
    fn staged_file(&self, number: usize) -> usize {
        self.want.schema.files.len() + number
    }

    /// Stage a file that is no weight file, from `seed` if it was found there.
    fn stage_file(
        &mut self,
        number: usize,
        source: &dyn Source,
        (seeds, seed): (&mut Seeds, Option<&usize>),
    ) -> Result<()> {
        let (staging, staged) = (self.folder.staging(), self.staged_file(number));
        let entry = &self.want.files()[number];
        let name = entry.path.as_str();
        staging.create(staged, entry.size)?;
        let mut put = |offset, part: &[u8]| staging.write_at(staged, offset, part);
        if let Some(&seed) = seed {
            let read = |offset, out: &mut [u8]| seeds.read(seed, offset, out);
            let content = (name, entry.id.0, entry.size);
            match copy(content, read, &mut put, &mut self.buffer, self.progress)? {
                Ok(()) => return Ok(()),
                Err(error) => seeds.skip(seed, &error),
            }
        }
        let stored = (entry.id, entry.size);
        let version = self.want.id;
        let received = receive_file(source, version, stored, name, self.progress, &mut put);
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
                let len = entry.data_offset() + spec.data_len();
                self.folder.staging().create(number, len)?;
            }
            if !plan.header {
                continue;
            }
            let begin = entry.data_offset() - entry.header_len;
            self.put(number, 0, &entry.header_len.to_le_bytes())?;
            let name = format!("the header of {}", spec.path);
            let (version, progress) = (self.want.id, self.progress);
            let mut put = |offset, part: &[u8]| self.put(number, begin + offset, part);
            let stored = (entry.header, entry.header_len);
            let received = receive_file(source, version, stored, &name, progress, &mut put)?;
            self.tally.received_bytes += received;
        }
        Ok(())
    }

    /// Copy every wanted content that is on this machine; the wishes are for the others.
    fn copy_what_is_here(&mut self, seeds: &mut Seeds, found: &Found) -> Result<Vec<TensorWish>> {
        let (plan, base) = (self.plan, self.base);
        let mut wishes = Vec::new();
        for (view, action) in plan.tensors.iter().zip(&plan.actions) {
            let tensor = view.index;
            match *action {
                Action::Keep => {}
                Action::Carry(held) => self.copy_held(view, held)?,
                Action::Copy(held) => {
                    self.copy_held(view, held)?;
                    self.count_seeded(view);
                }
                Action::Patch(held) => wishes.push(TensorWish {
                    tensor,
                    have: base.map(|base| base.tensors[held].entry.id),
                }),
                Action::Fetch => {
                    let seed = found.tensors.get(&tensor);
                    let copied = seed.map(|&seed| self.copy_seed(view, seeds, seed));
                    if copied.transpose()? != Some(true) {
                        wishes.push(TensorWish { tensor, have: None });
                    }
                }
            }
        }
        Ok(wishes)
    }

    fn count_seeded(&mut self, view: &TensorView<'_>) {
        self.tally.seeded += 1;
        self.tally.changed += view.spec.elements();
    }

    fn copy_held(&mut self, view: &TensorView<'_>, held: usize) -> Result<()> {
        let Some(base) = self.base else {
            return Ok(());
        };
        let (file, location) = base.file_of(held)?;
        let begin = base.tensors[held].offset;
        self.copy_tensor(view, |offset, out| {
            read_exact_at(&file, &location, begin + offset, out)
        })?
    }

    /// Copy the content of wanted tensor `view` from a seed; if that turns out to be unfit, nothing was copied.
    fn copy_seed(&mut self, view: &TensorView<'_>, seeds: &mut Seeds, seed: usize) -> Result<bool> {
        let mark = self.journal.mark()?;
        let copied = self.copy_tensor(view, |offset, out| seeds.read(seed, offset, out))?;
        match copied {
            Ok(()) => self.count_seeded(view),
            Err(error) => {
                seeds.skip(seed, &error);
                self.journal.go_back(mark)?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Copy the content of wanted tensor `view` from `read`; the inner error is that of `read`, or that it is not the
    /// content any more.
    fn copy_tensor(
        &mut self,
        view: &TensorView<'_>,
        read: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Result<()>> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let name = tensor_name(view);
        let content = (name.as_str(), view.entry.id.0, view.spec.byte_len());
        let progress = self.progress;
        let mut put = |offset, part: &[u8]| self.put(view.file, view.offset + offset, part);
        let copied = copy(content, read, &mut put, &mut buffer, progress);
        self.buffer = buffer;
        copied
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
            let held = self.base.filter(|base| base.held.files.contains_key(path));
            let finish = Finish {
                mode,
                permissions: held.and_then(|_| self.folder.permissions(path)),
                modified: Some(settled_time()),
            };
            self.folder.staging().finish(number, finish)?;
            self.journal.rename(number, path)?;
        }
        sync_folder(self.folder.staging().folder())
    }
}

/// Contents that were found in seeds.
#[derive(Debug, Default)]
struct Found {
    /// By the number of the file.
    files: HashMap<usize, usize>,
    /// By the number of the tensor.
    tensors: HashMap<usize, usize>,
}

/// Copy a content, given by what it is called, its hash and its length, from `read` to `put`. The inner error is that of
/// `read`, or that it is not the content any more.
fn copy(
    (object, id, len): (&str, [u8; 32], u64),
    mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
    put: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    buffer: &mut Vec<u8>,
    progress: &dyn Progress,
) -> Result<Result<()>> {
    let mut hasher = blake3::Hasher::new();
    for range in parts(0..len) {
        check_cancelled(progress)?;
        buffer.resize((range.end - range.start) as usize, 0);
        if let Err(error) = read(range.start, buffer) {
            return Ok(Err(error));
        }
        hasher.update(buffer);
        put(range.start, buffer)?;
        progress.advance(buffer.len() as u64);
    }
    if *hasher.finalize().as_bytes() == id {
        return Ok(Ok(()));
    }
    let why = "its copy on this machine changed while it was read";
    Ok(Err(ClientError::proof(object, why)))
}
