//! Bit streams, Rice and Exp-Golomb codes (SPEC.md §1, §6).

use crate::error::{FormatError, Result};

/// Writes a bit stream, least significant bit first.
#[derive(Debug, Default)]
pub(crate) struct BitWriter {
    bytes: Vec<u8>,
    /// Bits not yet in `bytes`, lowest first; fewer than 32 between calls.
    pending: u64,
    filled: u32,
}

impl BitWriter {
    /// Append the `count` low bits of `value`; `count` is at most 32 and the other bits are zero.
    #[inline]
    pub(crate) fn put(&mut self, value: u64, count: u32) {
        debug_assert!(count <= 32 && value >> count == 0);
        self.pending |= value << self.filled;
        self.filled += count;
        if self.filled >= 32 {
            self.bytes
                .extend_from_slice(&(self.pending as u32).to_le_bytes());
            self.pending >>= 32;
            self.filled -= 32;
        }
    }

    fn put_wide(&mut self, value: u64, count: u32) {
        if count > 32 {
            self.put(value & 0xffff_ffff, 32);
            self.put(value >> 32, count - 32);
        } else {
            self.put(value, count);
        }
    }

    fn put_zeros_and_one(&mut self, mut zeros: u64) {
        while zeros >= 32 {
            self.put(0, 32);
            zeros -= 32;
        }
        self.put(1 << zeros, zeros as u32 + 1);
    }

    /// `Rice(value, k)`.
    #[inline]
    pub(crate) fn rice(&mut self, value: u32, k: u32) {
        let quotient = value >> k;
        let low = u64::from(value) & ((1 << k) - 1);
        if quotient + 1 + k <= 32 {
            self.put((low << (quotient + 1)) | (1 << quotient), quotient + 1 + k);
        } else {
            self.put_zeros_and_one(u64::from(quotient));
            self.put(low, k);
        }
    }

    /// `EG(value, m)`, for `value` ≤ 2⁶³ and `m` ≤ 62.
    #[inline]
    pub(crate) fn exp_golomb(&mut self, value: u64, m: u32) {
        let y = value + (1 << m);
        let low_bits = 63 - y.leading_zeros();
        self.put_zeros_and_one(u64::from(low_bits - m));
        self.put_wide(y & !(1 << low_bits), low_bits);
    }

    /// Zero bits up to the next byte boundary, then `bytes`.
    pub(crate) fn align_and_append(&mut self, bytes: &[u8]) {
        self.align();
        self.bytes.extend_from_slice(bytes);
    }

    fn align(&mut self) {
        let last = self.filled.div_ceil(8) as usize;
        self.bytes
            .extend_from_slice(&self.pending.to_le_bytes()[..last]);
        (self.pending, self.filled) = (0, 0);
    }

    /// The stream, its last byte filled with zero bits.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.align();
        self.bytes
    }
}

/// Bits that `Rice(value, k)` takes.
#[inline]
pub(crate) fn rice_bits(value: u32, k: u32) -> u64 {
    u64::from(value >> k) + 1 + u64::from(k)
}

/// Bits that `EG(value, m)` takes.
#[inline]
pub(crate) fn exp_golomb_bits(value: u64, m: u32) -> u64 {
    let low_bits = 63 - (value + (1 << m)).leading_zeros();
    u64::from(2 * low_bits - m + 1)
}

/// Reads a bit stream from untrusted bytes.
#[derive(Debug)]
pub(crate) struct BitReader<'a> {
    bytes: &'a [u8],
    /// Position of the next bit.
    position: usize,
}

const WHAT: &str = "patch set";

impl<'a> BitReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    fn bits_left(&self) -> usize {
        self.bytes.len() * 8 - self.position
    }

    /// At least 57 of the next bits, zeros after the end.
    #[inline]
    fn peek(&self) -> u64 {
        let byte = self.position / 8;
        let word = match self.bytes.get(byte..byte + 8) {
            Some(eight) => u64::from_le_bytes(eight.try_into().unwrap_or_default()),
            None => {
                let mut last = [0; 8];
                let tail = self.bytes.get(byte..).unwrap_or_default();
                last[..tail.len()].copy_from_slice(tail);
                u64::from_le_bytes(last)
            }
        };
        word >> (self.position % 8)
    }

    #[inline]
    fn skip(&mut self, count: usize) -> Result<()> {
        if count > self.bits_left() {
            return Err(FormatError::Truncated {
                what: WHAT,
                needed: (count - self.bits_left()).div_ceil(8) as u64,
            });
        }
        self.position += count;
        Ok(())
    }

    /// The next `count` bits, at most 56.
    #[inline]
    pub(crate) fn get(&mut self, count: u32) -> Result<u64> {
        debug_assert!(count <= 56);
        let value = self.peek() & ((1 << count) - 1);
        self.skip(count as usize)?;
        Ok(value)
    }

    fn get_wide(&mut self, count: u32) -> Result<u64> {
        if count > 32 {
            let low = self.get(32)?;
            Ok(low | self.get(count - 32)? << 32)
        } else {
            self.get(count)
        }
    }

    /// Zero bits up to and with the next one bit; more than `limit` zeros are refused.
    fn zeros_then_one(&mut self, limit: u64) -> Result<u64> {
        let mut zeros = 0u64;
        loop {
            let run = u64::from(self.peek().trailing_zeros());
            if run < 57 {
                zeros += run;
                self.skip(run as usize + 1)?;
                break;
            }
            zeros += 56;
            self.skip(56)?;
            if zeros > limit {
                break;
            }
        }
        if zeros > limit {
            return Err(FormatError::invalid(WHAT, "a code word is out of range"));
        }
        Ok(zeros)
    }

    /// A `Rice(_, k)` value of at most `limit` (< 2³¹).
    #[inline]
    pub(crate) fn rice(&mut self, k: u32, limit: u32) -> Result<u32> {
        let word = self.peek();
        let quotient = word.trailing_zeros();
        let value = if quotient + 1 + k <= 56 {
            self.skip((quotient + 1 + k) as usize)?;
            (quotient << k) | ((word >> (quotient + 1)) as u32 & ((1 << k) - 1))
        } else {
            let quotient = self.zeros_then_one(u64::from(limit >> k))? as u32;
            (quotient << k) | self.get(k)? as u32
        };
        if value > limit {
            return Err(FormatError::invalid(WHAT, "a code word is out of range"));
        }
        Ok(value)
    }

    /// An `EG(_, m)` value of at most `limit` (≤ 2⁶³).
    #[inline]
    pub(crate) fn exp_golomb(&mut self, m: u32, limit: u64) -> Result<u64> {
        let zeros = self.zeros_then_one(u64::from(63 - m))? as u32;
        let low_bits = zeros + m;
        let y = self.get_wide(low_bits)? | 1 << low_bits;
        let value = y - (1 << m);
        if value > limit {
            return Err(FormatError::invalid(WHAT, "a code word is out of range"));
        }
        Ok(value)
    }

    /// Skip zero bits up to a byte boundary and take the remaining bytes.
    pub(crate) fn align_and_take(mut self) -> Result<&'a [u8]> {
        self.align()?;
        Ok(&self.bytes[self.position / 8..])
    }

    fn align(&mut self) -> Result<()> {
        let padding = (8 - self.position % 8) % 8;
        if self.get(padding as u32)? != 0 {
            return Err(FormatError::invalid(WHAT, "padding bits are not zero"));
        }
        Ok(())
    }

    /// Fail unless only the zero padding of the last byte is left.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.align()?;
        match self.bits_left() / 8 {
            0 => Ok(()),
            bytes => Err(FormatError::Trailing {
                what: WHAT,
                bytes: bytes as u64,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_read_back_and_take_the_bits_they_say() {
        for k in 0..=18 {
            for value in [0, 1, 2, 55, 56, 57, 63, 64, 1000, (1 << 18) - 1] {
                let mut writer = BitWriter::default();
                writer.put(1, 1);
                writer.rice(value, k);
                let bytes = writer.finish();
                assert_eq!(bytes.len() as u64, (1 + rice_bits(value, k)).div_ceil(8));
                let mut reader = BitReader::new(&bytes);
                assert_eq!(reader.get(1), Ok(1));
                assert_eq!(reader.rice(k, (1 << 18) - 1), Ok(value));
                assert_eq!(reader.finish(), Ok(()));
            }
        }
        for m in [0, 1, 7, 31, 32, 33, 61, 62] {
            for value in [0, 1, 2, 3, 255, 1 << 31, (1 << 63) - 1, 1 << 63] {
                let mut writer = BitWriter::default();
                writer.exp_golomb(value, m);
                let bytes = writer.finish();
                assert_eq!(bytes.len() as u64, exp_golomb_bits(value, m).div_ceil(8));
                let mut reader = BitReader::new(&bytes);
                assert_eq!(reader.exp_golomb(m, 1 << 63), Ok(value), "{value} {m}");
                assert_eq!(reader.finish(), Ok(()));
            }
        }
    }

    #[test]
    fn bits_worked_by_hand() {
        // Rice(5, 1): two zeros, a one, low bit 1 -> 0,0,1,1; EG(0, 3): y = 8, n = 4, no zeros, one, 000.
        let mut writer = BitWriter::default();
        writer.rice(5, 1);
        writer.exp_golomb(0, 3);
        assert_eq!(writer.finish(), [0b0001_1100]);
    }

    #[test]
    fn hostile_streams_are_refused() {
        assert!(BitReader::new(&[]).rice(3, 10).is_err());
        assert!(BitReader::new(&[0; 64]).rice(0, 100).is_err());
        assert!(
            BitReader::new(&[0; 64])
                .exp_golomb(0, u64::MAX >> 1)
                .is_err()
        );
        assert!(BitReader::new(&[0b10]).finish().is_err());
        assert!(BitReader::new(&[0, 0]).finish().is_err());
    }
}
