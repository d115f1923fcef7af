//! Reading and writing canonical bytes (SPEC.md §1).

use crate::error::{FormatError, Result};

/// A cursor over untrusted bytes; every read is checked against what is left.
#[derive(Debug, Clone)]
pub struct ByteReader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> ByteReader<'a> {
    /// Read `bytes` as an object of kind `what` (used in errors).
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, rest: bytes }
    }

    /// Number of bytes not yet read.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// The next `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8]> {
        if n > self.rest.len() {
            return Err(FormatError::Truncated {
                what: self.what,
                needed: (n - self.rest.len()) as u64,
            });
        }
        let (head, rest) = self.rest.split_at(n);
        self.rest = rest;
        Ok(head)
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// A little-endian `u32`.
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// A little-endian `u64`.
    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A little-endian `i64`.
    pub fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// A varint in its shortest form.
    pub fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for position in 0..10 {
            let byte = self.u8()?;
            let low = u64::from(byte & 0x7f);
            if position == 9 && low > 1 {
                return Err(FormatError::invalid(self.what, "a varint exceeds 64 bits"));
            }
            value |= low << (7 * position);
            if byte & 0x80 == 0 {
                if byte == 0 && position > 0 {
                    return Err(FormatError::invalid(
                        self.what,
                        "a varint is not in its shortest form",
                    ));
                }
                return Ok(value);
            }
        }
        Err(FormatError::invalid(self.what, "a varint exceeds 64 bits"))
    }

    /// A varint of at most `limit`; `field` names it in the error.
    pub fn varint_up_to(&mut self, field: &'static str, limit: u64) -> Result<u64> {
        let found = self.varint()?;
        if found > limit {
            return Err(FormatError::Limit {
                what: self.what,
                field,
                found,
                limit,
            });
        }
        Ok(found)
    }

    /// A list length of at most `limit` entries, each of which takes at least `smallest` bytes, so that a
    /// hostile length is refused before anything is allocated for it.
    pub fn count(&mut self, field: &'static str, limit: u64, smallest: usize) -> Result<usize> {
        let count = self.varint_up_to(field, limit)?;
        let least = count.saturating_mul(smallest as u64);
        if least > self.left() as u64 {
            return Err(FormatError::Truncated {
                what: self.what,
                needed: least - self.left() as u64,
            });
        }
        Ok(count as usize)
    }

    /// A string of at most `limit` bytes.
    pub fn string(&mut self, field: &'static str, limit: u64) -> Result<String> {
        let length = self.count(field, limit, 1)?;
        let bytes = self.bytes(length)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(FormatError::invalid(
                self.what,
                format!("{field} is not UTF-8"),
            )),
        }
    }

    /// The object version byte, which must be `supported`.
    pub fn version(&mut self, supported: u8) -> Result<()> {
        let found = self.u8()?;
        if found != supported {
            return Err(FormatError::Unsupported {
                what: self.what,
                field: "format version",
                found: u64::from(found),
                supported: "version 1",
            });
        }
        Ok(())
    }

    /// Fail unless everything was read.
    pub fn finish(self) -> Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(FormatError::Trailing {
            what: self.what,
            bytes: self.rest.len() as u64,
        })
    }
}

/// Append `value` as a varint.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Append `text` with its varint length.
pub fn put_string(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_read_back_and_only_in_their_shortest_form() {
        for value in [0, 1, 127, 128, 300, 1 << 32, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut reader = ByteReader::new("test", &out);
            assert_eq!(reader.varint(), Ok(value));
            assert_eq!(reader.finish(), Ok(()));
        }
        for bad in [
            &[0x80, 0x00][..],
            &[0xff; 10],
            &[0x80; 10],
            &[0xff, 0x80, 0x00],
        ] {
            assert!(ByteReader::new("test", bad).varint().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_hostile_count_is_refused_before_allocation() {
        let mut out = Vec::new();
        put_varint(&mut out, 1 << 40);
        let mut reader = ByteReader::new("test", &out);
        assert!(matches!(
            reader.count("entries", u64::MAX, 32),
            Err(FormatError::Truncated { .. })
        ));
    }
}
