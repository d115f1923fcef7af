"""Bytes in and out: fixed integers, varints, strings, caps and `mix` (SPEC §1)."""

from __future__ import annotations

import numpy as np

MASK64 = 2**64 - 1

TENSOR_ELEMENTS_CAP = 2**48
RANK_CAP = 16
SCHEMA_TENSORS_CAP = 2**24
FILES_CAP = 2**20
STRING_CAP = 4096
MESSAGE_CAP = 2**20
HEADER_CAP = 100_000_000
PARENTS_CAP = 64
SIGNATURES_CAP = 64
METADATA_CAP = 4096
PIECE_ELEMENTS = 2**22
SET_MEMBERS_CAP = 2**20
SET_VIRTUAL_CAP = 2**26
SET_CHANGES_CAP = 2**23


class FormatError(ValueError):
    """Bytes or values that SPEC.md refuses. The message says which rule they break."""


def require(holds: bool, message: str) -> None:
    """Raise FormatError with `message` unless the rule holds."""
    if not holds:
        raise FormatError(message)


class ByteReader:
    """Reads fields one after the other; every length is checked before anything is taken."""

    def __init__(self, data: bytes):
        self._data = bytes(data)
        self.position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self.position

    def take(self, length: int, what: str) -> bytes:
        require(length <= self.left, f"{what}: {length} bytes expected, {self.left} left")
        start = self.position
        self.position += length
        return self._data[start : self.position]

    def unsigned(self, width: int, what: str) -> int:
        return int.from_bytes(self.take(width, what), "little")

    def u8(self, what: str) -> int:
        return self.unsigned(1, what)

    def i64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little", signed=True)

    def varint(self, what: str) -> int:
        """Unsigned LEB128 in its shortest form, below 2^64."""
        value = 0
        for k in range(10):
            byte = self.u8(what)
            value |= (byte & 0x7F) << (7 * k)
            if byte < 0x80:
                require(byte != 0 or k == 0, f"{what}: varint is not in its shortest form")
                require(value <= MASK64, f"{what}: varint does not fit 64 bits")
                return value
        raise FormatError(f"{what}: varint is longer than 10 bytes")

    def count(self, what: str, cap: int, least_bytes: int) -> int:
        """A varint count of things that take at least `least_bytes` each."""
        value = self.varint(what)
        require(value <= cap, f"{what}: {value} is above the cap of {cap}")
        require(value * least_bytes <= self.left, f"{what}: {value} do not fit the {self.left} bytes left")
        return value

    def string(self, what: str, cap: int = STRING_CAP) -> str:
        data = self.take(self.count(f"length of {what}", cap, 1), what)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(f"{what}: not UTF-8 ({error.reason})") from error

    def version(self, what: str) -> None:
        """The version byte of a format or object; only version 1 exists."""
        version = self.u8(f"version of {what}")
        require(version == 1, f"{what} has version {version}; supported: 1")

    def end(self, what: str) -> None:
        require(self.left == 0, f"{what}: {self.left} trailing bytes")


def varint(value: int) -> bytes:
    require(0 <= value <= MASK64, f"{value} does not fit a varint")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string(text: str) -> bytes:
    data = text.encode("utf-8")
    return varint(len(data)) + data


def fixed(value: int, width: int, signed: bool = False) -> bytes:
    """A little-endian integer of `width` bytes."""
    try:
        return value.to_bytes(width, "little", signed=signed)
    except OverflowError as error:
        raise FormatError(f"{value} does not fit {width} bytes") from error


def mix(z: int) -> int:
    """The splitmix64 finaliser of one integer, mod 2^64."""
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK64
    return z ^ z >> 31


def mix_array(z: np.ndarray) -> np.ndarray:
    """`mix` of every element of a uint64 array."""
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)
