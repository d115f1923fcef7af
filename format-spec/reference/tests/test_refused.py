"""Damaged bytes are refused, and with nothing but FormatError."""

from __future__ import annotations

import pytest

from deltaic_reference import FormatError
from vector_files import cases, encoded_cases, label, reader_of, writer_of

SMALL = [case for case in encoded_cases() if len(case["hex"]) <= 2 * 2048]


@pytest.mark.parametrize("case", cases("refused.json"), ids=label)
def test_refused(case):
    with pytest.raises(FormatError):
        reader_of(case)(bytes.fromhex(case["hex"]))


@pytest.mark.parametrize("case", SMALL, ids=label)
def test_every_truncation_is_refused(case):
    data, read = bytes.fromhex(case["hex"]), reader_of(case)
    for length in range(len(data)):
        with pytest.raises(FormatError):
            read(data[:length])


@pytest.mark.parametrize("case", SMALL, ids=label)
def test_a_trailing_byte_is_refused(case):
    data, read = bytes.fromhex(case["hex"]), reader_of(case)
    for byte in (b"\x00", b"\xff"):
        with pytest.raises(FormatError):
            read(data + byte)


@pytest.mark.parametrize("case", SMALL, ids=label)
def test_a_flipped_bit_is_refused_or_read(case):
    data, read = bytes.fromhex(case["hex"]), reader_of(case)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        try:
            held = read(bytes(damaged))
        except FormatError:
            continue
        if case["kind"] in {"schema", "tree", "commit", "ref"}:
            assert writer_of(case)(held) == damaged, "an object has only one form"
