//! What turns the version that the shadow holds into a checkpoint: patches where those are smaller, else contents, in the
//! order of a fetch's answer.

use crate::checkpoint::Checkpoint;
use crate::error::{ClientError, Result};
use crate::parts::check_cancelled;
use deltaic_format::fetch::{AnswerKind, Answered, Chunk, Packer, Position, Span, piece_span};
use deltaic_format::ids::TensorId;
use deltaic_format::object::{Counterparts, Schema, Snapshot, TensorEntry, TensorSpec, TensorView};
use deltaic_format::patch::{
    BLOCK_ELEMENTS, Changes, PIECE_ELEMENTS, PatchHasher, diff, piece_count, piece_len,
};
use deltaic_format::progress::Progress;
use deltaic_format::{ElementClass, FormatError, Moments, base, patch_set};
use rayon::prelude::*;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of tensors that are worked on at a time.
const WINDOW_BYTES: u64 = 64 << 20;

/// The version that everything starts from, in files of this machine.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) snapshot: Snapshot,
    pub(crate) files: Checkpoint,
}

/// A tensor of the checkpoint, and what is held in its place.
#[derive(Debug, Clone)]
struct Task {
    tensor: usize,
    file: usize,
    offset: u64,
    spec: TensorSpec,
    held: Option<HeldTensor>,
}

#[derive(Debug, Clone, Copy)]
struct HeldTensor {
    file: usize,
    /// Where it begins in the file's data.
    offset: u64,
    entry: TensorEntry,
}

/// A checkpoint against a held version.
#[derive(Debug)]
pub(crate) struct Difference {
    held: Option<Held>,
    checkpoint: Arc<Checkpoint>,
    /// In the order of the answer.
    tasks: Vec<Task>,
    /// What is known of the checkpoint's tensors so far.
    entries: Mutex<BTreeMap<usize, TensorEntry>>,
}

/// Which chunks are made.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scope<'a> {
    /// Those after a position, for a receiver that has all tensors: equal contents are sent once. Tensors before the
    /// position are read only if nothing is known of them.
    After(Position),
    /// Those of these tensors.
    Tensors(&'a HashSet<usize>),
}

/// One piece, read and compared.
struct Piece {
    content: Vec<u8>,
    /// The moments of what is held in its place, and what changed.
    change: Option<(Moments, Changes)>,
}

impl Difference {
    /// Compare `checkpoint` with what is held, if anything is.
    pub(crate) fn new(held: Option<Held>, checkpoint: Arc<Checkpoint>) -> Self {
        let mut tasks = tasks(held.as_ref(), checkpoint.schema());
        tasks.sort_by_key(|task| (task.spec.class.number(), task.tensor));
        Self {
            held,
            checkpoint,
            tasks,
            entries: Mutex::default(),
        }
    }

    /// The version that everything starts from.
    pub(crate) fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// What is compared with it.
    pub(crate) fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// What the tree says of every tensor, once all chunks were made.
    pub(crate) fn entries(&self) -> Option<Vec<TensorEntry>> {
        let entries = self.known();
        (entries.len() == self.tasks.len()).then(|| entries.values().copied().collect())
    }

    /// Give the chunks of `scope` to `send`.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or the held files are not what their version says, if `send` fails, or the caller stops.
    pub(crate) fn send(
        &self,
        scope: Scope<'_>,
        progress: &dyn Progress,
        send: &mut dyn FnMut(Chunk) -> Result<()>,
    ) -> Result<()> {
        let (from, only) = match scope {
            Scope::After(from) => (from, None),
            Scope::Tensors(only) => (Position::default(), Some(only)),
        };
        let mut run = Run {
            difference: self,
            from,
            only,
            progress,
            packer: Packer::default(),
            sent: HashSet::new(),
        };
        let mut tasks = self.tasks.iter().enumerate().peekable();
        while let Some((wish, first)) = tasks.next() {
            check_cancelled(progress)?;
            if first.spec.elements() > PIECE_ELEMENTS {
                run.large(wish as u64, first, send)?;
                continue;
            }
            let mut window = vec![(wish as u64, first)];
            let mut bytes = first.spec.byte_len();
            while let Some((wish, task)) = tasks.next_if(|(_, task)| {
                task.spec.elements() <= PIECE_ELEMENTS
                    && bytes + task.spec.byte_len() <= WINDOW_BYTES
            }) {
                bytes += task.spec.byte_len();
                window.push((wish as u64, task));
            }
            run.window(&window, send)?;
        }
        run.packer.close().map_err(|e| self.failed(&e))?;
        run.flush(send)
    }

    /// An error of the formats, which what is read from files does not give by itself.
    fn failed(&self, error: &FormatError) -> ClientError {
        ClientError::checkpoint(self.checkpoint.path(), error)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<usize, TensorEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_known(&self, task: &Task) -> bool {
        self.known().contains_key(&task.tensor)
    }

    fn learn(&self, task: &Task, entry: TensorEntry) {
        self.known().insert(task.tensor, entry);
    }

    fn read_new(&self, task: &Task, piece: u64) -> Result<Vec<u8>> {
        let width = task.spec.class.width() as u64;
        let mut content = vec![0; (piece_len(task.spec.elements(), piece) * width) as usize];
        let offset = task.offset + piece * PIECE_ELEMENTS * width;
        self.checkpoint.read_data(task.file, offset, &mut content)?;
        Ok(content)
    }

    fn read(&self, task: &Task, piece: u64) -> Result<Piece> {
        let class = task.spec.class;
        let content = self.read_new(task, piece)?;
        let change = match (&task.held, &self.held) {
            (Some(tensor), Some(held)) => {
                let first = piece * PIECE_ELEMENTS;
                let offset = tensor.offset + first * class.width() as u64;
                let mut old = vec![0; content.len()];
                held.files.read_data(tensor.file, offset, &mut old)?;
                let changes = diff(class, &old, &content).map_err(|e| self.failed(&e))?;
                Some((Moments::of(class, first, &old), changes))
            }
            _ => None,
        };
        Ok(Piece { content, change })
    }

    /// Id and moments of a tensor of several pieces.
    fn name_large(&self, task: &Task, progress: &dyn Progress) -> Result<(TensorId, Moments)> {
        let mut hasher = blake3::Hasher::new();
        let mut moments = Moments::default();
        for piece in 0..piece_count(task.spec.elements()) {
            check_cancelled(progress)?;
            let content = self.read_new(task, piece)?;
            hasher.update(&content);
            moments = moments + Moments::of(task.spec.class, piece * PIECE_ELEMENTS, &content);
        }
        Ok((TensorId(*hasher.finalize().as_bytes()), moments))
    }
}

fn tasks(held: Option<&Held>, schema: &Schema) -> Vec<Task> {
    let counterparts = held.map(|held| Counterparts::new(&held.snapshot, schema));
    let mut tasks = Vec::with_capacity(schema.tensor_count());
    for (file, spec) in schema.files.iter().enumerate() {
        let mut offset = 0;
        for tensor in &spec.tensors {
            let old = (counterparts.as_ref()).and_then(|held| held.patchable(&spec.path, tensor));
            tasks.push(Task {
                tensor: tasks.len(),
                file,
                offset,
                spec: tensor.clone(),
                held: held.zip(old).map(|(held, view)| held_tensor(held, &view)),
            });
            offset += tensor.byte_len();
        }
    }
    tasks
}

fn held_tensor(held: &Held, view: &TensorView<'_>) -> HeldTensor {
    let data = held.snapshot.tree.weight_files[view.file].data_offset();
    HeldTensor {
        file: view.file,
        offset: view.offset - data,
        entry: *view.entry,
    }
}

impl Task {
    fn answered(&self, wish: u64) -> Answered {
        Answered {
            wish,
            tensor: self.tensor,
            class: self.spec.class,
            elements: self.spec.elements(),
        }
    }

    /// Fail if what is held in the tensor's place has other moments than its version says.
    fn check_held(&self, found: Moments) -> Result<()> {
        match self.held {
            Some(held) if held.entry.moments != found => Err(ClientError::Proof {
                object: format!("tensor {}", self.spec.name),
                why: "the shadow's copy is not what its version says".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// The hasher of the patch to `id`, if there is one: what is held has another content.
    fn patch_to(&self, id: TensorId) -> Option<PatchHasher> {
        let held = self.held.filter(|held| held.entry.id != id)?;
        let spec = &self.spec;
        Some(PatchHasher::new(
            spec.class,
            held.entry.id,
            id,
            spec.elements(),
        ))
    }

    fn is_unchanged(&self, id: TensorId) -> bool {
        self.held.is_some_and(|held| held.entry.id == id)
    }
}

/// One way through all tensors.
struct Run<'a> {
    difference: &'a Difference,
    from: Position,
    /// The tensors that are sent; `None` for all that the receiver cannot have.
    only: Option<&'a HashSet<usize>>,
    progress: &'a dyn Progress,
    packer: Packer,
    /// Contents that were sent whole: equal ones are not sent again.
    sent: HashSet<(ElementClass, TensorId)>,
}

impl Run<'_> {
    /// Tensors of one piece each.
    fn window(
        &mut self,
        window: &[(u64, &Task)],
        send: &mut dyn FnMut(Chunk) -> Result<()>,
    ) -> Result<()> {
        let read = |&(wish, task): &(u64, &Task)| {
            if self.is_done(wish, task) {
                return Ok(None);
            }
            let piece = self.difference.read(task, 0)?;
            let id = TensorId::of(&piece.content);
            let moments = Moments::of(task.spec.class, 0, &piece.content);
            Ok(Some((piece, id, moments)))
        };
        let pieces = window.par_iter().map(read).collect::<Result<Vec<_>>>()?;
        for (&(wish, task), piece) in window.iter().zip(pieces) {
            if let Some((piece, id, moments)) = piece {
                self.small(wish, task, &piece, (id, moments))?;
            }
            self.progress.advance(task.spec.byte_len());
            self.flush(send)?;
        }
        Ok(())
    }

    fn small(
        &mut self,
        wish: u64,
        task: &Task,
        piece: &Piece,
        (id, moments): (TensorId, Moments),
    ) -> Result<()> {
        let mut hasher = task.patch_to(id);
        if let Some((held, changes)) = &piece.change {
            task.check_held(*held)?;
            if let Some(hasher) = &mut hasher {
                hasher.piece(0, changes);
            }
        }
        let entry = TensorEntry {
            id,
            moments,
            patch: hasher.map(|hasher| hasher.finish()),
        };
        self.difference.learn(task, entry);
        if task.is_unchanged(id) || piece.content.is_empty() {
            return Ok(());
        }
        let kind = self.kind(wish, task, piece)?;
        if self.is_sent(wish, task, id, kind) {
            self.pack(&task.answered(wish), (0, piece), kind)?;
        }
        if kind == AnswerKind::Content {
            self.sent.insert((task.spec.class, id));
        }
        Ok(())
    }

    /// Whether nothing has to be done for a tensor.
    fn is_done(&self, wish: u64, task: &Task) -> bool {
        match self.only {
            Some(only) => !only.contains(&task.tensor),
            None => wish < self.from.wish && self.difference.is_known(task),
        }
    }

    /// Whether a tensor that changed is sent.
    fn is_sent(&self, wish: u64, task: &Task, id: TensorId, kind: AnswerKind) -> bool {
        let again = kind == AnswerKind::Content && self.sent.contains(&(task.spec.class, id));
        // What was begun goes on, whatever was sent before it.
        let begun = wish == self.from.wish && self.from.kind.is_some();
        begun || wish >= self.from.wish && (self.only.is_some() || !again)
    }

    /// A tensor of several pieces: read once for its id, which its patch's id covers, and if it changed, once more.
    fn large(
        &mut self,
        wish: u64,
        task: &Task,
        send: &mut dyn FnMut(Chunk) -> Result<()>,
    ) -> Result<()> {
        if self.is_done(wish, task) {
            self.progress.advance(task.spec.byte_len());
            return Ok(());
        }
        let (id, moments) = self.difference.name_large(task, self.progress)?;
        let mut entry = TensorEntry {
            id,
            moments,
            patch: None,
        };
        if task.is_unchanged(id) {
            self.difference.learn(task, entry);
            self.progress.advance(task.spec.byte_len());
            return Ok(());
        }
        let mut patch = task.patch_to(id);
        let mut held = Moments::default();
        let mut kind = None;
        let bytes = PIECE_ELEMENTS * task.spec.class.width() as u64;
        let numbers: Vec<u64> = (0..piece_count(task.spec.elements())).collect();
        for numbers in numbers.chunks((WINDOW_BYTES / bytes).max(1) as usize) {
            check_cancelled(self.progress)?;
            let read = |&number: &u64| self.difference.read(task, number);
            let pieces = numbers.par_iter().map(read).collect::<Result<Vec<_>>>()?;
            for (&number, piece) in numbers.iter().zip(&pieces) {
                if let (Some((moments, changes)), Some(hasher)) = (&piece.change, &mut patch) {
                    held = held + *moments;
                    hasher.piece(number, changes);
                }
                let kind = match kind {
                    Some(kind) => kind,
                    None => *kind.insert(self.kind(wish, task, piece)?),
                };
                if self.is_sent(wish, task, id, kind) {
                    self.pack(&task.answered(wish), (number, piece), kind)?;
                }
                self.progress.advance(piece.content.len() as u64);
                self.flush(send)?;
            }
        }
        task.check_held(held)?;
        if kind == Some(AnswerKind::Content) {
            self.sent.insert((task.spec.class, id));
        }
        entry.patch = patch.map(|hasher| hasher.finish());
        self.difference.learn(task, entry);
        Ok(())
    }

    /// How a tensor is sent: as it was begun, or whichever is smaller, as its first piece tells.
    fn kind(&self, wish: u64, task: &Task, piece: &Piece) -> Result<AnswerKind> {
        if let (true, Some(kind)) = (wish == self.from.wish, self.from.kind) {
            return Ok(kind);
        }
        let Some((_, changes)) = &piece.change else {
            return Ok(AnswerKind::Content);
        };
        let class = task.spec.class;
        // A change takes at most its shift and a few bits of position; contents seldom shrink to a quarter.
        let most = changes.len() * (class.width() as u64 + 2);
        if most < piece.content.len() as u64 / 4 {
            return Ok(AnswerKind::Patches);
        }
        let elements = (piece.content.len() / class.width()) as u32;
        let set = patch_set::encode(class, &[(elements, changes)])
            .map_err(|e| self.difference.failed(&e))?;
        let patch = set.bytes.len() as u64 - set.overhead;
        let whole = base::encode_base(class, &piece.content).len() as u64;
        Ok(match patch < whole {
            true => AnswerKind::Patches,
            false => AnswerKind::Content,
        })
    }

    /// Pack what of a piece comes after the position that the run begins at.
    fn pack(
        &mut self,
        answered: &Answered,
        (number, piece): (u64, &Piece),
        kind: AnswerKind,
    ) -> Result<()> {
        let span = piece_span(answered, number);
        let begun = match answered.wish == self.from.wish {
            true => self.from.element.saturating_sub(span.first),
            false => 0,
        };
        if begun >= span.elements {
            return Ok(());
        }
        let rest = Span {
            first: span.first + begun,
            elements: span.elements - begun,
            ..span
        };
        let packed = match (kind, &piece.change) {
            (AnswerKind::Patches, Some((_, changes))) => {
                let first = (begun / BLOCK_ELEMENTS) as u32;
                let changes = changes.cut(first..(PIECE_ELEMENTS / BLOCK_ELEMENTS) as u32);
                self.packer.patch(answered, rest, changes)
            }
            _ => {
                let begun = begun as usize * answered.class.width();
                self.packer.content(answered, rest, &piece.content[begun..])
            }
        };
        packed.map_err(|e| self.difference.failed(&e))
    }

    fn flush(&mut self, send: &mut dyn FnMut(Chunk) -> Result<()>) -> Result<()> {
        self.packer.take().into_iter().try_for_each(send)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use deltaic_format::fetch::{Delivery, SPAN_ELEMENTS};
    use deltaic_format::progress::Silent;
    use std::path::Path;

    /// A safetensors file of U8 tensors.
    fn write(folder: &Path, tensors: &[(&str, &[u8])]) -> Arc<Checkpoint> {
        let mut header = Vec::new();
        let mut end = 0;
        for (name, content) in tensors {
            let (begin, len) = (end, content.len());
            end += len;
            header.push(format!(
                r#""{name}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{begin},{end}]}}"#
            ));
        }
        let header = format!("{{{}}}", header.join(","));
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        tensors
            .iter()
            .for_each(|(_, content)| file.extend(*content));
        std::fs::write(folder.join("model.safetensors"), file).unwrap();
        Arc::new(Checkpoint::open(folder).unwrap())
    }

    fn chunks(difference: &Difference, from: Position) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        difference
            .send(Scope::After(from), &Silent, &mut |chunk| {
                chunks.push(chunk);
                Ok(())
            })
            .unwrap();
        chunks
    }

    fn noise(len: usize, seed: u32) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn equal_contents_are_sent_once_and_what_was_begun_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let twin = noise(9 * SPAN_ELEMENTS as usize + 5, 1);
        let other = noise(100, 2);
        let tensors = [("a", &twin[..]), ("b", &twin), ("c", &other)];
        let checkpoint = write(folder.path(), &tensors);
        let all = chunks(
            &Difference::new(None, checkpoint.clone()),
            Position::default(),
        );
        let tensor = |chunk: &Chunk| match &chunk.delivery {
            Delivery::Content { span, .. } => span.tensor,
            Delivery::Patches { .. } => panic!("nothing is held"),
        };
        assert!(all.iter().all(|chunk| tensor(chunk) != 1), "the twin");
        // Another process sent a part of the twin.
        let begun = Position {
            wish: 1,
            element: 4 * SPAN_ELEMENTS,
            kind: Some(AnswerKind::Content),
        };
        let rest = chunks(&Difference::new(None, checkpoint), begun);
        let Delivery::Content { span, .. } = &rest[0].delivery else {
            panic!("nothing is held");
        };
        assert_eq!((span.tensor, span.first), (1, begun.element));
        let twins = rest.iter().filter(|chunk| tensor(chunk) == 1);
        let last = twins.last().unwrap();
        assert_eq!((last.next.wish, last.next.element), (2, 0));
    }

    #[test]
    fn whoever_goes_on_at_any_position_sends_what_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let large = noise(PIECE_ELEMENTS as usize + 3 * SPAN_ELEMENTS as usize, 3);
        let small = noise(700, 4);
        let checkpoint = write(folder.path(), &[("large", &large), ("small", &small)]);
        let first = Difference::new(None, checkpoint.clone());
        let all = chunks(&first, Position::default());
        let entries = first.entries().unwrap();
        assert_eq!(entries[0].id, TensorId::of(&large));
        assert_eq!(entries[1].id, TensorId::of(&small));
        for (number, chunk) in all.iter().enumerate() {
            for again in [&first, &Difference::new(None, checkpoint.clone())] {
                assert_eq!(chunks(again, chunk.next), all[number + 1..]);
                assert_eq!(again.entries().as_ref(), Some(&entries));
            }
        }
    }
}
