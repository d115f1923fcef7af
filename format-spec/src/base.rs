//! Bases: whole contents in byte planes, each raw or zstd, block by block (SPEC.md §7).

use crate::bytes::{ByteReader, put_varint};
use crate::dtype::{ElementClass, Order};
use crate::error::{FormatError, Result};
use crate::zstd_frame;
use std::convert::Infallible;
use std::ops::Range;

const WHAT: &str = "base";
const MAGIC: [u8; 8] = *b"\x89DBS\r\n\x1a\n";
const VERSION: u8 = 1;
const BLOCK_LOG2: u8 = 18;
const MAX_ELEMENTS: u64 = 1 << 48;
const ZSTD_LEVEL: i32 = 1;
const RAW: u64 = 0;
const ZSTD: u64 = 1;

/// Elements of a base's block; a piece is a whole number of them.
pub const BASE_BLOCK_ELEMENTS: u64 = 1 << BLOCK_LOG2;

/// Bytes before the first block.
pub const BASE_HEADER_LEN: usize = 19;

/// Bytes after the directory: its length.
pub const BASE_TRAILER_LEN: usize = 4;

/// Encodes a base block by block, so that it can be streamed.
#[derive(Debug)]
pub struct BaseEncoder {
    class: ElementClass,
    elements: u64,
    seen: u64,
    directory: Vec<u8>,
    plane: Vec<u8>,
}

impl BaseEncoder {
    /// Begin the base of `elements` elements of `class`; its header is appended to `out`.
    pub fn new(class: ElementClass, elements: u64, out: &mut Vec<u8>) -> Self {
        put_header(class, elements, out);
        Self {
            class,
            elements,
            seen: 0,
            directory: Vec::new(),
            plane: Vec::new(),
        }
    }

    /// Append the next blocks, as many as `content` holds; only the last may be shorter than a block.
    ///
    /// # Panics
    ///
    /// If the content does not come in whole blocks, or exceeds the announced elements.
    pub fn blocks(&mut self, content: &[u8], out: &mut Vec<u8>) {
        let width = self.class.width();
        for block in content.chunks(BASE_BLOCK_ELEMENTS as usize * width) {
            assert!(
                self.seen.is_multiple_of(BASE_BLOCK_ELEMENTS) && block.len().is_multiple_of(width),
                "a base is written in whole blocks"
            );
            self.seen += (block.len() / width) as u64;
            for plane in 0..width {
                self.put_plane(block, plane, out);
            }
        }
        assert!(self.seen <= self.elements, "more content than announced");
    }

    fn put_plane(&mut self, block: &[u8], plane: usize, out: &mut Vec<u8>) {
        gather_plane(self.class, block, plane, &mut self.plane);
        let packed = zstd_frame::compress(&self.plane, ZSTD_LEVEL);
        let (bytes, coding) = match &packed {
            Some(packed) => (packed, ZSTD),
            None => (&self.plane, RAW),
        };
        put_varint(&mut self.directory, 2 * bytes.len() as u64 + coding);
        out.extend_from_slice(bytes);
    }

    /// Append the directory.
    ///
    /// # Panics
    ///
    /// If less content came than was announced.
    pub fn finish(self, out: &mut Vec<u8>) {
        assert_eq!(self.seen, self.elements, "less content than announced");
        out.extend_from_slice(&self.directory);
        let length = u32::try_from(self.directory.len())
            .expect("a directory of 4 GiB would belong to a content of more than 100 TB");
        out.extend(length.to_le_bytes());
    }
}

fn put_header(class: ElementClass, elements: u64, out: &mut Vec<u8>) {
    out.extend(MAGIC);
    out.extend([VERSION, class.number(), BLOCK_LOG2]);
    out.extend(elements.to_le_bytes());
}

/// Encode a whole content as a base.
///
/// # Panics
///
/// If `content` is no whole number of elements.
pub fn encode_base(class: ElementClass, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let elements = (content.len() / class.width()) as u64;
    let mut encoder = BaseEncoder::new(class, elements, &mut out);
    encoder.blocks(content, &mut out);
    encoder.finish(&mut out);
    out
}

/// The directory of a base, read apart from its blocks so that a range needs no other bytes.
#[derive(Debug, Clone)]
pub struct BaseDirectory {
    class: ElementClass,
    elements: u64,
    /// Per block and plane: byte length and whether it is zstd.
    planes: Vec<(u32, bool)>,
    /// Offset of each block from the start of the base, and of the end of the last.
    offsets: Vec<u64>,
}

impl BaseDirectory {
    /// Byte length of the directory, from the last [`BASE_TRAILER_LEN`] bytes of the base.
    pub fn length_from_trailer(trailer: [u8; BASE_TRAILER_LEN]) -> u64 {
        u64::from(u32::from_le_bytes(trailer))
    }

    /// Read header and directory of a base of `total` bytes: its first [`BASE_HEADER_LEN`] bytes, and the
    /// directory's, whose length comes from the trailer.
    ///
    /// # Errors
    ///
    /// If they break a rule of SPEC.md §7 or do not add up to `total`.
    pub fn new(header: &[u8], directory: &[u8], total: u64) -> Result<Self> {
        let mut reader = ByteReader::new(WHAT, header);
        if reader.array()? != MAGIC {
            return Err(FormatError::Magic { what: WHAT });
        }
        reader.version(VERSION)?;
        let class = ElementClass::from_number(WHAT, reader.u8()?)?;
        if reader.u8()? != BLOCK_LOG2 {
            return Err(FormatError::invalid(WHAT, "a block length other than 2^18"));
        }
        let elements = reader.u64()?;
        reader.finish()?;
        if elements > MAX_ELEMENTS {
            return Err(FormatError::Limit {
                what: WHAT,
                field: "elements",
                found: elements,
                limit: MAX_ELEMENTS,
            });
        }
        let mut reader = ByteReader::new(WHAT, directory);
        let blocks = elements.div_ceil(BASE_BLOCK_ELEMENTS);
        let plane_count = blocks * class.width() as u64;
        if plane_count > reader.left() as u64 {
            return Err(FormatError::Truncated {
                what: WHAT,
                needed: plane_count - reader.left() as u64,
            });
        }
        let mut planes = Vec::with_capacity(plane_count as usize);
        let mut offsets = Vec::with_capacity(blocks as usize + 1);
        let mut offset = BASE_HEADER_LEN as u64;
        for block in 0..blocks {
            offsets.push(offset);
            let elements = block_len(elements, block);
            for _ in 0..class.width() {
                let entry = reader.varint_up_to("length of a plane", 2 * elements + 1)?;
                let (length, zstd) = (entry / 2, entry % 2 == ZSTD);
                if length == 0 || zstd == (length == elements) {
                    return Err(FormatError::invalid(WHAT, "a plane of the wrong length"));
                }
                planes.push((length as u32, zstd));
                offset += length;
            }
        }
        reader.finish()?;
        offsets.push(offset);
        if offset + directory.len() as u64 + BASE_TRAILER_LEN as u64 != total {
            return Err(FormatError::invalid(
                WHAT,
                "its parts do not add up to its length",
            ));
        }
        Ok(Self {
            class,
            elements,
            planes,
            offsets,
        })
    }

    /// Class of the content.
    pub fn class(&self) -> ElementClass {
        self.class
    }

    /// Elements of the content.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Where blocks `blocks` lie within the base, in bytes.
    ///
    /// # Panics
    ///
    /// If there are no such blocks.
    pub fn byte_range(&self, blocks: Range<u64>) -> Range<u64> {
        self.offsets[blocks.start as usize]..self.offsets[blocks.end as usize]
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.offsets.len() as u64 - 1
    }

    /// A base of its own of blocks `blocks`, from `encoded`, their bytes, without coding anything anew.
    ///
    /// # Panics
    ///
    /// If there are no such blocks or `encoded` has another length than [`byte_range`](Self::byte_range) says.
    pub fn cut(&self, blocks: Range<u64>, encoded: &[u8]) -> Vec<u8> {
        let append = |out: &mut Vec<u8>| -> Result<(), Infallible> {
            out.extend_from_slice(encoded);
            Ok(())
        };
        match self.cut_with(blocks, append) {
            Ok(base) => base,
            Err(never) => match never {},
        }
    }

    /// The same where `append` puts the blocks' bytes behind what is there, so that they can be read to where they go.
    ///
    /// # Errors
    ///
    /// Whatever `append` fails with.
    ///
    /// # Panics
    ///
    /// If there are no such blocks, or `append` puts another number of bytes there.
    pub fn cut_with<E>(
        &self,
        blocks: Range<u64>,
        append: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<Vec<u8>, E> {
        let range = self.byte_range(blocks.clone());
        let len = (range.end - range.start) as usize;
        let width = self.class.width() as u64;
        let elements = (blocks.end * BASE_BLOCK_ELEMENTS).min(self.elements)
            - (blocks.start * BASE_BLOCK_ELEMENTS).min(self.elements);
        let planes = &self.planes[(blocks.start * width) as usize..(blocks.end * width) as usize];
        let mut out = Vec::with_capacity(len + BASE_HEADER_LEN + 5 * planes.len() + 16);
        put_header(self.class, elements, &mut out);
        let start = out.len();
        append(&mut out)?;
        assert_eq!(out.len() - start, len, "the blocks have their bytes");
        let start = out.len();
        for (length, zstd) in planes {
            put_varint(&mut out, 2 * u64::from(*length) + u64::from(*zstd));
        }
        let length = (out.len() - start) as u32;
        out.extend(length.to_le_bytes());
        Ok(out)
    }

    /// Decode blocks `blocks` from `encoded`, the bytes of [`byte_range`](Self::byte_range), into `content`.
    ///
    /// # Errors
    ///
    /// If the bytes are damaged.
    ///
    /// # Panics
    ///
    /// If `content` has another length than the blocks.
    pub fn decode(&self, blocks: Range<u64>, encoded: &[u8], content: &mut [u8]) -> Result<()> {
        let width = self.class.width();
        let mut reader = ByteReader::new(WHAT, encoded);
        let mut rest = content;
        let mut scratch = Vec::new();
        for block in blocks {
            let elements = block_len(self.elements, block) as usize;
            let (out, after) = rest.split_at_mut(elements * width);
            rest = after;
            for plane in 0..width {
                let (length, zstd) = self.planes[block as usize * width + plane];
                let bytes = reader.bytes(length as usize)?;
                let bytes = if zstd {
                    scratch.resize(elements, 0);
                    if !zstd_frame::decompress(bytes, &mut scratch) {
                        return Err(FormatError::invalid(WHAT, "a plane is damaged"));
                    }
                    &scratch
                } else {
                    bytes
                };
                scatter_plane(bytes, plane, width, out);
            }
            if rotates(self.class) {
                rotate_words(width, out);
            }
        }
        assert!(rest.is_empty(), "the content has the blocks' length");
        reader.finish()
    }
}

/// Decode the base of a content that has `elements` elements of `class`, and of no other, into `content`.
///
/// What is allocated follows from the two expectations, never from what the bytes claim.
///
/// # Errors
///
/// If the bytes break a rule of SPEC.md §7 or are the base of something else.
pub fn decode_base_of(
    class: ElementClass,
    elements: u64,
    base: &[u8],
    content: &mut Vec<u8>,
) -> Result<()> {
    let (directory, blocks) = split(base)?;
    if (directory.class, directory.elements) != (class, elements) {
        let why = "it has another class or length than is expected";
        return Err(FormatError::invalid(WHAT, why));
    }
    content.resize(elements as usize * class.width(), 0);
    directory.decode(0..directory.blocks(), blocks, content)
}

/// Decode a whole base of any class and length, for trusted bytes: a short base may be that of a long content.
///
/// # Errors
///
/// If the bytes break a rule of SPEC.md §7.
pub fn decode_base(base: &[u8]) -> Result<(ElementClass, Vec<u8>)> {
    let (directory, blocks) = split(base)?;
    let mut content = vec![0; directory.elements as usize * directory.class.width()];
    directory.decode(0..directory.blocks(), blocks, &mut content)?;
    Ok((directory.class, content))
}

/// The directory of a whole base, and its blocks.
fn split(base: &[u8]) -> Result<(BaseDirectory, &[u8])> {
    let truncated = || FormatError::Truncated {
        what: WHAT,
        needed: 1,
    };
    let (rest, trailer) = base.split_last_chunk().ok_or_else(truncated)?;
    let length = BaseDirectory::length_from_trailer(*trailer) as usize;
    let end = rest.len().checked_sub(length).ok_or_else(truncated)?;
    let header = rest.get(..BASE_HEADER_LEN.min(end)).ok_or_else(truncated)?;
    let directory = BaseDirectory::new(header, &rest[end..], base.len() as u64)?;
    Ok((directory, &rest[BASE_HEADER_LEN..end]))
}

fn block_len(elements: u64, block: u64) -> u64 {
    (elements - block * BASE_BLOCK_ELEMENTS).min(BASE_BLOCK_ELEMENTS)
}

/// Whether words are rotated, so that the high byte holds the exponent alone.
fn rotates(class: ElementClass) -> bool {
    class.order() == Order::Float && class.width() > 1
}

/// Byte `plane` of each (rotated) word of `block`.
fn gather_plane(class: ElementClass, block: &[u8], plane: usize, out: &mut Vec<u8>) {
    let width = class.width();
    out.clear();
    if !rotates(class) {
        out.extend(block[plane..].iter().step_by(width));
        return;
    }
    // The rotation moves each byte's top bit into the next byte, and the word's into the first.
    let below = (plane + width - 1) % width;
    out.extend((block.chunks_exact(width)).map(|word| word[plane] << 1 | word[below] >> 7));
}

fn scatter_plane(bytes: &[u8], plane: usize, width: usize, out: &mut [u8]) {
    for (word, byte) in out.chunks_exact_mut(width).zip(bytes) {
        word[plane] = *byte;
    }
}

/// Rotate each word right by one bit.
fn rotate_words(width: usize, words: &mut [u8]) {
    match width {
        2 => {
            for word in words.as_chunks_mut().0 {
                *word = u16::from_le_bytes(*word).rotate_right(1).to_le_bytes();
            }
        }
        4 => {
            for word in words.as_chunks_mut().0 {
                *word = u32::from_le_bytes(*word).rotate_right(1).to_le_bytes();
            }
        }
        _ => {
            for word in words.as_chunks_mut().0 {
                *word = u64::from_le_bytes(*word).rotate_right(1).to_le_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_and_boundary_length_reads_back() {
        let block = BASE_BLOCK_ELEMENTS as usize;
        for &class in ElementClass::ALL {
            for elements in [0, 1, 2, 1000, block - 1, block, block + 1] {
                let noise =
                    (0..elements * class.width()).map(|i| crate::moments::mix(i as u64) as u8);
                let smooth = (0..elements * class.width()).map(|i| (i / 1000) as u8);
                for content in [noise.collect::<Vec<_>>(), smooth.collect()] {
                    let base = encode_base(class, &content);
                    assert!(base.len() <= content.len() + 32 + 2 * 3 * class.width() * 2);
                    assert_eq!(decode_base(&base), Ok((class, content)));
                }
            }
        }
    }

    #[test]
    fn truncated_bases_are_refused() {
        let base = encode_base(ElementClass::BF16, &[7; 300]);
        for length in 0..base.len() {
            assert!(decode_base(&base[..length]).is_err(), "{length}");
        }
    }
}
