"""Patch sets: the changes of many tensors' pieces in one file (SPEC §6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from . import block
from .block import Parameters
from .classes import ElementClass, class_number
from .patch import Changes
from .primitives import (
    PIECE_ELEMENTS,
    SET_CHANGES_CAP,
    SET_MEMBERS_CAP,
    SET_VIRTUAL_CAP,
    ByteReader,
    fixed,
    require,
    varint,
)

MAGIC = b"\x89DPS\r\n\x1a\n"
BLOCK_LOGS = (16, 17, 18)
_PLAIN = 1
_FLAT = 0


@dataclass(frozen=True)
class Member:
    """One piece of a tensor: its element count and its changes, indexes counted from the piece's first."""

    elements: int
    changes: Changes


@dataclass(frozen=True)
class PatchSet:
    """The members of a patch set, with the block length 2^b they are coded in."""

    element_class: ElementClass
    b: int
    members: list[Member]


@dataclass(frozen=True)
class VirtualIndex:
    """Where each member begins in the virtual index space, and how long that is."""

    starts: np.ndarray
    elements: np.ndarray
    length: int
    b: int

    @property
    def blocks(self) -> int:
        return -(-self.length >> self.b)

    def block_length(self, number: int) -> int:
        return min(1 << self.b, self.length - (number << self.b))

    @staticmethod
    def of(elements: list[int], b: int) -> VirtualIndex:
        block_length = 1 << b
        starts = []
        cursor = 0
        for count in elements:
            if count >= block_length:
                cursor = -(-cursor // block_length) * block_length
            starts.append(cursor)
            cursor += count
        require(cursor <= SET_VIRTUAL_CAP, f"virtual length {cursor} is above the cap of {SET_VIRTUAL_CAP}")
        return VirtualIndex(np.array(starts, np.int64), np.array(elements, np.int64), cursor, b)


@dataclass(frozen=True)
class CodedBlock:
    """A block that has changes, as the directory lists it."""

    number: int
    count: int
    payload: bytes


@dataclass(frozen=True)
class CodedSet:
    """A patch set with its blocks still coded."""

    element_class: ElementClass
    defaults: Parameters
    virtual: VirtualIndex
    blocks: list[CodedBlock]

    def decode_block(self, coded: CodedBlock) -> tuple[Parameters, Changes]:
        length = self.virtual.block_length(coded.number)
        return block.decode(coded.payload, self.element_class, length, coded.count, self.defaults)


def parse(data: bytes) -> CodedSet:
    """Read everything but the block payloads."""
    reader = ByteReader(data)
    require(reader.take(8, "magic") == MAGIC, "not a patch set: the magic differs")
    reader.version("patch set")
    coding = reader.u8("coding")
    require(coding == _PLAIN, f"patch set has coding {coding}; supported: 1 (plain)")
    element_class = class_number(reader.u8("element class"))
    b = reader.u8("b")
    require(b in BLOCK_LOGS, f"b = {b}; supported: 16, 17, 18")
    layout = reader.u8("layout")
    require(layout == _FLAT, f"patch set has layout {layout}; supported: 0 (flat)")
    defaults = Parameters.from_bits(reader.unsigned(3, "default parameters"), "default parameters")
    virtual = VirtualIndex.of(_read_member_elements(reader), b)
    directory = _read_directory(reader, virtual)
    blocks = [CodedBlock(number, count, reader.take(size, "payload")) for number, count, size in directory]
    reader.end("patch set")
    return CodedSet(element_class, defaults, virtual, blocks)


def _read_member_elements(reader: ByteReader) -> list[int]:
    members: list[int] = []
    for _ in range(reader.count("number of member runs", SET_MEMBERS_CAP, 2)):
        elements = reader.varint("elements of a member")
        require(1 <= elements <= PIECE_ELEMENTS, f"a member has {elements} elements; 1 to 2^22 are allowed")
        require(not members or members[-1] != elements, "neighbouring member runs have equal elements")
        repeat = reader.varint("repeat of a member run")
        require(repeat >= 1, "a member run has repeat 0")
        require(len(members) + repeat <= SET_MEMBERS_CAP, f"more than {SET_MEMBERS_CAP} members")
        members += [elements] * repeat
    return members


def _read_directory(reader: ByteReader, virtual: VirtualIndex) -> list[tuple[int, int, int]]:
    """(block number, changes, payload bytes) of each block that has changes."""
    present = reader.count("number of blocks with changes", virtual.blocks, 2)
    numbers = list(range(present))
    if 0 < present < virtual.blocks:
        bitmap = np.frombuffer(reader.take(-(-virtual.blocks // 8), "block bitmap"), np.uint8)
        numbers = np.flatnonzero(np.unpackbits(bitmap, bitorder="little")).tolist()
        require(len(numbers) == present, f"block bitmap has {len(numbers)} ones instead of {present}")
        require(numbers[-1] < virtual.blocks, "block bitmap has a one past the last block")
    directory = []
    for number in numbers:
        count = reader.varint("changes of a block")
        length = virtual.block_length(number)
        require(1 <= count <= length, f"block {number} of length {length} has {count} changes")
        directory.append((number, count, reader.varint("payload length")))
    changes = sum(count for _, count, _ in directory)
    require(changes <= SET_CHANGES_CAP, f"{changes} changes are above the cap of {SET_CHANGES_CAP}")
    return directory


def decode(data: bytes) -> PatchSet:
    """Read a patch set, refusing everything that SPEC §6 does not allow."""
    coded_set = parse(data)
    virtual = coded_set.virtual
    decoded = [(coded, coded_set.decode_block(coded)[1]) for coded in coded_set.blocks]
    indexes = [changes.index + (coded.number << virtual.b) for coded, changes in decoded]
    index = np.concatenate([np.empty(0, np.int64), *indexes])
    shift = np.concatenate([np.empty(0, np.int64), *(changes.shift for _, changes in decoded)])
    ends = virtual.starts + virtual.elements
    if len(index):
        member = np.searchsorted(virtual.starts, index, side="right") - 1
        require(bool((index < ends[member]).all()), "a change lies in padding between members")
    first = np.searchsorted(index, virtual.starts)
    last = np.searchsorted(index, ends)
    members = [
        Member(elements, Changes(index[a:z] - start, shift[a:z]))
        for elements, start, a, z in zip(
            virtual.elements.tolist(), virtual.starts.tolist(), first.tolist(), last.tolist()
        )
    ]
    return PatchSet(coded_set.element_class, virtual.b, members)


def encode(
    patch_set: PatchSet,
    defaults: Parameters = Parameters(g=8),
    own: Mapping[int, Parameters] | None = None,
    zstd_level: int = 3,
) -> bytes:
    """Write a patch set; `own` gives own parameters to blocks by number, the others use `defaults`."""
    element_class, members = patch_set.element_class, patch_set.members
    own = own or {}
    for member in members:
        member.changes.check(element_class, member.elements)
    virtual = VirtualIndex.of([member.elements for member in members], patch_set.b)
    starts = virtual.starts.tolist()
    index = np.concatenate([np.empty(0, np.int64), *(m.changes.index + s for m, s in zip(members, starts))])
    shift = np.concatenate([np.empty(0, np.int64), *(m.changes.shift for m in members)])
    blocks = []
    for number in np.unique(index >> virtual.b).tolist():
        inside = slice(*np.searchsorted(index, [number << virtual.b, number + 1 << virtual.b]))
        changes = Changes(index[inside] - (number << virtual.b), shift[inside])
        parameters = own.get(number, defaults)
        length = virtual.block_length(number)
        payload = block.encode(changes, element_class, length, parameters, number in own, zstd_level)
        blocks.append(CodedBlock(number, len(changes), payload))
    header = MAGIC + bytes([1, _PLAIN, element_class.number, virtual.b, _FLAT]) + fixed(defaults.as_bits(), 3)
    data = b"".join(
        [header, _member_runs(virtual), _directory(blocks, virtual.blocks), *(coded.payload for coded in blocks)]
    )
    parse(data)
    return data


def _member_runs(virtual: VirtualIndex) -> bytes:
    runs = [(elements, len(list(same))) for elements, same in groupby(virtual.elements.tolist())]
    return varint(len(runs)) + b"".join(varint(elements) + varint(repeat) for elements, repeat in runs)


def _directory(blocks: list[CodedBlock], block_count: int) -> bytes:
    out = varint(len(blocks))
    if 0 < len(blocks) < block_count:
        flags = np.zeros(block_count, np.uint8)
        flags[[coded.number for coded in blocks]] = 1
        out += np.packbits(flags, bitorder="little").tobytes()
    return out + b"".join(varint(coded.count) + varint(len(coded.payload)) for coded in blocks)
