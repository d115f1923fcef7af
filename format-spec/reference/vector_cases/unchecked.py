"""Builders of bytes that check nothing, for vectors that no encoder would write."""

from __future__ import annotations

from deltaic_reference.base import MAGIC as BASE_MAGIC
from deltaic_reference.patch_set import MAGIC as PATCH_SET_MAGIC
from deltaic_reference.primitives import fixed, varint


def patch_set(
    *,
    magic: bytes = PATCH_SET_MAGIC,
    version: int = 1,
    coding: int = 1,
    element_class: int = 8,
    b: int = 16,
    layout: int = 0,
    defaults: int = 0,
    runs: bytes = varint(1) + varint(10) + varint(1),
    directory: bytes | None = None,
    payload: bytes = b"",
    count: int = 1,
) -> bytes:
    """A patch set; without a directory, one whose only block has `count` changes and `payload`."""
    if directory is None:
        directory = varint(1) + varint(count) + varint(len(payload))
    header = magic + bytes([version, coding, element_class, b, layout]) + fixed(defaults, 3)
    return header + runs + directory + payload


def base(
    *,
    magic: bytes = BASE_MAGIC,
    version: int = 1,
    element_class: int = 1,
    b: int = 18,
    elements: int = 4,
    blocks: bytes = b"",
    directory: bytes = b"",
    directory_length: int | None = None,
) -> bytes:
    if directory_length is None:
        directory_length = len(directory)
    header = magic + bytes([version, element_class, b]) + fixed(elements, 8)
    return header + blocks + directory + fixed(directory_length, 4)


def parameters(positions: int = 0, g: int = 0, values: int = 0, e: int = 0, m: int = 0) -> int:
    """The 20 bits, with fields that may be out of range."""
    return positions | g << 2 | values << 7 | e << 9 | m << 14
