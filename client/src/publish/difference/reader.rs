//! Reading: what the checkpoint has and what is held, compared and encoded a window at a time.

use super::{Difference, Piece, Task};
use crate::error::Result;
use crate::parts::check_cancelled;
use deltaic_format::Moments;
use deltaic_format::fetch::Position;
use deltaic_format::ids::TensorId;
use deltaic_format::object::TensorEntry;
use deltaic_format::patch::{PIECE_ELEMENTS, piece_count};
use deltaic_format::progress::Progress;
use rayon::prelude::*;
use std::collections::HashSet;

/// Bytes of tensors that are read at a time, while those before them are sent.
const WINDOW_BYTES: u64 = 32 << 20;

/// What was read, in the order of the answer.
pub(super) enum Read<'a> {
    /// A tensor that need not be looked at.
    Done(&'a Task),
    /// A tensor of one piece, with its id and moments.
    Small(u64, &'a Task, Piece, (TensorId, Moments)),
    /// A tensor of several pieces that has not changed.
    Unchanged(&'a Task, TensorEntry),
    /// The next pieces of another one, which are its last ones or not.
    Pieces {
        wish: u64,
        task: &'a Task,
        entry: TensorEntry,
        first: u64,
        pieces: Vec<Piece>,
        last: bool,
    },
}

/// Goes through the files.
pub(super) struct Reader<'a> {
    pub(super) difference: &'a Difference,
    pub(super) from: Position,
    pub(super) only: Option<&'a HashSet<usize>>,
    pub(super) progress: &'a dyn Progress,
}

/// Takes what was read at a time.
pub(super) type Take<'t, 'a> = &'t mut dyn FnMut(Vec<Read<'a>>) -> Result<()>;

impl<'a> Reader<'a> {
    /// Give everything that is read to `take`.
    pub(super) fn read(&self, take: Take<'_, 'a>) -> Result<()> {
        let mut tasks = (0u64..).zip(&self.difference.tasks).peekable();
        while let Some((wish, first)) = tasks.next() {
            check_cancelled(self.progress)?;
            if first.spec.elements() > PIECE_ELEMENTS {
                self.large(wish, first, take)?;
                continue;
            }
            let mut window = vec![(wish, first)];
            let mut bytes = first.spec.byte_len();
            while let Some((wish, task)) = tasks.next_if(|(_, task)| {
                task.spec.elements() <= PIECE_ELEMENTS
                    && bytes + task.spec.byte_len() <= WINDOW_BYTES
            }) {
                bytes += task.spec.byte_len();
                window.push((wish, task));
            }
            self.window(&window, take)?;
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

    /// Tensors of one piece each.
    fn window(&self, window: &[(u64, &'a Task)], take: Take<'_, 'a>) -> Result<()> {
        let read = |&(wish, task): &(u64, &'a Task)| {
            if self.is_done(wish, task) {
                return Ok(Read::Done(task));
            }
            let piece = self.difference.read(task, 0)?;
            let id = TensorId::of(&piece.content);
            let moments = Moments::of(task.spec.class, 0, &piece.content);
            Ok(Read::Small(wish, task, piece, (id, moments)))
        };
        let parts = window.par_iter().map(read).collect::<Result<Vec<_>>>()?;
        take(parts)
    }

    /// A tensor of several pieces: read once for its id, which its patch's id covers, and if it changed, once more.
    fn large(&self, wish: u64, task: &'a Task, take: Take<'_, 'a>) -> Result<()> {
        if self.is_done(wish, task) {
            return take(vec![Read::Done(task)]);
        }
        let (id, moments) = self.difference.name_large(task, self.progress)?;
        let entry = TensorEntry {
            id,
            moments,
            patch: None,
        };
        if task.is_unchanged(id) {
            return take(vec![Read::Unchanged(task, entry)]);
        }
        let bytes = PIECE_ELEMENTS * task.spec.class.width() as u64;
        let each = (WINDOW_BYTES / bytes).max(1);
        let count = piece_count(task.spec.elements());
        for first in (0..count).step_by(each as usize) {
            check_cancelled(self.progress)?;
            let end = count.min(first + each);
            let read = |number| self.difference.read(task, number);
            let pieces = (first..end).into_par_iter().map(read);
            let pieces = pieces.collect::<Result<Vec<_>>>()?;
            take(vec![Read::Pieces {
                wish,
                task,
                entry,
                first,
                pieces,
                last: end == count,
            }])?;
        }
        Ok(())
    }
}
