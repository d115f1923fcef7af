//! What a source sends, checked as it comes: files, part by part, against their hashes, and patches.

use crate::error::{ClientError, Result};
use crate::parts::check_cancelled;
use crate::source::Source;
use bytes::Bytes;
use deltaic_format::FormatError;
use deltaic_format::fetch::{AnswerCheck, Chunk, Span};
use deltaic_format::ids::{CommitId, FileId};
use deltaic_format::object::TensorView;
use deltaic_format::patch::Changes;
use deltaic_format::patch_set::PatchSetReader;
use deltaic_format::progress::Progress;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};

/// A tensor in words.
pub(crate) fn tensor_name(view: &TensorView<'_>) -> String {
    format!("tensor {} ({})", view.spec.name, view.path)
}

/// A complaint about what was sent for a tensor.
pub(crate) fn bad(view: &TensorView<'_>, what: impl ToString) -> ClientError {
    ClientError::delivery(tensor_name(view), what)
}

/// The chunks of an answer, as long as they can be those of the answer that `check` follows.
pub(crate) fn checked(
    chunks: BoxStream<'static, Result<Chunk>>,
    want: CommitId,
    check: AnswerCheck,
) -> BoxStream<'static, Result<Chunk>> {
    let bad = move |error| ClientError::delivery(format!("commit {}", want.short()), error);
    let next = move |(mut chunks, mut check): (BoxStream<'static, Result<Chunk>>, AnswerCheck)| async move {
        let Some(chunk) = chunks.next().await.transpose()? else {
            return check.finish().map(|()| None).map_err(bad);
        };
        check.take(&chunk).map_err(bad)?;
        Ok(Some((chunk, (chunks, check))))
    };
    stream::try_unfold((chunks, check), next).boxed()
}

/// The parts of file `id` as long as there are no more than its `size` bytes; fewer are an error at the end.
pub(crate) fn of_size(
    parts: BoxStream<'static, Result<Bytes>>,
    (id, size): (FileId, u64),
) -> BoxStream<'static, Result<Bytes>> {
    let bad = move |what: String| ClientError::delivery(format!("file {}", id.short()), what);
    let next = move |(mut parts, left): (BoxStream<'static, Result<Bytes>>, u64)| async move {
        match parts.next().await.transpose()? {
            Some(part) => match left.checked_sub(part.len() as u64) {
                Some(left) => Ok(Some((part, (parts, left)))),
                None => Err(bad(format!("more than its {size} bytes"))),
            },
            None if left > 0 => Err(bad(format!("{left} of its {size} bytes are missing"))),
            None => Ok(None),
        }
    };
    stream::try_unfold((parts, size), next).boxed()
}

/// Give the bytes of file `id` of `version` to `put` as they come, and return their number; on error they are worth nothing.
pub(crate) fn receive_file(
    source: &dyn Source,
    version: CommitId,
    (id, size): (FileId, u64),
    name: &str,
    progress: &dyn Progress,
    put: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<u64> {
    let mut received = 0u64;
    let mut hasher = blake3::Hasher::new();
    source.file(version, id, size, &mut |part| {
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
pub(crate) fn check_span(view: &TensorView<'_>, span: Span) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures::TryStreamExt as _;

    async fn sized(parts: &[&'static str], size: u64) -> Result<Vec<Bytes>> {
        let parts: Vec<_> = parts.iter().map(|part| Ok(Bytes::from(*part))).collect();
        let file = (FileId([7; 32]), size);
        of_size(stream::iter(parts).boxed(), file)
            .try_collect()
            .await
    }

    #[tokio::test]
    async fn a_file_has_the_bytes_that_the_tree_names() {
        assert_eq!(sized(&["ab", "c"], 3).await.expect("as long").len(), 2);
        assert!(sized(&[], 0).await.expect("as long").is_empty());
        for (parts, size) in [(&["ab", "c"][..], 2), (&["ab"], 3), (&["a"], 0)] {
            let error = sized(parts, size).await.expect_err("not as long");
            assert!(matches!(error, ClientError::Delivery { .. }), "{error}");
        }
    }

    #[tokio::test]
    async fn a_file_without_end_is_given_up_at_once() {
        let endless = stream::repeat_with(|| Ok(Bytes::from_static(b"0123456789")));
        let mut parts = of_size(endless.boxed(), (FileId([7; 32]), 25));
        for _ in 0..2 {
            parts.next().await.expect("there is more").expect("fits");
        }
        let error = parts.next().await.expect("an error").expect_err("too long");
        assert!(error.to_string().contains("more than its 25 bytes"));
    }
}
