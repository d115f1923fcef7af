//! What is sent of what was read.

use super::reader::Read;
use super::{Difference, Piece, Task, encode};
use crate::error::Result;
use deltaic_format::fetch::{
    AnswerKind, Answered, Chunk, Packer, Position, SPAN_ELEMENTS, Span, piece_span,
    spans_of_content,
};
use deltaic_format::ids::TensorId;
use deltaic_format::object::TensorEntry;
use deltaic_format::patch::{BLOCK_ELEMENTS, PIECE_ELEMENTS, PatchHasher};
use deltaic_format::progress::Progress;
use deltaic_format::{ElementClass, FormatError, Moments, base, patch_set};
use std::collections::HashSet;

/// One way through all tensors.
pub(super) struct Run<'a> {
    difference: &'a Difference,
    from: Position,
    /// The tensors that are sent; `None` for all that the receiver cannot have.
    only: Option<&'a HashSet<usize>>,
    progress: &'a dyn Progress,
    packer: Packer,
    /// Contents that were sent whole: equal ones are not sent again.
    sent: HashSet<(ElementClass, TensorId)>,
    /// The tensor of several pieces that is being sent.
    large: Option<Large>,
}

/// A tensor of several pieces, as far as it was taken.
struct Large {
    patch: Option<PatchHasher>,
    /// Of what is held in its place.
    held: Moments,
    kind: AnswerKind,
}

impl<'a> Run<'a> {
    /// From a position on, of these tensors or of all.
    pub(super) fn new(
        difference: &'a Difference,
        (from, only): (Position, Option<&'a HashSet<usize>>),
        progress: &'a dyn Progress,
    ) -> Self {
        Self {
            difference,
            from,
            only,
            progress,
            packer: Packer::default(),
            sent: HashSet::new(),
            large: None,
        }
    }

    /// Send what there is to send of the next part.
    pub(super) fn take(
        &mut self,
        read: Read<'_>,
        send: &mut dyn FnMut(Chunk) -> Result<()>,
    ) -> Result<()> {
        match read {
            Read::Done(task) => self.progress.advance(task.spec.byte_len()),
            Read::Unchanged(task, entry) => {
                self.difference.learn(task, entry);
                self.progress.advance(task.spec.byte_len());
            }
            Read::Small(wish, task, piece, named) => {
                self.small(wish, task, &piece, named)?;
                self.progress.advance(task.spec.byte_len());
            }
            Read::Pieces {
                wish,
                task,
                entry,
                first,
                pieces,
                last,
            } => {
                for (number, piece) in (first..).zip(&pieces) {
                    self.piece((wish, task), entry.id, (number, piece))?;
                    self.progress.advance(piece.content.len() as u64);
                    self.flush(send)?;
                }
                if last {
                    self.end_large(task, entry)?;
                }
            }
        }
        self.flush(send)
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

    /// Whether a tensor that changed is sent.
    fn is_sent(&self, wish: u64, task: &Task, id: TensorId, kind: AnswerKind) -> bool {
        let again = kind == AnswerKind::Content && self.sent.contains(&(task.spec.class, id));
        // What was begun goes on, whatever was sent before it.
        let begun = wish == self.from.wish && self.from.kind.is_some();
        begun || wish >= self.from.wish && (self.only.is_some() || !again)
    }

    /// A piece of a tensor of several.
    fn piece(
        &mut self,
        (wish, task): (u64, &Task),
        id: TensorId,
        (number, piece): (u64, &Piece),
    ) -> Result<()> {
        let mut large = match self.large.take() {
            Some(large) => large,
            None => Large {
                patch: task.patch_to(id),
                held: Moments::default(),
                kind: self.kind(wish, task, piece)?,
            },
        };
        if let (Some((moments, changes)), Some(hasher)) = (&piece.change, &mut large.patch) {
            large.held = large.held + *moments;
            hasher.piece(number, changes);
        }
        if self.is_sent(wish, task, id, large.kind) {
            self.pack(&task.answered(wish), (number, piece), large.kind)?;
        }
        self.large = Some(large);
        Ok(())
    }

    /// All pieces of a tensor were taken.
    fn end_large(&mut self, task: &Task, entry: TensorEntry) -> Result<()> {
        let Some(Large { patch, held, kind }) = self.large.take() else {
            return Ok(());
        };
        task.check_held(held)?;
        if kind == AnswerKind::Content {
            self.sent.insert((task.spec.class, entry.id));
        }
        let patch = patch.map(|hasher| hasher.finish());
        self.difference.learn(task, TensorEntry { patch, ..entry });
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
            _ => self.pack_content(answered, rest, piece),
        };
        packed.map_err(|e| self.difference.failed(&e))
    }

    /// Pack the last `rest` of a piece.
    fn pack_content(
        &mut self,
        answered: &Answered,
        rest: Span,
        piece: &Piece,
    ) -> Result<(), FormatError> {
        let class = answered.class;
        let begun = piece.content.len() - rest.elements as usize * class.width();
        let anew =
            (begun > 0 || piece.encoded.is_empty()).then(|| encode(class, &piece.content[begun..]));
        let each = spans_of_content(class) as u64 * SPAN_ELEMENTS;
        for (part, bytes) in (0u64..).zip(anew.as_ref().unwrap_or(&piece.encoded)) {
            let span = Span {
                first: rest.first + part * each,
                elements: each.min(rest.elements - part * each),
                ..rest
            };
            self.packer.base(answered, span, bytes.clone())?;
        }
        Ok(())
    }

    /// Send the rest.
    pub(super) fn finish(mut self, send: &mut dyn FnMut(Chunk) -> Result<()>) -> Result<()> {
        (self.packer.close()).map_err(|e| self.difference.failed(&e))?;
        self.flush(send)
    }

    fn flush(&mut self, send: &mut dyn FnMut(Chunk) -> Result<()>) -> Result<()> {
        self.packer.take().into_iter().try_for_each(send)
    }
}
