//! Receiving what a source sends: nothing of it is trusted. Each part is decoded and checked as it comes; a tensor is
//! done once its patches are proven on the held content, or its whole content has the wanted hash.

use super::plan::{Action, Base};
use super::prepare::Preparation;
use super::request::Trust;
use crate::arrival::{bad, decode_patches, tensor_name};
use crate::contents::{Contents, Part};
use crate::error::{ClientError, Result};
use crate::parts::{check_cancelled, read_exact_at};
use bytes::Bytes;
use deltaic_format::fetch::{Delivery, SPAN_ELEMENTS, Span, TensorWish};
use deltaic_format::object::TensorView;
use deltaic_format::patch::{
    BLOCK_ELEMENTS, Changes, PIECE_ELEMENTS, PatchHasher, Touched, touched, words_after,
    write_words,
};
use deltaic_format::{FormatError, Moments};
use rayon::prelude::*;
use std::collections::HashMap;
use std::ops::Range;

/// How far the answer to a wish has come.
enum Arrival {
    Nothing,
    Patches(Box<PatchArrival>),
    Content,
    Done,
}

/// Patches of a tensor, up to an element.
#[derive(Default)]
struct PatchArrival {
    next: u64,
    changed: u64,
    touched: Touched,
    /// Whether a shift of some span leaves its range, so that the words of that span are missing: such a patch does
    /// not fit, whatever its sums say.
    out_of_range: bool,
    /// The patch's id, where the tree lists it.
    hasher: Option<PatchHasher>,
    /// What the patched content is, up to the same element, where it is followed.
    followed: Followed,
}

/// A patched content as far as it was gone through.
#[derive(Default)]
struct Followed {
    moments: Moments,
    hasher: blake3::Hasher,
}

/// Takes deliveries, in any order of the tensors, into a preparation.
pub(super) struct Receiver<'p, 'a> {
    preparation: &'p mut Preparation<'a>,
    arrivals: HashMap<usize, Arrival>,
    contents: Contents<'a>,
    buffer: Vec<u8>,
}

/// What a span's patch does to the held content.
struct PreparedSpan {
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
            contents: Contents::default(),
            buffer: Vec::new(),
        }
    }

    /// Take one delivery.
    pub(super) fn receive(&mut self, delivery: Delivery) -> Result<()> {
        check_cancelled(self.preparation.progress)?;
        match delivery {
            Delivery::Patches { members, bytes } => self.patches(&members, &bytes),
            Delivery::Content { span, bytes } => self.content(span, bytes),
        }
    }

    /// Check that every wish was answered in full.
    pub(super) fn finish(mut self) -> Result<()> {
        self.write_contents()?;
        let mut open: Vec<usize> = self.arrivals.keys().copied().collect();
        open.sort_unstable();
        for tensor in open {
            let view = self.view(tensor);
            match self.arrivals.remove(&tensor) {
                Some(Arrival::Nothing) => return Err(bad(&view, "nothing of it came")),
                Some(Arrival::Content) => return Err(bad(&view, "not all of it came")),
                // Spans without changes need not be sent.
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
        self.preparation.in_place(view.file)
    }

    /// Whether the patched content of a tensor is gone through in full: because it is written anew, or to hash it.
    fn is_followed(&self, view: &TensorView<'_>) -> bool {
        !self.in_place(view) || self.preparation.trust == Trust::Content
    }

    /// The wanted tensor that `span` is of, if it was asked for.
    fn wished(&self, span: Span) -> Result<TensorView<'a>> {
        if !self.arrivals.contains_key(&span.tensor) {
            let object = format!("tensor number {}", span.tensor);
            return Err(ClientError::delivery(object, "it was not asked for"));
        }
        Ok(self.view(span.tensor))
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

    fn patches(&mut self, members: &[Span], bytes: &[u8]) -> Result<()> {
        let targets = decode_patches(members, bytes, |span| self.wished(span))?;
        let held = (targets.iter())
            .map(|(view, ..)| self.held(view))
            .collect::<Result<Vec<_>>>()?;
        let prepared = (targets.par_iter().zip(&held))
            .map_init(Vec::new, |buffer, ((view, span, changes), held)| {
                prepare_span(view, *span, *held, changes, buffer)
            })
            .collect::<Result<Vec<_>>>()?;
        for ((view, span, changes), prepared) in targets.into_iter().zip(prepared) {
            self.patch_span(&view, span, changes, &prepared)?;
        }
        Ok(())
    }

    /// Take the patch of one span, which was tried on the held content.
    fn patch_span(
        &mut self,
        view: &TensorView<'a>,
        span: Span,
        changes: Changes,
        prepared: &PreparedSpan,
    ) -> Result<()> {
        let mut arrival = match self.arrivals.insert(view.index, Arrival::Done) {
            Some(Arrival::Nothing) => self.new_patch(view)?,
            Some(Arrival::Patches(arrival)) if arrival.next <= span.first => arrival,
            _ => {
                let first = span.first;
                let what = format!("element {first} and on came twice or out of order");
                return Err(bad(view, what));
            }
        };
        arrival.touched.add(&prepared.touched);
        arrival.out_of_range |= prepared.words.is_none();
        arrival.changed += changes.len();
        let words = prepared.words.as_deref();
        if self.is_followed(view) {
            let followed = &mut arrival.followed;
            self.carry(view, arrival.next..span.first, followed)?;
            let patch = words.map(|words| (&changes, words));
            self.carry_part(view, span.first..span.end(), patch, followed)?;
        }
        // From here on they count from the first element of the piece.
        let changes = changes.moved_by((span.first % PIECE_ELEMENTS / BLOCK_ELEMENTS) as u32);
        if let Some(hasher) = &mut arrival.hasher {
            hasher.piece(span.piece(), &changes);
        }
        if self.in_place(view)
            && let Some(words) = words.filter(|words| !words.is_empty())
        {
            let journal = &mut self.preparation.journal;
            journal.words(view.index, span.piece(), &changes, words)?;
        }
        arrival.next = span.end();
        if arrival.next == view.spec.elements() {
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

    /// Go through held elements that stay as they are.
    fn carry(
        &mut self,
        view: &TensorView<'_>,
        elements: Range<u64>,
        followed: &mut Followed,
    ) -> Result<()> {
        let end = elements.end;
        for first in elements.step_by(SPAN_ELEMENTS as usize) {
            let part = first..end.min(first + SPAN_ELEMENTS);
            self.carry_part(view, part, None, followed)?;
        }
        Ok(())
    }

    /// Go through a few held elements, patched if there is a patch, and write them where the file is written anew.
    fn carry_part(
        &mut self,
        view: &TensorView<'_>,
        elements: Range<u64>,
        patch: Option<(&Changes, &[u8])>,
        followed: &mut Followed,
    ) -> Result<()> {
        check_cancelled(self.preparation.progress)?;
        let class = view.spec.class;
        let (first, held) = (elements.start, self.held(view)?);
        let mut buffer = std::mem::take(&mut self.buffer);
        read_held(view, elements, held, &mut buffer)?;
        if let Some((changes, words)) = patch {
            write_words(class, &mut buffer, changes, words);
        }
        followed.moments = followed.moments + Moments::of(class, first, &buffer);
        if self.preparation.trust == Trust::Content {
            followed.hasher.update(&buffer);
        }
        if !self.in_place(view) {
            let offset = view.offset + first * class.width() as u64;
            self.preparation.put(view.file, offset, &buffer)?;
        }
        self.buffer = buffer;
        Ok(())
    }

    /// Prove the patch of a tensor, all of whose spans are here.
    fn finish_patch(&mut self, view: &TensorView<'a>, mut arrival: PatchArrival) -> Result<()> {
        let (base, held) = self.held(view)?;
        let (from, to) = (base.tensors[held].entry.moments, view.entry.moments);
        let elements = view.spec.elements();
        if arrival.changed > 0 && !arrival.out_of_range && arrival.touched.fits(from, to) {
            let listed = view.entry.patch;
            if arrival
                .hasher
                .is_some_and(|hasher| Some(hasher.finish()) != listed)
            {
                return Err(bad(view, "its patch is not the one that the commit names"));
            }
            if self.is_followed(view) {
                self.carry(view, arrival.next..elements, &mut arrival.followed)?;
            }
            self.preparation.tally.patched += 1;
            self.preparation.tally.changed += arrival.changed;
        } else if arrival.changed > 0 && arrival.touched.already_applied(from, to) {
            if self.in_place(view) {
                self.preparation.journal.void(view.index)?;
            }
            if self.is_followed(view) {
                arrival.followed = Followed::default();
                self.carry(view, 0..elements, &mut arrival.followed)?;
            }
            self.preparation.tally.unchanged += 1;
        } else {
            let why = "its patch does not fit the content that the replica holds";
            return Err(ClientError::proof(tensor_name(view), why));
        }
        if self.is_followed(view) {
            self.check_followed(view, &arrival.followed)?;
        }
        self.arrivals.insert(view.index, Arrival::Done);
        Ok(())
    }

    /// Check a patched content that was gone through to its end.
    fn check_followed(&self, view: &TensorView<'_>, followed: &Followed) -> Result<()> {
        let hashed = self.preparation.trust == Trust::Content;
        let is_wanted = followed.moments == view.entry.moments
            && (!hashed || *followed.hasher.finalize().as_bytes() == view.entry.id.0);
        if is_wanted {
            return Ok(());
        }
        let why = "patched, it is not what it should be, so elsewhere the replica's copy is not what it was";
        Err(ClientError::proof(tensor_name(view), why))
    }

    fn content(&mut self, span: Span, bytes: Bytes) -> Result<()> {
        let view = self.wished(span)?;
        match self.arrivals.insert(view.index, Arrival::Content) {
            Some(Arrival::Nothing | Arrival::Content) => {}
            _ => return Err(bad(&view, "its content came twice, or after a patch")),
        }
        match self.contents.take(view, span, bytes)? {
            true => self.write_contents(),
            false => Ok(()),
        }
    }

    /// Write the contents as far as they came.
    fn write_contents(&mut self) -> Result<()> {
        let preparation = &mut *self.preparation;
        let complete = self.contents.write(|parts| {
            let plan = preparation.plan;
            let is_staged = |part: &&Part<'_>| !plan.weight_files[&part.view.file].in_place;
            let staging = preparation.folder.staging();
            (parts.par_iter().filter(is_staged)).try_for_each(|part| {
                staging.write_at(part.view.file, part.offset(), &part.bytes)
            })?;
            for part in parts.iter().filter(|part| !is_staged(part)) {
                preparation.put(part.view.file, part.offset(), &part.bytes)?;
            }
            Ok(())
        })?;
        for view in complete {
            self.arrivals.insert(view.index, Arrival::Done);
            self.preparation.tally.whole += 1;
            self.preparation.tally.changed += view.spec.elements();
        }
        Ok(())
    }
}

/// Read some elements of the held content that a wanted tensor is patched from.
fn read_held(
    view: &TensorView<'_>,
    elements: Range<u64>,
    (base, held): (&Base<'_>, usize),
    buffer: &mut Vec<u8>,
) -> Result<()> {
    let width = view.spec.class.width() as u64;
    buffer.resize(((elements.end - elements.start) * width) as usize, 0);
    let (file, location) = base.file_of(held)?;
    let offset = base.tensors[held].offset + elements.start * width;
    read_exact_at(&file, &location, offset, buffer)
}

/// Try a span's patch on the held content.
fn prepare_span(
    view: &TensorView<'_>,
    span: Span,
    held: (&Base<'_>, usize),
    changes: &Changes,
    buffer: &mut Vec<u8>,
) -> Result<PreparedSpan> {
    if changes.is_empty() {
        return Ok(PreparedSpan {
            touched: Touched::default(),
            words: Some(Vec::new()),
        });
    }
    read_held(view, span.first..span.end(), held, buffer)?;
    let class = view.spec.class;
    let touched = touched(class, span.first, buffer, changes).map_err(|error| bad(view, error))?;
    let words = match words_after(class, buffer, changes) {
        Ok(words) => Some(words),
        // The content may be the patched one already; the proof of the whole tensor tells.
        Err(FormatError::ShiftOutOfRange { .. }) => None,
        Err(error) => return Err(bad(view, error)),
    };
    Ok(PreparedSpan { touched, words })
}
