//! What a source sends, checked as it comes: files and whole contents, piece by piece, against their hashes.

use crate::error::{ClientError, Result};
use crate::parts::check_cancelled;
use crate::source::Source;
use deltaic_format::Moments;
use deltaic_format::base::decode_base_of;
use deltaic_format::ids::FileId;
use deltaic_format::object::TensorView;
use deltaic_format::patch::{PIECE_ELEMENTS, piece_count, piece_len};
use deltaic_format::progress::Progress;

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

/// The whole content of a tensor, up to a piece.
#[derive(Default)]
pub(crate) struct ContentArrival {
    next_piece: u64,
    hasher: blake3::Hasher,
    moments: Moments,
}

impl ContentArrival {
    /// Decode the next piece into `buffer`, and return where its bytes begin in the weight file.
    pub(crate) fn piece(
        &mut self,
        view: &TensorView<'_>,
        piece: u64,
        bytes: &[u8],
        buffer: &mut Vec<u8>,
    ) -> Result<u64> {
        if piece != self.next_piece {
            let what = format!("piece {piece} came twice or out of order");
            return Err(bad(view, what));
        }
        let class = view.spec.class;
        let len = piece_len(view.spec.elements(), piece);
        decode_base_of(class, len, bytes, buffer).map_err(|error| bad(view, error))?;
        let first = piece * PIECE_ELEMENTS;
        self.hasher.update(buffer);
        self.moments = self.moments + Moments::of(class, first, buffer);
        self.next_piece += 1;
        Ok(view.offset + first * class.width() as u64)
    }

    /// Whether all pieces are here.
    pub(crate) fn is_complete(&self, view: &TensorView<'_>) -> bool {
        self.next_piece == piece_count(view.spec.elements())
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
