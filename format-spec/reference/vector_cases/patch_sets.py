"""patch-sets.json: patch sets in every coding."""

from __future__ import annotations

from itertools import product

import zstandard

from deltaic_reference.bits import BitWriter
from deltaic_reference.block import Parameters, Positions, Values
from deltaic_reference.classes import CLASS_NAMED, ElementClass
from deltaic_reference.patch import Changes
from deltaic_reference.patch_set import Member, PatchSet, decode, encode

from .stream import Source
from .unchecked import parameters, patch_set

_CLASSES_BY_WIDTH = [
    ["F8_E4M3", "I8", "U8"],
    ["BF16", "F16", "I16", "U16"],
    ["F32", "U32", "I32"],
    ["F64", "I64", "U64"],
]
_LOGS = (16, 17, 18)


def _case(name: str, data: bytes) -> dict:
    held = decode(data)
    members = [
        {"elements": m.elements, "changes": [[index, str(shift)] for index, shift in m.changes.pairs()]}
        for m in held.members
    ]
    return {"name": name, "class": held.element_class.number, "b": held.b, "members": members, "hex": data.hex()}


def _member(elements: int, *pairs: tuple[int, int]) -> Member:
    return Member(elements, Changes.of(list(pairs)))


def _encoded(
    name: str,
    class_name: str,
    b: int,
    members: list[Member],
    defaults: Parameters = Parameters(g=8),
    own: dict[int, Parameters] | None = None,
) -> dict:
    return _case(name, encode(PatchSet(CLASS_NAMED[class_name], b, members), defaults, own))


def _random_shift(source: Source, element_class: ElementClass) -> int:
    """Mostly ±1, as after a training step, with some larger ones."""
    return source.shift(element_class, (1, 1, 1, 3, 12, 64)[source.below(6)])


def _every_coding() -> list[dict]:
    out = []
    combinations = product(range(4), Positions, Values, (False, True))
    for k, (width, positions, values, own) in enumerate(combinations):
        class_name = _CLASSES_BY_WIDTH[width][k % len(_CLASSES_BY_WIDTH[width])]
        element_class, source = CLASS_NAMED[class_name], Source(700 + k)
        members = []
        for elements in (17, 1, 12):
            count = elements if positions == Positions.FULL else elements // 4
            shifts = [_random_shift(source, element_class) for _ in range(count)]
            members.append(_member(elements, *zip(source.sample(elements, count), shifts)))
        # As defaults, fields that the codings do not use may hold anything within range.
        chosen = Parameters(positions, 1 + k % 4, values, k % 3, k % 5)
        name = f"{positions.name}, {values.name}, {'own' if own else 'default'} parameters".lower()
        if own:
            out.append(_encoded(name, class_name, _LOGS[k % 3], members, Parameters(), {0: chosen}))
        else:
            out.append(_encoded(name, class_name, _LOGS[k % 3], members, chosen))
    return out


def _extreme_values() -> list[dict]:
    out = []
    for class_name, values in product(("U8", "BF16", "I32", "F64"), Values):
        element_class = CLASS_NAMED[class_name]
        least, most = element_class.smallest_shift, element_class.largest_shift
        member = _member(9, (0, least), (1, most), (2, -1), (3, 1), (4, 2), (5, -2), (7, most - 1), (8, least + 1))
        for m in (0, 62):
            name = f"extreme shifts, {values.name.lower()}, m = {m}"
            out.append(_encoded(name, class_name, 16, [member], Parameters(g=0, values=values, m=m)))
    return out


def _layouts() -> list[dict]:
    ends = [(0, 1), (65_535, -1)]
    far = [(0, 1), (9 * 65_536 + 77, -1), (9 * 65_536 + 78, 2), (2**22 - 1, -3)]
    seven = [(65_536 + k, 1 - 2 * (k % 2)) for k in range(7)]
    out = [
        _encoded("no members", "BF16", 16, []),
        _encoded("one member, no changes", "F32", 17, [_member(1000)]),
        _encoded("many blocks, no changes", "U8", 18, [_member(2**22), _member(2**22), _member(5)]),
        _encoded("blocks absent", "BF16", 16, [_member(2**22, *far)], Parameters(g=10)),
        _encoded("every block present, so no bitmap", "BF16", 16, [_member(131_072, *ends, (65_536, 5))]),
        _encoded("a full last block", "BF16", 16, [_member(65_543, *seven)], Parameters(Positions.FULL)),
        _encoded("a last block of one index", "I8", 16, [_member(65_537, (65_536, -9))]),
        _encoded("the longest virtual index", "F16", 18, [_member(2**22)] * 15 + [_member(2**22, (2**22 - 1, 4))]),
    ]
    for b in _LOGS:
        length = 1 << b
        members = [
            _member(10, (0, 1), (9, -1)),
            _member(length, (0, 2), (length - 1, -2)),
            _member(length - 1, (0, 3), (length - 2, -3)),
            _member(length + 5, (0, 4), (length - 1, 1), (length, 1), (length + 4, -4)),
            _member(3, (1, 5)),
            _member(length, (0, 6)),
            _member(length, (0, -6)),
        ]
        out.append(_encoded(f"members that force padding, b = {b}", "BF16", b, members, Parameters(g=b - 4)))
    return out


def _many_members() -> list[dict]:
    source = Source(790)
    bf16 = CLASS_NAMED["BF16"]
    members = []
    for k in range(1200):
        elements = (576, 4096, 1)[k // 60 % 3]
        count = 1 if k % 7 == 0 else 0
        members.append(_member(elements, *((source.below(elements), source.shift(bf16, 2)) for _ in range(count))))
    return [_encoded("many members", "BF16", 18, members, Parameters(g=12))]


def _mixed_blocks() -> list[dict]:
    source = Source(791)
    f32 = CLASS_NAMED["F32"]
    places = source.sample(6 * 65_536, 60)
    member = _member(6 * 65_536, *((index, _random_shift(source, f32)) for index in places))
    own = {
        1: Parameters(g=9, values=Values.MAGNITUDES, m=3),
        2: Parameters(g=11, values=Values.PLANES),
        4: Parameters(g=18, values=Values.EXCEPTIONS, e=18, m=62),
    }
    flat = [_member(40, *((k, (-1) ** k) for k in range(0, 40, 2)))]
    large = [_member(40, *((k, 100 + k) for k in range(0, 40, 2)))]
    return [
        _encoded("defaults and own parameters mixed", "F32", 16, [member], Parameters(g=12, e=1, m=4), own),
        _encoded("no exceptions", "BF16", 16, flat, Parameters(g=1)),
        _encoded("only exceptions", "BF16", 16, large, Parameters(g=1, m=6)),
        _encoded("long unary codes", "BF16", 16, [_member(3000, (2900, 700))], Parameters(g=0, e=0, m=0)),
        _encoded("largest Rice parameters", "BF16", 18, [_member(2**18, (2**18 - 1, 1))], Parameters(g=18, e=18)),
    ]


def _other_frames() -> list[dict]:
    """Planes in frames that another encoder may write: any one frame that holds the bytes will do."""
    planes = bytes([2, 1, 4]) + bytes(6)
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=False, write_checksum=True)
    start = BitWriter().field(0, 1).rice(2, 1).rice(0, 1).rice(1, 1)
    payload = start.finish() + compressor.compress(planes)
    data = patch_set(defaults=parameters(g=1, values=2), count=3, payload=payload)
    return [_case("planes in a frame without content size, with checksum", data)]


def cases() -> list[dict]:
    return [
        *_every_coding(),
        *_extreme_values(),
        *_layouts(),
        *_many_members(),
        *_mixed_blocks(),
        *_other_frames(),
    ]
