//! Receiving what a source sends: nothing of it is trusted. Each part is decoded and checked as it comes; a tensor is
//! done once its patches are proven on the held content, or its whole content has the wanted hash.

use super::plan::{Action, Base};
use super::prepare::Preparation;
use crate::arrival::{ContentArrival, bad, tensor_name};
use crate::error::{ClientError, Result};
use crate::parts::{check_cancelled, read_exact_at};
use deltaic_format::fetch::{Delivery, PieceRef, TensorWish};
use deltaic_format::object::TensorView;
use deltaic_format::patch::{
    Changes, PIECE_ELEMENTS, PatchHasher, Touched, piece_count, piece_len, touched, words_after,
    write_words,
};
use deltaic_format::patch_set::PatchSetReader;
use deltaic_format::{FormatError, Moments};
use rayon::prelude::*;
use std::collections::HashMap;
use std::ops::Range;

/// How far the answer to a wish has come.
enum Arrival {
    Nothing,
    Patches(Box<PatchArrival>),
    Contents(Box<ContentArrival>),
    Done,
}

/// Patches of a tensor, up to a piece.
#[derive(Default)]
struct PatchArrival {
    next_piece: u64,
    changed: u64,
    touched: Touched,
    /// Whether a shift of some piece leaves its range, so that the words of that piece are missing: such a patch does
    /// not fit, whatever its sums say.
    out_of_range: bool,
    /// Of the content written to a staged file.
    moments: Moments,
    /// The patch's id, where the tree lists it.
    hasher: Option<PatchHasher>,
}

/// Takes deliveries, in any order of the tensors, into a preparation.
pub(super) struct Receiver<'p, 'a> {
    preparation: &'p mut Preparation<'a>,
    arrivals: HashMap<usize, Arrival>,
    buffer: Vec<u8>,
}

/// What a piece's patch does to the held content.
struct PreparedPiece {
    touched: Touched,
    /// `None` if a shift leaves its range.
    words: Option<Vec<u8>>,
}

impl<'p, 'a> Receiver<'p, 'a> {
    pub(super) fn new(preparation: &'p mut Preparation<'a>, wishes: &[TensorWish]) -> Self {
        Self {
            preparation,
            arrivals: wishes
                .iter()
                .map(|w| (w.tensor, Arrival::Nothing))
                .collect(),
            buffer: Vec::new(),
        }
    }

    /// Take one delivery.
    pub(super) fn receive(&mut self, delivery: Delivery<'_>) -> Result<()> {
        let progress = self.preparation.progress;
        check_cancelled(progress)?;
        self.preparation.tally.received_bytes += delivery.len();
        progress.advance(delivery.len());
        match delivery {
            Delivery::Patches { members, bytes } => self.patches(members, bytes),
            Delivery::Content { piece, bytes } => self.content(piece, bytes),
        }
    }

    /// Check that every wish was answered in full.
    pub(super) fn finish(mut self) -> Result<()> {
        let mut open: Vec<usize> = self.arrivals.keys().copied().collect();
        open.sort_unstable();
        for tensor in open {
            let view = self.view(tensor);
            match self.arrivals.remove(&tensor) {
                Some(Arrival::Nothing) => return Err(bad(&view, "nothing of it came")),
                Some(Arrival::Contents(_)) => return Err(bad(&view, "not all of its pieces came")),
                // Pieces without changes need not be sent.
                Some(Arrival::Patches(arrival)) => self.finish_patch(&view, *arrival)?,
                Some(Arrival::Done) | None => {}
            }
        }
        Ok(())
    }

    fn view(&self, tensor: usize) -> TensorView<'a> {
        self.preparation.plan.tensors[tensor]
    }

    fn in_place(&self, view: &TensorView<'_>) -> bool {
        self.preparation.plan.weight_files[&view.file].in_place
    }

    /// The wanted tensor that `piece` is of, if it was asked for.
    fn wished(&self, piece: PieceRef) -> Result<TensorView<'a>> {
        if !self.arrivals.contains_key(&piece.tensor) {
            let object = format!("tensor number {}", piece.tensor);
            return Err(ClientError::delivery(object, "it was not asked for"));
        }
        let view = self.view(piece.tensor);
        if piece.piece >= piece_count(view.spec.elements()) {
            return Err(bad(&view, format!("it has no piece {}", piece.piece)));
        }
        Ok(view)
    }

    /// The held tensor whose content was offered for `tensor`.
    fn held(&self, view: &TensorView<'_>) -> Result<(&'a Base<'a>, usize)> {
        match (
            self.preparation.base,
            self.preparation.plan.actions[view.index],
        ) {
            (Some(base), Action::Patch(held)) => Ok((base, held)),
            _ => Err(bad(
                view,
                "a patch came, but nothing is held that it could change",
            )),
        }
    }

    fn patches(&mut self, members: &[PieceRef], bytes: &[u8]) -> Result<()> {
        let set = |error: FormatError| ClientError::delivery("a patch set", error);
        let reader = PatchSetReader::new(bytes).map_err(set)?;
        if reader.members().len() != members.len() {
            let what = format!(
                "{} members instead of {}",
                reader.members().len(),
                members.len()
            );
            return Err(ClientError::delivery("a patch set", what));
        }
        let mut targets = Vec::with_capacity(members.len());
        for (&piece, elements) in members.iter().zip(reader.members()) {
            let view = self.wished(piece)?;
            let expected = piece_len(view.spec.elements(), piece.piece);
            if reader.class() != view.spec.class || u64::from(elements) != expected {
                return Err(bad(&view, "a patch of another class or length"));
            }
            targets.push((view, piece.piece, self.held(&view)?));
        }
        let changes = reader.all().map_err(set)?;
        let prepared = targets
            .par_iter()
            .zip(&changes)
            .map_init(Vec::new, |buffer, (&(view, piece, held), changes)| {
                prepare_piece(&view, piece, held, changes, buffer)
            })
            .collect::<Result<Vec<_>>>()?;
        for ((&(view, piece, _), changes), prepared) in targets.iter().zip(&changes).zip(prepared) {
            self.patch_piece(&view, piece, changes, &prepared)?;
        }
        Ok(())
    }

    /// Take the patch of one piece, which was tried on the held content.
    fn patch_piece(
        &mut self,
        view: &TensorView<'a>,
        piece: u64,
        changes: &Changes,
        prepared: &PreparedPiece,
    ) -> Result<()> {
        let mut arrival = match self.arrivals.insert(view.index, Arrival::Done) {
            Some(Arrival::Nothing) => self.new_patch(view)?,
            Some(Arrival::Patches(arrival)) if arrival.next_piece <= piece => arrival,
            _ => {
                return Err(bad(
                    view,
                    format!("piece {piece} came twice or out of order"),
                ));
            }
        };
        arrival.touched.add(&prepared.touched);
        arrival.out_of_range |= prepared.words.is_none();
        arrival.changed += changes.len();
        if let Some(hasher) = &mut arrival.hasher {
            hasher.piece(piece, changes);
        }
        let words = prepared.words.as_deref();
        if !self.in_place(view) {
            let skipped = arrival.next_piece..piece;
            arrival.moments = arrival.moments + self.carry_pieces(view, skipped, None)?;
            let patch = words.map(|words| (changes, words));
            arrival.moments = arrival.moments + self.carry_pieces(view, piece..piece + 1, patch)?;
        } else if let Some(words) = words.filter(|words| !words.is_empty()) {
            self.preparation
                .journal
                .words(view.index, piece, changes, words)?;
        }
        arrival.next_piece = piece + 1;
        if arrival.next_piece == piece_count(view.spec.elements()) {
            return self.finish_patch(view, *arrival);
        }
        self.arrivals.insert(view.index, Arrival::Patches(arrival));
        Ok(())
    }

    fn new_patch(&self, view: &TensorView<'_>) -> Result<Box<PatchArrival>> {
        let (base, held) = self.held(view)?;
        let snapshot = &base.held.snapshot;
        let from_parent = self.preparation.want.commit.parents.first() == Some(&snapshot.id);
        let hasher = (view.entry.patch.is_some() && from_parent).then(|| {
            let from = base.tensors[held].entry.id;
            PatchHasher::new(view.spec.class, from, view.entry.id, view.spec.elements())
        });
        Ok(Box::new(PatchArrival {
            hasher,
            ..PatchArrival::default()
        }))
    }

    /// Copy held pieces into a staged file, one of them with a patch, and return their moments afterwards.
    fn carry_pieces(
        &mut self,
        view: &TensorView<'_>,
        pieces: Range<u64>,
        patch: Option<(&Changes, &[u8])>,
    ) -> Result<Moments> {
        let (base, held) = self.held(view)?;
        let mut moments = Moments::default();
        let mut buffer = std::mem::take(&mut self.buffer);
        for piece in pieces {
            check_cancelled(self.preparation.progress)?;
            read_held_piece(view, piece, (base, held), &mut buffer)?;
            if let Some((changes, words)) = patch {
                write_words(view.spec.class, &mut buffer, changes, words);
            }
            let first = piece * PIECE_ELEMENTS;
            moments = moments + Moments::of(view.spec.class, first, &buffer);
            let offset = view.offset + first * view.spec.class.width() as u64;
            self.preparation.put(view.file, offset, &buffer)?;
        }
        self.buffer = buffer;
        Ok(moments)
    }

    /// Prove the patch of a tensor, all of whose pieces are here.
    fn finish_patch(&mut self, view: &TensorView<'a>, mut arrival: PatchArrival) -> Result<()> {
        let (base, held) = self.held(view)?;
        let (from, to) = (base.tensors[held].entry.moments, view.entry.moments);
        let pieces = piece_count(view.spec.elements());
        let staged = !self.in_place(view);
        if arrival.changed > 0 && !arrival.out_of_range && arrival.touched.fits(from, to) {
            let listed = view.entry.patch;
            if arrival
                .hasher
                .is_some_and(|hasher| Some(hasher.finish()) != listed)
            {
                return Err(bad(view, "its patch is not the one that the commit names"));
            }
            if staged {
                let rest = self.carry_pieces(view, arrival.next_piece..pieces, None)?;
                arrival.moments = arrival.moments + rest;
            }
            self.preparation.tally.patched += 1;
            self.preparation.tally.changed += arrival.changed;
        } else if arrival.changed > 0 && arrival.touched.already_applied(from, to) {
            match staged {
                true => arrival.moments = self.carry_pieces(view, 0..pieces, None)?,
                false => self.preparation.journal.void(view.index)?,
            }
            self.preparation.tally.unchanged += 1;
        } else {
            let why = "its patch does not fit the content that the replica holds";
            return Err(ClientError::proof(tensor_name(view), why));
        }
        if staged && arrival.moments != to {
            let why = "patched, it is not what it should be, so elsewhere the replica's copy is not what it was";
            return Err(ClientError::proof(tensor_name(view), why));
        }
        self.arrivals.insert(view.index, Arrival::Done);
        Ok(())
    }

    fn content(&mut self, piece: PieceRef, bytes: &[u8]) -> Result<()> {
        let view = self.wished(piece)?;
        let mut arrival = match self.arrivals.insert(view.index, Arrival::Done) {
            Some(Arrival::Nothing) => Box::default(),
            Some(Arrival::Contents(arrival)) => arrival,
            _ => return Err(bad(&view, "its content came twice, or after a patch")),
        };
        let offset = arrival.piece(&view, piece.piece, bytes, &mut self.buffer)?;
        self.preparation.put(view.file, offset, &self.buffer)?;
        if !arrival.is_complete(&view) {
            self.arrivals.insert(view.index, Arrival::Contents(arrival));
            return Ok(());
        }
        arrival.check(&view)?;
        self.preparation.tally.whole += 1;
        self.preparation.tally.changed += view.spec.elements();
        Ok(())
    }
}

/// Read piece `piece` of the held content that a wanted tensor is patched from.
fn read_held_piece(
    view: &TensorView<'_>,
    piece: u64,
    (base, held): (&Base<'_>, usize),
    buffer: &mut Vec<u8>,
) -> Result<()> {
    let width = view.spec.class.width() as u64;
    buffer.resize((piece_len(view.spec.elements(), piece) * width) as usize, 0);
    let (file, location) = base.file_of(held)?;
    let offset = base.tensors[held].offset + piece * PIECE_ELEMENTS * width;
    read_exact_at(&file, &location, offset, buffer)
}

/// Try a piece's patch on the held content.
fn prepare_piece(
    view: &TensorView<'_>,
    piece: u64,
    held: (&Base<'_>, usize),
    changes: &Changes,
    buffer: &mut Vec<u8>,
) -> Result<PreparedPiece> {
    if changes.is_empty() {
        return Ok(PreparedPiece {
            touched: Touched::default(),
            words: Some(Vec::new()),
        });
    }
    read_held_piece(view, piece, held, buffer)?;
    let class = view.spec.class;
    let touched = touched(class, piece * PIECE_ELEMENTS, buffer, changes)
        .map_err(|error| bad(view, error))?;
    let words = match words_after(class, buffer, changes) {
        Ok(words) => Some(words),
        // The content may be the patched one already; the proof of the whole tensor tells.
        Err(FormatError::ShiftOutOfRange { .. }) => None,
        Err(error) => return Err(bad(view, error)),
    };
    Ok(PreparedPiece { touched, words })
}
