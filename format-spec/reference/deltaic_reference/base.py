"""Bases: the whole content of a tensor or file, in byte planes (SPEC §7)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from . import zstd_frame
from .classes import ElementClass, class_number
from .primitives import TENSOR_ELEMENTS_CAP, ByteReader, fixed, require, varint

MAGIC = b"\x89DBS\r\n\x1a\n"
B = 18
_BLOCK_ELEMENTS = 1 << B
_HEADER_BYTES = 19
_RAW = 0
_ZSTD = 1


@dataclass(frozen=True)
class CodedPlane:
    """One byte plane of one block, as stored."""

    coding: int
    data: bytes

    def decode(self, length: int) -> bytes:
        return self.data if self.coding == _RAW else zstd_frame.decompress(self.data, length, "plane")


@dataclass(frozen=True)
class CodedBase:
    """A base with its planes still coded: for each block, one plane per byte of a word."""

    element_class: ElementClass
    elements: int
    blocks: list[list[CodedPlane]]


def _block_lengths(elements: int) -> list[int]:
    return [min(_BLOCK_ELEMENTS, elements - start) for start in range(0, elements, _BLOCK_ELEMENTS)]


def parse(data: bytes) -> CodedBase:
    """Read header and directory and cut the planes out."""
    reader = ByteReader(data)
    require(reader.take(8, "magic") == MAGIC, "not a base: the magic differs")
    reader.version("base")
    element_class = class_number(reader.u8("element class"))
    b = reader.u8("b")
    require(b == B, f"b = {b}; supported: {B}")
    elements = reader.unsigned(8, "elements")
    require(elements <= TENSOR_ELEMENTS_CAP, f"{elements} elements are above the cap of 2^48")
    require(reader.left >= 4, "base: the directory's length is missing")
    directory_bytes = int.from_bytes(data[-4:], "little")
    require(directory_bytes <= reader.left - 4, "directory is longer than the base")
    directory_start = len(data) - 4 - directory_bytes
    directory = ByteReader(data[directory_start:-4])
    plane_count = -(-elements // _BLOCK_ELEMENTS) * element_class.width
    require(plane_count <= directory_bytes, f"directory of {directory_bytes} bytes for {plane_count} planes")
    planes = ByteReader(data[_HEADER_BYTES:directory_start])
    blocks = [
        [_read_plane(directory, planes, length) for _ in range(element_class.width)]
        for length in _block_lengths(elements)
    ]
    directory.end("directory")
    planes.end("blocks")
    return CodedBase(element_class, elements, blocks)


def _read_plane(directory: ByteReader, planes: ByteReader, block_length: int) -> CodedPlane:
    size, coding = divmod(directory.varint("directory entry"), 2)
    if coding == _RAW:
        require(size == block_length, f"raw plane of {size} bytes in a block of {block_length} elements")
    else:
        require(size < block_length, f"zstd plane of {size} bytes is not smaller than {block_length} raw ones")
    return CodedPlane(coding, planes.take(size, "plane"))


def decode_blocks(coded: CodedBase) -> Iterator[bytes]:
    """The content, block by block."""
    width = coded.element_class.width
    for planes, length in zip(coded.blocks, _block_lengths(coded.elements)):
        content = np.empty((length, width), np.uint8)
        for k, plane in enumerate(planes):
            content[:, k] = np.frombuffer(plane.decode(length), np.uint8)
        words = content.reshape(-1).view(f"<u{width}")
        yield (_rotated(words, 8 * width - 1) if _is_rotated(coded.element_class) else words).tobytes()


def decode(data: bytes) -> tuple[ElementClass, bytes]:
    """The element class and the content of a base."""
    coded = parse(data)
    return coded.element_class, b"".join(decode_blocks(coded))


def encode(element_class: ElementClass, content: bytes, zstd_level: int = 3) -> bytes:
    """Write a base; each plane is compressed where that is smaller."""
    words = element_class.words(content)
    blocks, directory = [], []
    for start in range(0, len(words), _BLOCK_ELEMENTS):
        block = words[start : start + _BLOCK_ELEMENTS]
        if _is_rotated(element_class):
            block = _rotated(block, 1)
        for plane in block.view(np.uint8).reshape(-1, element_class.width).T:
            raw = plane.tobytes()
            frame = zstd_frame.compress(raw, zstd_level)
            coding, stored = (_ZSTD, frame) if len(frame) < len(raw) else (_RAW, raw)
            blocks.append(stored)
            directory.append(varint(2 * len(stored) + coding))
    header = MAGIC + bytes([1, element_class.number, B]) + fixed(len(words), 8)
    directory_bytes = b"".join(directory)
    return b"".join([header, *blocks, directory_bytes, fixed(len(directory_bytes), 4)])


def _is_rotated(element_class: ElementClass) -> bool:
    return element_class.order == "float" and element_class.width > 1


def _rotated(words: np.ndarray, bits: int) -> np.ndarray:
    """Words rotated left by `bits`."""
    word = words.dtype.type
    return words << word(bits) | words >> word(8 * words.itemsize - bits)
