//! Bounded reads: files in parts of a few MiB, never mapped, so that a file which someone truncates is an
//! error and no crash.

use crate::error::{ClientError, Result};
use deltaic_format::ElementClass;
use deltaic_format::Moments;
use deltaic_format::progress::Progress;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes read at once; a whole number of 512-element runs of every class, as moments are summed by runs.
pub(crate) const PART_LEN: u64 = 4 << 20;

/// Fill `out` from `file` at `offset`; `path` names the file in errors.
pub(crate) fn read_exact_at(file: &File, path: &Path, offset: u64, out: &mut [u8]) -> Result<()> {
    file.read_exact_at(out, offset)
        .map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => ClientError::Changed {
                path: path.to_owned(),
                how: "shrank while it was read",
            },
            _ => ClientError::io(path, error),
        })
}

/// Split `range` into parts of at most [`PART_LEN`].
pub(crate) fn parts(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range
        .step_by(PART_LEN as usize)
        .map(move |start| start..end.min(start + PART_LEN))
}

/// Give the bytes of `range` to `part`, in order; every part counts as progress, and may be the last.
pub(crate) fn for_each_part(
    (file, path): (&File, &Path),
    range: Range<u64>,
    buffer: &mut Vec<u8>,
    progress: &dyn Progress,
    mut part: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let begin = range.start;
    for range in parts(range) {
        check_cancelled(progress)?;
        buffer.resize((range.end - range.start) as usize, 0);
        read_exact_at(file, path, range.start, buffer)?;
        part(range.start - begin, buffer)?;
        progress.advance(buffer.len() as u64);
    }
    Ok(())
}

/// BLAKE3 of the bytes of `range`.
pub(crate) fn hash_range(
    file: (&File, &Path),
    range: Range<u64>,
    buffer: &mut Vec<u8>,
    progress: &dyn Progress,
) -> Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    for_each_part(file, range, buffer, progress, |_, part| {
        hasher.update(part);
        Ok(())
    })?;
    Ok(*hasher.finalize().as_bytes())
}

/// Moments of the tensor that fills `range`.
pub(crate) fn moments_of_range(
    file: (&File, &Path),
    range: Range<u64>,
    class: ElementClass,
    buffer: &mut Vec<u8>,
    progress: &dyn Progress,
) -> Result<Moments> {
    let mut sum = Moments::default();
    for_each_part(file, range, buffer, progress, |offset, part| {
        sum = sum + Moments::of(class, offset / class.width() as u64, part);
        Ok(())
    })?;
    Ok(sum)
}

/// Fail if the caller wants to stop.
pub(crate) fn check_cancelled(progress: &dyn Progress) -> Result<()> {
    match progress.cancelled() {
        true => Err(ClientError::Interrupted),
        false => Ok(()),
    }
}
