//! What a source sends, checked as it comes: files and whole contents, part by part, against their hashes.

use crate::error::{ClientError, Result};
use crate::parts::check_cancelled;
use crate::source::Source;
use deltaic_format::base::decode_base_of;
use deltaic_format::fetch::Span;
use deltaic_format::ids::FileId;
use deltaic_format::object::TensorView;
use deltaic_format::patch::Changes;
use deltaic_format::patch_set::PatchSetReader;
use deltaic_format::progress::Progress;
use deltaic_format::{FormatError, Moments};

/// A tensor in words.
pub(crate) fn tensor_name(view: &TensorView<'_>) -> String {
    format!("tensor {} ({})", view.spec.name, view.path)
}

/// A complaint about what was sent for a tensor.
pub(crate) fn bad(view: &TensorView<'_>, what: impl ToString) -> ClientError {
    ClientError::delivery(tensor_name(view), what)
}

/// Give the bytes of file `id` to `put` as they come, and return their number; on error they are worth nothing.
pub(crate) fn receive_file(
    source: &dyn Source,
    (id, size): (FileId, u64),
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
        progress.advance(part.len() as u64);
        Ok(())
    })?;
    if received != size || *hasher.finalize().as_bytes() != id.0 {
        let what = format!("{received} bytes of {size}, or of another content");
        return Err(ClientError::delivery(name, what));
    }
    Ok(received)
}

/// Check that `span` can be one of an answer about a tensor.
fn check_span(view: &TensorView<'_>, span: Span) -> Result<()> {
    match span.is_of(view.spec.elements()) {
        true => Ok(()),
        false => {
            let Span {
                first, elements, ..
            } = span;
            let what = format!("it has no span of {elements} elements from element {first} on");
            Err(bad(view, what))
        }
    }
}

/// Decode a patch set whose members are `members`; `wished` says which tensor a span is of, if it was asked for.
pub(crate) fn decode_patches<'a>(
    members: &[Span],
    bytes: &[u8],
    mut wished: impl FnMut(Span) -> Result<TensorView<'a>>,
) -> Result<Vec<(TensorView<'a>, Span, Changes)>> {
    let damaged = |error: FormatError| ClientError::delivery("a patch set", error);
    let reader = PatchSetReader::new(bytes).map_err(damaged)?;
    let (found, named) = (reader.members().len(), members.len());
    if found != named {
        let what = format!("{found} members instead of {named}");
        return Err(ClientError::delivery("a patch set", what));
    }
    let mut views = Vec::with_capacity(named);
    for (&span, elements) in members.iter().zip(reader.members()) {
        let view = wished(span)?;
        check_span(&view, span)?;
        if reader.class() != view.spec.class || u64::from(elements) != span.elements {
            return Err(bad(&view, "a patch of another class or length"));
        }
        views.push((view, span));
    }
    let changes = reader.all().map_err(damaged)?;
    let together = |((view, span), changes)| (view, span, changes);
    Ok(views.into_iter().zip(changes).map(together).collect())
}

/// The whole content of a tensor, up to an element.
#[derive(Default)]
pub(crate) struct ContentArrival {
    next: u64,
    hasher: blake3::Hasher,
    moments: Moments,
}

impl ContentArrival {
    /// Decode the next span into `buffer`, and return where its bytes begin in the weight file.
    pub(crate) fn span(
        &mut self,
        view: &TensorView<'_>,
        span: Span,
        bytes: &[u8],
        buffer: &mut Vec<u8>,
    ) -> Result<u64> {
        check_span(view, span)?;
        if span.first != self.next {
            let (first, next) = (span.first, self.next);
            let what = format!("element {first} and on came where element {next} is due");
            return Err(bad(view, what));
        }
        let class = view.spec.class;
        decode_base_of(class, span.elements, bytes, buffer).map_err(|error| bad(view, error))?;
        self.hasher.update(buffer);
        self.moments = self.moments + Moments::of(class, span.first, buffer);
        self.next = span.end();
        Ok(view.offset + span.first * class.width() as u64)
    }

    /// Whether all of it is here.
    pub(crate) fn is_complete(&self, view: &TensorView<'_>) -> bool {
        self.next == view.spec.elements()
    }

    /// Check a complete content against what the version says of it.
    pub(crate) fn check(&self, view: &TensorView<'_>) -> Result<()> {
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
