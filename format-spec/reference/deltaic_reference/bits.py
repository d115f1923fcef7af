"""Bit streams, least significant bit of each byte first, with Rice and Exp-Golomb codes (SPEC §1, §6)."""

from __future__ import annotations

import numpy as np

from .primitives import require


class BitReader:
    """Reads a bit stream. The bits are unpacked to one byte each, so that finding a one is `bytes.find`."""

    def __init__(self, data: bytes):
        self._data = bytes(data)
        self._bits = np.unpackbits(np.frombuffer(self._data, np.uint8), bitorder="little").tobytes()
        self._position = 0

    def _advance(self, length: int, what: str) -> int:
        """Move over `length` bits and return where they begin."""
        left = len(self._bits) - self._position
        require(length <= left, f"{what}: {length} bits expected, {left} left")
        start = self._position
        self._position += length
        return start

    def field(self, width: int, what: str) -> int:
        """An unsigned integer of `width` bits, least significant first."""
        start = self._advance(width, what)
        held = self._data[start // 8 : (start + width + 7) // 8]
        return int.from_bytes(held, "little") >> start % 8 & (1 << width) - 1

    def flags(self, count: int, what: str) -> np.ndarray:
        """`count` single bits as an array of 0 and 1."""
        start = self._advance(count, what)
        return np.frombuffer(self._bits, np.uint8, count, start)

    def unary(self, largest: int, what: str) -> int:
        """The number of zero bits before the next one, at most `largest`."""
        one = self._bits.find(1, self._position, self._position + largest + 1)
        require(one >= 0, f"{what}: no end within {largest + 1} bits, or the stream ends")
        zeros = one - self._position
        self._position = one + 1
        return zeros

    def rice(self, k: int, largest: int, what: str) -> int:
        """Rice(x, k) of an x that may not be above `largest`."""
        require(largest >= 0, f"{what}: no room for another")
        quotient = self.unary(largest >> k, what)
        value = quotient << k | self.field(k, what)
        require(value <= largest, f"{what}: {value} is above {largest}")
        return value

    def exp_golomb(self, m: int, what: str) -> int:
        """EG(x, m) of an x with x + 2^m below 2^64."""
        low_bits = self.unary(63 - m, what) + m
        return (1 << low_bits) + self.field(low_bits, what) - (1 << m)

    def to_byte_boundary(self, what: str) -> None:
        """Move over the unused bits of the current byte, which must be zero."""
        padding = self.field(-self._position % 8, what)
        require(padding == 0, f"{what}: unused bits are not zero")

    def rest(self, what: str) -> bytes:
        """After zero bits up to the byte boundary, everything to the end."""
        self.to_byte_boundary(what)
        start = self._advance(len(self._bits) - self._position, what) // 8
        return self._data[start:]

    def end(self, what: str) -> None:
        left = len(self.rest(what))
        require(left == 0, f"{what}: {left} trailing bytes")


class BitWriter:
    """Writes a bit stream; the twin of BitReader. Every step returns the writer, for the next one."""

    def __init__(self) -> None:
        self._full = bytearray()
        self._pending = 0
        self._pending_bits = 0

    def field(self, value: int, width: int) -> BitWriter:
        assert 0 <= value < 1 << width
        self._pending |= value << self._pending_bits
        self._pending_bits += width
        whole = self._pending_bits // 8
        if whole >= 8:
            self._full += (self._pending & (1 << 8 * whole) - 1).to_bytes(whole, "little")
            self._pending >>= 8 * whole
            self._pending_bits -= 8 * whole
        return self

    def flags(self, bits: np.ndarray) -> BitWriter:
        packed = np.packbits(np.asarray(bits, np.uint8), bitorder="little").tobytes()
        return self.field(int.from_bytes(packed, "little"), len(bits))

    def rice(self, x: int, k: int) -> BitWriter:
        quotient = x >> k
        return self.field(1 << quotient, quotient + 1).field(x & (1 << k) - 1, k)

    def exp_golomb(self, x: int, m: int) -> BitWriter:
        y = x + (1 << m)
        n = y.bit_length()
        return self.field(1 << n - 1 - m, n - m).field(y & (1 << n - 1) - 1, n - 1)

    def finish(self) -> bytes:
        """All bytes; the unused bits of the last one are zero."""
        return bytes(self._full) + self._pending.to_bytes((self._pending_bits + 7) // 8, "little")
