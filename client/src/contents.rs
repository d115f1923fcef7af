//! Whole contents as they come: decoded, hashed and written a few mebibytes at a time, on all cores, while the network brings
//! the next ones.

use crate::arrival::{bad, check_span};
use crate::error::Result;
use bytes::Bytes;
use deltaic_format::Moments;
use deltaic_format::base::decode_base_of;
use deltaic_format::fetch::Span;
use deltaic_format::object::TensorView;
use rayon::prelude::*;
use std::collections::HashMap;

/// Bytes of weights that are worked on at a time.
const BATCH_BYTES: u64 = 16 << 20;

/// The content of a tensor, up to an element.
#[derive(Default)]
struct Arrival {
    next: u64,
    hasher: blake3::Hasher,
    moments: Moments,
}

/// A decoded part of a content.
pub(crate) struct Part<'a> {
    pub(crate) view: TensorView<'a>,
    pub(crate) bytes: Vec<u8>,
    span: Span,
    moments: Moments,
}

impl Part<'_> {
    /// Where it begins in its weight file.
    pub(crate) fn offset(&self) -> u64 {
        self.view.offset + self.span.first * self.view.spec.class.width() as u64
    }
}

/// The contents of some tensors.
#[derive(Default)]
pub(crate) struct Contents<'a> {
    /// Those of which something came, and not all.
    begun: HashMap<usize, Arrival>,
    /// What came and was not looked at yet.
    waiting: Vec<(TensorView<'a>, Span, Bytes)>,
    waiting_bytes: u64,
}

impl<'a> Contents<'a> {
    /// Take a part. Says whether it is time to [`write`](Self::write) what came.
    pub(crate) fn take(&mut self, view: TensorView<'a>, span: Span, bytes: Bytes) -> Result<bool> {
        check_span(&view, span)?;
        self.waiting_bytes += span.elements * view.spec.class.width() as u64;
        self.waiting.push((view, span, bytes));
        Ok(self.waiting_bytes >= BATCH_BYTES)
    }

    /// Give all that came to `write`; each content goes on where it ended, and a complete one has the hash and moments that
    /// the version names. Those are returned.
    pub(crate) fn write(
        &mut self,
        write: impl FnOnce(&[Part<'a>]) -> Result<()>,
    ) -> Result<Vec<TensorView<'a>>> {
        self.waiting_bytes = 0;
        let waiting = std::mem::take(&mut self.waiting);
        let mut parts = (waiting.into_par_iter().map(decode)).collect::<Result<Vec<_>>>()?;
        parts.sort_by_key(|part| part.view.index);
        let mut tensors: Vec<(Arrival, &[Part<'a>])> = parts
            .chunk_by(|one, next| one.view.index == next.view.index)
            .map(|parts| {
                let begun = self.begun.remove(&parts[0].view.index);
                (begun.unwrap_or_default(), parts)
            })
            .collect();
        (tensors.par_iter_mut()).try_for_each(|(arrival, parts)| {
            parts.iter().try_for_each(|part| arrival.take(part))
        })?;
        write(&parts)?;
        let mut complete = Vec::new();
        for (arrival, parts) in tensors {
            let view = parts[0].view;
            if arrival.next == view.spec.elements() {
                arrival.check(&view)?;
                complete.push(view);
            } else {
                self.begun.insert(view.index, arrival);
            }
        }
        Ok(complete)
    }
}

fn decode<'a>((view, span, encoded): (TensorView<'a>, Span, Bytes)) -> Result<Part<'a>> {
    let (class, mut bytes) = (view.spec.class, Vec::new());
    decode_base_of(class, span.elements, &encoded, &mut bytes)
        .map_err(|error| bad(&view, error))?;
    Ok(Part {
        moments: Moments::of(class, span.first, &bytes),
        view,
        bytes,
        span,
    })
}

impl Arrival {
    fn take(&mut self, part: &Part<'_>) -> Result<()> {
        let (first, next) = (part.span.first, self.next);
        if first != next {
            let what = format!("element {first} and on came where element {next} is due");
            return Err(bad(&part.view, what));
        }
        self.hasher.update(&part.bytes);
        self.moments = self.moments + part.moments;
        self.next = part.span.end();
        Ok(())
    }

    /// Check a complete content against what the version says of it.
    fn check(&self, view: &TensorView<'_>) -> Result<()> {
        if *self.hasher.finalize().as_bytes() != view.entry.id.0 {
            let what = "its content does not have the hash that the commit names";
            return Err(bad(view, what));
        }
        if self.moments != view.entry.moments {
            let what = "the commit names moments that its content does not have";
            return Err(bad(view, what));
        }
        Ok(())
    }
}
