//! What turns the version that the shadow holds into a checkpoint: patches where those are smaller, else contents, in the
//! order of a fetch's answer.

mod reader;
mod run;

use crate::checkpoint::Checkpoint;
use crate::error::{ClientError, Result};
use crate::parts::check_cancelled;
use bytes::Bytes;
use deltaic_format::fetch::{Answered, Chunk, Position, SPAN_ELEMENTS, spans_of_content};
use deltaic_format::ids::TensorId;
use deltaic_format::object::{Counterparts, Schema, Snapshot, TensorEntry, TensorSpec, TensorView};
use deltaic_format::patch::{Changes, PIECE_ELEMENTS, PatchHasher, diff, piece_count, piece_len};
use deltaic_format::progress::Progress;
use deltaic_format::{ElementClass, FormatError, Moments, base};
use rayon::prelude::*;
use reader::Reader;
use run::Run;
use std::collections::{BTreeMap, HashSet};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// The parts of the content as they travel, where nothing is held.
    encoded: Vec<Bytes>,
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
        let mut run = Run::new(self, (from, only), progress);
        let reader = Reader {
            difference: self,
            from,
            only,
            progress,
        };
        // Files are read, compared and encoded while what was read before is sent.
        std::thread::scope(|scope| {
            let (read, taken) = sync_channel(0);
            let reading = scope.spawn(move || {
                reader.read(&mut |parts| read.send(parts).map_err(|_| ClientError::Interrupted))
            });
            for part in taken.into_iter().flatten() {
                run.take(part, send)?;
            }
            match reading.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })?;
        run.finish(send)
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
        let mut encoded = Vec::new();
        let change = match (&task.held, &self.held) {
            (Some(tensor), Some(held)) => {
                let first = piece * PIECE_ELEMENTS;
                let offset = tensor.offset + first * class.width() as u64;
                let mut old = vec![0; content.len()];
                held.files.read_data(tensor.file, offset, &mut old)?;
                let changes = diff(class, &old, &content).map_err(|e| self.failed(&e))?;
                Some((Moments::of(class, first, &old), changes))
            }
            _ => {
                encoded = encode(class, &content);
                None
            }
        };
        Ok(Piece {
            content,
            change,
            encoded,
        })
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

/// The parts of a content as they travel.
fn encode(class: ElementClass, content: &[u8]) -> Vec<Bytes> {
    let each = spans_of_content(class) * SPAN_ELEMENTS as usize * class.width();
    let parts = content.par_chunks(each);
    parts
        .map(|part| base::encode_base(class, part).into())
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use deltaic_format::fetch::{AnswerKind, Delivery};
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
