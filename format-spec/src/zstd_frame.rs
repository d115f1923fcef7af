//! Single zstd frames, with contexts kept per thread: making one costs more than a small plane does.

use std::cell::RefCell;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::find_frame_compressed_size;

/// Fewer bytes than this never get smaller.
const WORTH_TRYING: usize = 32;

thread_local! {
    static COMPRESSOR: RefCell<(i32, Compressor<'static>)> = RefCell::new((0, Compressor::default()));
    static DECOMPRESSOR: RefCell<Decompressor<'static>> = RefCell::new(Decompressor::default());
}

/// `bytes` as one frame, if that is smaller.
pub(crate) fn compress(bytes: &[u8], level: i32) -> Option<Vec<u8>> {
    if bytes.len() < WORTH_TRYING {
        return None;
    }
    let frame = COMPRESSOR.with_borrow_mut(|(current, compressor)| {
        if *current != level {
            (compressor.set_compression_level(level)).expect("zstd has this compression level");
            *current = level;
        }
        compressor
            .compress(bytes)
            .expect("zstd compresses any bytes")
    });
    (frame.len() < bytes.len()).then_some(frame)
}

/// Unpack one frame, and nothing after it, that fills `out` exactly; says whether it was that.
#[must_use]
pub(crate) fn decompress(frame: &[u8], out: &mut [u8]) -> bool {
    let unpacked = DECOMPRESSOR
        .with_borrow_mut(|decompressor| decompressor.decompress_to_buffer(frame, out).ok());
    find_frame_compressed_size(frame) == Ok(frame.len()) && unpacked == Some(out.len())
}
