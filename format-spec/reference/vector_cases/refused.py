"""refused.json: bytes that a reader refuses, one case per kind of damage."""

from __future__ import annotations

from collections.abc import Iterator

from deltaic_reference import objects, zstd_frame
from deltaic_reference.base import MAGIC as BASE_MAGIC
from deltaic_reference.bits import BitWriter
from deltaic_reference.ids import content_id
from deltaic_reference.patch_set import MAGIC as PATCH_SET_MAGIC
from deltaic_reference.primitives import fixed, string, varint

from . import unchecked
from .objects import MINIMAL_SCHEMA, TYPICAL_RECORD, TYPICAL_SCHEMA, TYPICAL_TREE, sign
from .unchecked import base, parameters, patch_set

Damaged = Iterator[tuple[bytes, str]]

_GAPS, _BITMAP, _FULL = 0, 1, 2
_EXCEPTIONS, _MAGNITUDES, _PLANES = 0, 1, 2
_ID = content_id(b"any")
# The skippable frame of four bytes "skip".
_SKIPPABLE = bytes.fromhex("502a4d1804000000") + b"skip"


def cases() -> list[dict]:
    parts = {
        "varint": [_varints()],
        "patch-set": [_headers(), _members(), _directories(), _positions(), _values(), _planes()],
        "base": [_bases()],
        "schema": [_schemas()],
        "commit": [_commits()],
        "ref": [_refs(), _names()],
    }
    out = [
        {"kind": kind, "hex": data.hex(), "why": why}
        for kind, sources in parts.items()
        for source in sources
        for data, why in source
    ]
    schema_hex = {"schema_hex": objects.encode_schema(TYPICAL_SCHEMA).hex()}
    out += [{"kind": "tree", **schema_hex, "hex": data.hex(), "why": why} for data, why in _trees()]
    return out


def _varints() -> Damaged:
    yield b"", "nothing"
    yield b"\x80", "ends in the middle"
    yield b"\x80\x00", "zero in two bytes"
    yield b"\xff\x00", "127 in two bytes"
    yield b"\x80" * 9 + b"\x00", "zero in ten bytes"
    yield b"\xff" * 9 + b"\x02", "a value of 65 bits"
    yield b"\xff" * 9 + b"\x7f", "a value of 70 bits"
    yield b"\x80" * 10 + b"\x01", "eleven bytes"


def _one_change() -> BitWriter:
    """Index 3 of a block in gaps with g = 0, up to its end."""
    return BitWriter().field(0, 1).rice(3, 0)


def _plus_one() -> bytes:
    """The payload of one change by +1 at index 3, as exceptions."""
    return _one_change().field(0, 1).exp_golomb(0, 3).finish()


def _headers() -> Damaged:
    good = {"payload": _plus_one()}
    yield patch_set(magic=b"\x89DPS\n\x1a\n\x00", **good), "bad magic: line ends converted"
    yield patch_set(magic=BASE_MAGIC, **good), "the magic of a base"
    yield patch_set(version=0, **good), "format version 0"
    yield patch_set(version=2, **good), "format version 2"
    yield patch_set(coding=0, **good), "coding 0"
    yield patch_set(coding=2, **good), "coding 2, tight, is reserved"
    yield patch_set(coding=3, **good), "coding 3"
    yield patch_set(element_class=0, **good), "element class 0"
    yield patch_set(element_class=17, **good), "element class 17"
    yield patch_set(b=15, **good), "b = 15"
    yield patch_set(b=19, **good), "b = 19"
    yield patch_set(layout=1, **good), "layout 1 is reserved"
    yield patch_set(defaults=1 << 20, **good), "an upper bit of the default parameters is set"
    yield patch_set(defaults=parameters(positions=3), **good), "default position coding 3"
    yield patch_set(defaults=parameters(values=3), **good), "default value coding 3"
    yield patch_set(defaults=parameters(positions=_FULL, g=19), **good), "default g = 19, even where not used"
    yield patch_set(defaults=parameters(e=19), **good), "default e = 19"
    yield patch_set(defaults=parameters(m=63), **good), "default m = 63"
    yield patch_set(**good)[:10], "ends within the header"


def _members() -> Damaged:
    empty = varint(0)

    def runs(*pairs: tuple[int, int]) -> bytes:
        return varint(len(pairs)) + b"".join(varint(elements) + varint(repeat) for elements, repeat in pairs)

    yield patch_set(runs=b"\x81\x00" + varint(10) + varint(1), directory=empty), "overlong varint for R"
    yield patch_set(runs=varint(2**20 + 1), directory=empty), "more runs than members are allowed"
    yield patch_set(runs=varint(2**20) + varint(1) * 2, directory=b""), "a number of runs that no bytes follow"
    yield patch_set(runs=varint(2**63), directory=b""), "a huge number of runs"
    yield patch_set(runs=runs((0, 1)), directory=empty), "a member of 0 elements"
    yield patch_set(runs=runs((2**22 + 1, 1)), directory=empty), "a member of more than 2^22 elements"
    yield patch_set(runs=runs((2**64 - 1, 1)), directory=empty), "a member of 2^64 - 1 elements"
    yield patch_set(runs=runs((10, 0)), directory=empty), "repeat 0"
    yield patch_set(runs=runs((10, 2), (10, 3)), directory=empty), "neighbouring runs of equal elements"
    yield patch_set(runs=runs((1, 2**20 + 1)), directory=empty), "more than 2^20 members in one run"
    yield patch_set(runs=runs((1, 2**20), (2, 1)), directory=empty), "more than 2^20 members in two runs"
    yield patch_set(runs=runs((1, 2**64 - 1)), directory=empty), "a repeat of 2^64 - 1"
    yield patch_set(runs=runs((2**22, 16), (1, 1)), directory=empty), "a virtual length above 2^26"
    yield patch_set(runs=runs((2**16 + 1, 513)), directory=empty), "a virtual length above 2^26 through padding"


def _directories() -> Damaged:
    payload = _plus_one()
    size = varint(len(payload))
    three_blocks = varint(1) + varint(3 * 65_536) + varint(1)
    entry = varint(1) + size

    yield patch_set(directory=varint(2) + 2 * entry, payload=2 * payload), "more blocks with changes than blocks"
    yield patch_set(runs=varint(0), directory=varint(1) + entry, payload=payload), "a block with changes, no members"
    yield patch_set(directory=b"\x81\x00" + entry, payload=payload), "overlong varint for P"
    yield patch_set(directory=varint(2**62), payload=payload), "a huge P"
    for bitmap, why in [(0b110, "bitmap with more ones than P"), (0, "bitmap with fewer ones than P")]:
        directory = varint(1) + bytes([bitmap]) + entry
        yield patch_set(runs=three_blocks, directory=directory, payload=payload), why
    directory = varint(1) + bytes([0b1000]) + entry
    yield patch_set(runs=three_blocks, directory=directory, payload=payload), "bitmap with its one past the last block"
    directory = varint(1) + bytes([0b1010]) + entry
    yield patch_set(runs=three_blocks, directory=directory, payload=payload), "bitmap with a bit past the last block"
    directory = varint(3) + bytes([0b111]) + 3 * entry
    yield patch_set(runs=three_blocks, directory=directory, payload=3 * payload), "a bitmap though P = B"
    yield patch_set(directory=varint(1) + varint(0) + size, payload=payload), "a block of 0 changes"
    yield patch_set(directory=varint(1) + varint(11) + size, payload=payload), "more changes than the block is long"
    yield patch_set(directory=varint(1) + varint(2**40) + size, payload=payload), "a huge number of changes"
    directory = varint(1) + varint(1) + varint(len(payload) + 1)
    yield patch_set(directory=directory, payload=payload), "a payload longer than the bytes left"
    directory = varint(1) + varint(1) + varint(2**64 - 1)
    yield patch_set(directory=directory, payload=payload), "a payload length of 2^64 - 1"
    two_blocks = varint(1) + varint(2 * 65_536) + varint(1)
    directory = varint(2) + entry + varint(1) + varint(2**64 - 1)
    yield patch_set(runs=two_blocks, directory=directory, payload=2 * payload), "payload lengths whose sum wraps"
    directory = varint(1) + varint(1) + varint(0)
    yield patch_set(directory=directory, payload=b""), "an empty payload"
    yield patch_set(payload=payload) + b"\x00", "a trailing byte after the payloads"
    yield patch_set(directory=varint(0), payload=b"\x00"), "a trailing byte though no block has changes"
    yield patch_set(payload=payload)[:-1], "ends within a payload"
    yield patch_set(payload=payload + b"\x00"), "a payload with a zero byte behind its bit stream"
    whole_block_too_long = varint(1) + varint(65_537) + varint(1)
    directory = varint(1) + bytes([0b10]) + varint(2) + size
    yield patch_set(runs=whole_block_too_long, directory=directory, payload=payload), "two changes in a block of one"


def _own(positions: int = 0, g: int = 0, values: int = 0, e: int = 0, m: int = 0) -> BitWriter:
    return BitWriter().field(1, 1).field(unchecked.parameters(positions, g, values, e, m), 20)


def _positions() -> Damaged:
    def plus_ones(bits: BitWriter, count: int) -> bytes:
        return bits.field(0, count).exp_golomb(0, 3).finish()

    spare = _plus_one()[:-1] + bytes([_plus_one()[-1] | 0x80])
    yield patch_set(payload=spare), "an unused bit of the last payload byte is set"
    yield patch_set(payload=plus_ones(_own(positions=3), 1)), "own position coding 3"
    yield patch_set(payload=plus_ones(_own(values=3).rice(3, 0), 1)), "own value coding 3"
    yield patch_set(payload=plus_ones(_own(g=19).rice(3, 19), 1)), "own g = 19"
    yield patch_set(payload=plus_ones(_own(e=19).rice(3, 0), 1)), "own e = 19"
    yield patch_set(payload=plus_ones(_own(m=63).rice(3, 0), 1)), "own m = 63"
    bits = _own(positions=_BITMAP, g=1).field(0b1000, 10)
    yield patch_set(payload=plus_ones(bits, 1)), "own parameters: bitmap with g other than 0"
    bits = _own(values=_MAGNITUDES, e=1).rice(3, 0).field(0, 1).exp_golomb(0, 0)
    yield patch_set(payload=bits.finish()), "own parameters: magnitudes with e other than 0"
    frame = zstd_frame.compress(bytes([2, 0, 0]))
    yield patch_set(payload=_own(values=_PLANES, m=1).rice(3, 0).finish() + frame), "own: planes with m other than 0"
    yield patch_set(payload=_own(values=_PLANES, e=1).rice(3, 0).finish() + frame), "own: planes with e other than 0"

    bits = BitWriter().field(0, 1).rice(10, 0)
    yield patch_set(payload=plus_ones(bits, 1)), "an index past the block"
    bits = BitWriter().field(0, 1).rice(9, 0).rice(0, 0)
    yield patch_set(count=2, payload=plus_ones(bits, 2)), "a second index past the block"
    bits = BitWriter().field(0, 1).rice(2**18 - 1, 16)
    yield patch_set(defaults=parameters(g=16), payload=plus_ones(bits, 1)), "a Rice quotient past the block"
    yield patch_set(payload=bytes(40)), "a Rice quotient that does not end"
    yield patch_set(payload=bytes(4000)), "a Rice quotient of many zeros"
    two_members = varint(2) + varint(10) + varint(1) + varint(65_536) + varint(1)
    directory = varint(1) + bytes([0b01]) + varint(1)
    bits = plus_ones(BitWriter().field(0, 1).rice(10, 0), 1)
    data = patch_set(runs=two_members, directory=directory + varint(len(bits)), payload=bits)
    yield data, "an index in the padding between members"
    bits = plus_ones(BitWriter().field(0, 1).rice(65_535, 15), 1)
    data = patch_set(defaults=parameters(g=15), runs=two_members, directory=directory + varint(len(bits)), payload=bits)
    yield data, "the last index of the padding between members"
    for flags, why in [(0b0, "fewer"), (0b11, "more")]:
        bits = BitWriter().field(0, 1).field(flags, 10)
        data = patch_set(defaults=parameters(positions=_BITMAP), payload=plus_ones(bits, 1))
        yield data, f"a position bitmap with {why} ones than changes"
    bits = BitWriter().field(0, 1)
    yield patch_set(defaults=parameters(positions=_FULL), count=9, payload=plus_ones(bits, 9)), "full, but not all"


def _values() -> Damaged:
    def exceptions(element_class: int, negative: int, magnitude: int, m: int = 0) -> bytes:
        bits = _one_change().field(negative, 1).exp_golomb(1, 3).rice(0, 0).exp_golomb(magnitude - 2, m)
        return patch_set(element_class=element_class, defaults=parameters(m=m), payload=bits.finish())

    def magnitudes(element_class: int, negative: int, magnitude: int, m: int = 0) -> bytes:
        bits = _one_change().field(negative, 1).exp_golomb(magnitude - 1, m)
        defaults = parameters(values=_MAGNITUDES, m=m)
        return patch_set(element_class=element_class, defaults=defaults, payload=bits.finish())

    for build, coding in [(exceptions, "exceptions"), (magnitudes, "magnitudes")]:
        yield build(1, 0, 256), f"+256 in class U8, as {coding}"
        yield build(1, 1, 256), f"-256 in class U8, as {coding}"
        yield build(8, 0, 2**16), f"+2^16 in class BF16, as {coding}"
        yield build(10, 1, 2**32), f"-2^32 in class I32, as {coding}"
        yield build(14, 0, 2**63), f"+2^63 in class F64, as {coding}"
        yield build(14, 1, 2**63 + 1), f"-(2^63 + 1) in class F64, as {coding}"
        yield build(8, 0, 2**64 - 2**62, 62), f"the greatest Exp-Golomb value of order 62, as {coding}"
    for m, zeros in [(0, 64), (3, 61), (62, 2)]:
        bits = _one_change().field(0, 1).field(0, zeros).field(1, 1).field(0, zeros + m)
        defaults = parameters(values=_MAGNITUDES, m=m)
        data = patch_set(element_class=14, defaults=defaults, payload=bits.finish() + bytes(2))
        yield data, f"an Exp-Golomb code of order {m} that overflows 64 bits"
    yield patch_set(payload=_one_change().field(0, 1).exp_golomb(2, 3).finish()), "more exceptions than changes"
    bits = _one_change().field(0, 1).exp_golomb(2**63, 3)
    yield patch_set(payload=bits.finish()), "a huge number of exceptions"
    bits = _one_change().field(0, 1).exp_golomb(1, 3).rice(1, 0).exp_golomb(0, 0)
    yield patch_set(payload=bits.finish()), "an exception past the last change"
    bits = BitWriter().field(0, 1).rice(0, 0).rice(0, 0).field(0, 2).exp_golomb(2, 3)
    bits.rice(1, 0).rice(0, 0).exp_golomb(0, 0).exp_golomb(0, 0)
    yield patch_set(count=2, payload=bits.finish()), "a second exception past the last change"


def _planes() -> Damaged:
    def planes(stored: bytes, element_class: int = 8, start: BitWriter | None = None) -> bytes:
        payload = (start or _one_change()).finish() + stored
        return patch_set(element_class=element_class, defaults=parameters(values=_PLANES), payload=payload)

    frame = zstd_frame.compress(bytes([2, 0, 0]))
    yield planes(zstd_frame.compress(bytes(3))), "planes with a shift of zero"
    yield planes(zstd_frame.compress((2 * 65_536).to_bytes(3, "little"))), "+2^16 in class BF16, as planes"
    yield planes(zstd_frame.compress((2 * 65_536 - 1).to_bytes(3, "little"))), "-2^16 in class BF16, as planes"
    yield planes(zstd_frame.compress((2 * 256).to_bytes(2, "little")), 1), "+256 in class U8, as planes"
    yield planes(zstd_frame.compress((2 * 2**32 - 1).to_bytes(5, "little")), 11), "-2^32 in class F32, as planes"
    yield planes(zstd_frame.compress(bytes([2, 0]))), "planes of too few bytes"
    yield planes(zstd_frame.compress(bytes([2, 0, 0, 0]))), "planes of too many bytes"
    yield planes(zstd_frame.compress(bytes(2**20))), "planes of far too many bytes"
    yield planes(b""), "no frame"
    yield planes(bytes([2, 0, 0])), "planes that are not in a frame"
    yield planes(frame[:-1]), "a frame cut short"
    yield planes(frame + b"\x00"), "a byte after the frame"
    yield planes(zstd_frame.compress(bytes([2])) + zstd_frame.compress(bytes(2))), "planes in two frames"
    yield planes(_SKIPPABLE + frame), "a skippable frame before the frame"
    yield planes(frame + _SKIPPABLE), "a skippable frame after the frame"
    yield planes(frame, start=_one_change().field(1, 1)), "a bit other than zero before the byte boundary"


def _bases() -> Damaged:
    raw = varint(2 * 4)
    good = {"blocks": b"abcd", "directory": raw}
    frame = zstd_frame.compress(bytes(100))
    zstd = varint(2 * len(frame) + 1)
    yield base(magic=b"\x89DBS\n\x1a\n\x00", **good), "bad magic: line ends converted"
    yield base(magic=PATCH_SET_MAGIC, **good), "the magic of a patch set"
    yield base(version=0, **good), "format version 0"
    yield base(version=2, **good), "format version 2"
    yield base(element_class=0, **good), "element class 0"
    yield base(element_class=17, **good), "element class 17"
    yield base(b=17, **good), "b = 17"
    yield base(b=19, **good), "b = 19"
    yield base(elements=2**48 + 1, **good), "more than 2^48 elements"
    yield base(elements=2**48, **good), "2^48 elements with a directory of one byte"
    yield base(elements=2**64 - 1, **good), "2^64 - 1 elements"
    yield base(elements=5, **good), "a raw plane shorter than its block"
    yield base(elements=3, **good), "a raw plane longer than its block"
    yield base(elements=0, **good), "a plane though there are no elements"
    yield base(elements=0)[:-1], "ends within the directory's length"
    yield base(elements=0, blocks=b"\x00"), "a byte between header and directory"
    yield base(directory_length=2**32 - 1, **good), "a directory longer than the base"
    yield base(directory_length=6, **good), "a directory that reaches into the header"
    yield base(blocks=b"abcd", directory=b"\x88\x00"), "overlong varint in the directory"
    yield base(blocks=b"abcd", directory=raw + b"\x00"), "a trailing byte in the directory"
    yield base(blocks=b"abcde", directory=raw), "a byte after the last plane"
    yield base(blocks=b"abc", directory=raw), "planes longer than the bytes left"
    yield base(element_class=5, **good), "a directory with a plane missing"
    yield base(elements=100, blocks=frame, directory=varint(2**64 - 1)), "a plane length of 2^63 - 1"
    yield base(elements=99, blocks=frame, directory=zstd), "a frame of more bytes than the block has elements"
    yield base(elements=101, blocks=frame, directory=zstd), "a frame of fewer bytes than the block has elements"
    yield base(elements=100, blocks=bytes(len(frame)), directory=zstd), "a plane that is not a frame"
    yield base(elements=100, blocks=frame[:-1], directory=varint(2 * len(frame) - 1)), "a frame cut short"
    longer = varint(2 * len(frame) + 3)
    yield base(elements=100, blocks=frame + b"\x00", directory=longer), "a byte after the frame"
    two = zstd_frame.compress(bytes(50)) * 2
    yield base(elements=100, blocks=two, directory=varint(2 * len(two) + 1)), "a plane in two frames"
    large = zstd_frame.compress(b"abcd")
    yield base(blocks=large, directory=varint(2 * len(large) + 1)), "a frame no smaller than the raw plane"
    yield base(**good) + b"\x00", "a trailing byte"


def _schemas() -> Damaged:
    def schema(*files: bytes) -> bytes:
        return b"\x01" + varint(len(files)) + b"".join(files)

    def file(path: bytes, *tensors: bytes) -> bytes:
        return varint(len(path)) + path + varint(len(tensors)) + b"".join(tensors)

    def tensor(*dims: int, dtype: int = 15, element_class: int = 8, name: bytes = b"t") -> bytes:
        start = varint(len(name)) + name + bytes([dtype, element_class]) + varint(len(dims))
        return start + b"".join(map(varint, dims))

    good = schema(file(b"m", tensor(2, 3)))
    yield b"\x00" + good[1:], "object version 0"
    yield b"\x02" + good[1:], "object version 2"
    yield b"", "nothing"
    yield good + b"\x00", "a trailing byte"
    yield good[:-1], "ends within the dims"
    yield schema(file(b"b"), file(b"a")), "paths of files not ascending"
    yield schema(file(b"a"), file(b"a")), "the same path twice"
    yield schema(file("é".encode()), file(b"z")), "paths ascending by letter, not by byte"
    paths = [
        (b"", "an empty path"),
        (b"/a", "an absolute path"),
        (b"a//b", "a path with an empty part"),
        (b"a/", "a path that ends in a slash"),
        (b".", "the path ."),
        (b"a/./b", "a path with a part ."),
        (b"../a", "a path with a part .."),
        (b"a\x00b", "a path with NUL"),
        (b"a\\b", "a path with a backslash"),
        (b"a\nb", "a path with a control character"),
        (b"a\x7f", "a path with DEL"),
        (b".deltaic/a", "a path in .deltaic"),
        (b".deltaic", "the path .deltaic"),
        (b"C:/a", "a path that begins with a drive"),
        (b"c:", "a drive as the path"),
    ]
    for path, why in paths:
        yield schema(file(path)), why
    yield schema(file(b"\xff")), "a path that is not UTF-8"
    yield schema(file(b"\xed\xa0\x80")), "a path with a surrogate"
    yield schema(file(b"a" * 4097)), "a path of 4,097 bytes"
    yield schema(file(b"m", tensor(name=b"n" * 4097))), "a name of 4,097 bytes"
    yield schema(file(b"m", tensor(name=b"\xc0\x80"))), "a name that is not UTF-8"
    yield schema(file(b"m", tensor(1, dtype=0))), "dtype 0"
    yield schema(file(b"m", tensor(1, dtype=23))), "dtype 23"
    yield schema(file(b"m", tensor(1, element_class=0))), "element class 0"
    yield schema(file(b"m", tensor(1, element_class=17))), "element class 17"
    yield schema(file(b"m", tensor(1, element_class=7))), "dtype BF16 read as class F16"
    yield schema(file(b"m", tensor(1, element_class=1))), "dtype BF16 read as class U8"
    yield schema(file(b"m", tensor(1, dtype=18, element_class=8))), "dtype F32 read as class BF16"
    yield schema(file(b"m", tensor(*[1] * 17))), "rank 17"
    yield schema(file(b"m", tensor(2**48 + 1))), "more than 2^48 elements"
    yield schema(file(b"m", tensor(2**24, 2**24, 2))), "more than 2^48 elements in three dims"
    yield schema(file(b"m", tensor(2**32, 2**32))), "dims whose product wraps to zero"
    yield schema(file(b"m", tensor(3, dtype=2, element_class=1))), "three F4, a byte and a half"
    yield schema(file(b"m", tensor(2, dtype=3, element_class=1))), "two F6_E2M3, a byte and a half"
    yield b"\x01\x81\x00" + good[2:], "overlong varint for F"
    yield b"\x01" + varint(2**20 + 1) + good[2:], "more than 2^20 weight files"
    yield b"\x01" + varint(2**62), "a huge number of weight files"
    yield schema(b"\x01m" + varint(2**24 + 1)), "more than 2^24 tensors"
    yield schema(b"\x01m" + varint(2**62)), "a huge number of tensors"
    yield schema(varint(2**62) + b"m"), "a huge path length"


def _trees() -> Damaged:
    schema_id = objects.schema_id(TYPICAL_SCHEMA)
    header = _ID + varint(600)
    contents = bytes(48) * 5

    def tree(
        *,
        schema: bytes = schema_id,
        headers: bytes = varint(2) + 2 * header,
        tensors: bytes = varint(5) + contents,
        listed: bytes = b"\x00",
        files: bytes = varint(0),
    ) -> bytes:
        return b"\x01" + schema + headers + tensors + listed + files

    def files(*entries: tuple[bytes, int]) -> bytes:
        out = [varint(len(path)) + path + bytes([mode]) + varint(7) + _ID for path, mode in entries]
        return varint(len(out)) + b"".join(out)

    yield b"\x00" + tree()[1:], "object version 0"
    yield b"\x02" + tree()[1:], "object version 2"
    yield tree() + b"\x00", "a trailing byte"
    yield tree(schema=objects.schema_id(MINIMAL_SCHEMA)), "the id of another schema"
    yield tree(headers=varint(1) + header), "one header for two weight files"
    yield tree(headers=varint(3) + 3 * header), "three headers for two weight files"
    yield tree(headers=varint(2) + header + _ID + varint(100_000_001)), "a header above 100,000,000 bytes"
    yield tree(headers=varint(2) + header + _ID + b"\x80\x00"), "overlong varint for a header's length"
    yield tree(headers=varint(2**20 + 1)), "more than 2^20 weight files"
    yield tree(headers=varint(2**58)), "a huge number of weight files"
    yield tree(tensors=varint(4) + contents[48:]), "fewer tensors than the schema has"
    yield tree(tensors=varint(6) + contents + contents[:48]), "more tensors than the schema has"
    yield tree(tensors=varint(2**24 + 1)), "more than 2^24 tensors"
    yield tree(tensors=varint(2**58)), "a huge number of tensors"
    yield tree(listed=b"\x20"), "a bit past the last tensor"
    yield tree(listed=b"\x80" + _ID), "the eighth bit with five tensors"
    yield tree(listed=b"\x03" + _ID), "a PatchId missing"
    yield tree(listed=b"\x01" + 2 * _ID), "a PatchId that no bit lists"
    yield tree(files=files((b"a", 2))), "mode 2"
    yield tree(files=files((b"b", 0), (b"a", 0))), "paths not ascending"
    yield tree(files=files((b"a", 0), (b"a", 1))), "the same path twice"
    yield tree(files=files((b"a/../../b", 0))), "a path that leads out of the tree"
    yield tree(files=files((b".deltaic/config", 0))), "a path in .deltaic"
    yield tree(files=files((b"", 0))), "an empty path"
    yield tree(files=files((b"D:/x", 0))), "a path that begins with a drive"
    yield tree(files=varint(2**20 + 1)), "more than 2^20 other files"
    yield tree(files=varint(2**59)), "a huge number of other files"
    yield objects.encode_tree(TYPICAL_TREE, TYPICAL_SCHEMA)[:-1], "ends within the last file id"


def _commits() -> Damaged:
    def commit(
        *,
        parents: bytes = varint(1) + _ID,
        version: bytes = varint(13),
        message: bytes = string("step"),
        metadata: bytes = varint(0),
    ) -> bytes:
        return b"\x01" + _ID + parents + version + fixed(1_796_083_200_123, 8) + message + metadata

    def pairs(*texts: bytes) -> bytes:
        return varint(len(texts) // 2) + b"".join(varint(len(text)) + text for text in texts)

    yield b"\x00" + commit()[1:], "object version 0"
    yield b"\x02" + commit()[1:], "object version 2"
    yield commit() + b"\x00", "a trailing byte"
    yield commit()[:-1], "ends before the metadata"
    yield commit(parents=varint(0)), "version 13 without parents"
    yield commit(version=varint(0)), "version 0 with a parent"
    yield commit(version=b"\x8d\x00"), "overlong varint for the version"
    yield commit(parents=varint(2) + _ID), "fewer parents than said"
    yield commit(parents=varint(65) + 65 * _ID), "65 parents"
    yield commit(parents=varint(2**59) + _ID), "a huge number of parents"
    yield commit(message=b"\x01\xff"), "a message that is not UTF-8"
    yield commit(message=varint(2**20 + 1) + b"m"), "a message longer than 1 MiB and than the bytes left"
    yield commit(message=varint(2**64 - 1) + b"m"), "a message length of 2^64 - 1"
    yield commit(metadata=pairs(b"b", b"", b"a", b"")), "metadata keys not ascending"
    yield commit(metadata=pairs(b"a", b"1", b"a", b"2")), "the same metadata key twice"
    yield commit(metadata=pairs(b"k" * 4097, b"")), "a metadata key of 4,097 bytes"
    yield commit(metadata=pairs(b"k", b"v" * 4097)), "a metadata value of 4,097 bytes"
    yield commit(metadata=varint(2**62)), "huge metadata"


def _record(repository: bytes = b"lab/policy", branch: bytes = b"main", version: bytes = varint(13)) -> bytes:
    names = b"".join(varint(len(name)) + name for name in (repository, branch))
    return b"\x01" + names + _ID + version + fixed(1_796_083_200_123, 8) + fixed(0, 8)


def _ref(record: bytes, signatures: bytes = varint(0), length: int | None = None) -> bytes:
    return varint(len(record) if length is None else length) + record + signatures


def _refs() -> Damaged:
    record = _record()
    yield _ref(b"\x00" + record[1:]), "object version 0"
    yield _ref(b"\x02" + record[1:]), "object version 2"
    yield _ref(record) + b"\x00", "a trailing byte"
    yield _ref(record + b"\x00"), "a trailing byte within the record"
    yield _ref(record[:-1]), "a record cut short"
    yield _ref(record, length=len(record) - 1), "a record length one too small"
    yield _ref(record, length=len(record) + 1), "a record length one too large"
    yield _ref(record, length=2**64 - 1), "a record length of 2^64 - 1"
    yield _ref(record, signatures=varint(1)), "a signature missing"
    yield _ref(record, signatures=varint(65) + bytes(65 * 96)), "65 signatures"
    yield _ref(record, signatures=varint(2**60)), "a huge number of signatures"
    yield _ref(record, signatures=varint(0) + bytes(96)), "a signature more than said"
    yield _ref(_record(version=b"\x8d\x00")), "overlong varint for the version"
    yield objects.encode_stored_ref(sign(TYPICAL_RECORD, 1))[:-1], "a signature cut short"


def _names() -> Damaged:
    bad = [
        (b"", "empty"),
        (b"a//b", "with an empty part"),
        (b"/a", "that begins with a slash"),
        (b"a/", "that ends in a slash"),
        (b"-a", "that begins with -"),
        (b"a/-b", "with a part that begins with -"),
        (b".a", "that begins with ."),
        (b"a/..", "with a part .."),
        (b"a b", "with a space"),
        (b"a:b", "with a colon"),
        ("größe".encode(), "with letters beyond ASCII"),
        ("٣".encode(), "with a digit beyond ASCII"),
        (b"a\n", "that ends in a line feed"),
        (b"a\xff", "that is not UTF-8"),
        (b"a" * 129, "with a part of 129 characters"),
        (b"a/b/c/d/e/f/g/h/i", "of nine parts"),
    ]
    for name, why in bad:
        yield _ref(_record(repository=name)), f"a repository {why}"
        yield _ref(_record(branch=name)), f"a branch {why}"
    yield _ref(_record(branch=b"v12")), "a branch that is a version"
