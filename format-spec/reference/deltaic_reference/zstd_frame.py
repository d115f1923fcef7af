"""Exactly one zstd frame whose content length is known beforehand (SPEC §6, §7)."""

from __future__ import annotations

import zstandard

from .primitives import FormatError, require

# A zstd block is at least 4 bytes and at most 128 KiB of content, so one step makes at most 32 MiB.
_STEP = 1024


def compress(content: bytes, level: int = 3) -> bytes:
    return zstandard.ZstdCompressor(level=level).compress(content)


def decompress(frame: bytes, length: int, what: str) -> bytes:
    """The content of `frame`, which must be one frame, to its last byte, and hold `length` bytes."""
    decoder = zstandard.ZstdDecompressor().decompressobj()
    content = bytearray()
    position = 0
    while not decoder.eof and position < len(frame):
        step = frame[position : position + _STEP]
        position += len(step)
        try:
            content += decoder.decompress(step)
        except zstandard.ZstdError as error:
            raise FormatError(f"{what}: not a zstd frame ({error})") from error
        require(len(content) <= length, f"{what}: zstd frame holds more than {length} bytes")
    require(decoder.eof, f"{what}: zstd frame has no end")
    trailing = len(decoder.unused_data) + len(frame) - position
    require(trailing == 0, f"{what}: {trailing} bytes after the zstd frame")
    require(len(content) == length, f"{what}: zstd frame holds {len(content)} bytes instead of {length}")
    return bytes(content)
