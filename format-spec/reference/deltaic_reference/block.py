"""The payload of one block of a patch set: parameters, positions, values (SPEC §6)."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from enum import IntEnum

import numpy as np

from . import zstd_frame
from .bits import BitReader, BitWriter
from .classes import ElementClass
from .patch import Changes
from .primitives import require

RICE_CAP = 18
EXP_GOLOMB_CAP = 62
PARAMETER_BITS = 20
_FIELD_WIDTHS = (2, 5, 2, 5, 6)
_EXCEPTION_COUNT_ORDER = 3
_PLANES = {1: 2, 2: 3, 4: 5, 8: 8}


class Positions(IntEnum):
    GAPS = 0
    BITMAP = 1
    FULL = 2


class Values(IntEnum):
    EXCEPTIONS = 0
    MAGNITUDES = 1
    PLANES = 2


@dataclass(frozen=True)
class Parameters:
    """Codings of a block with the Rice parameters g, e and the Exp-Golomb order m."""

    positions: Positions = Positions.GAPS
    g: int = 0
    values: Values = Values.EXCEPTIONS
    e: int = 0
    m: int = 0

    def unused_fields_zeroed(self) -> Parameters:
        """These parameters as a block's own: fields that its codings do not use are zero."""
        return Parameters(
            self.positions,
            self.g if self.positions == Positions.GAPS else 0,
            self.values,
            self.e if self.values == Values.EXCEPTIONS else 0,
            self.m if self.values != Values.PLANES else 0,
        )

    def as_bits(self) -> int:
        bits = BitWriter()
        for value, width in zip(astuple(self), _FIELD_WIDTHS):
            bits.field(value, width)
        return int.from_bytes(bits.finish(), "little")

    @staticmethod
    def from_bits(bits: int, what: str) -> Parameters:
        """From the 20 bits; each field must be within its range."""
        require(bits >> PARAMETER_BITS == 0, f"{what}: the upper bits are not zero")
        reader = BitReader(bits.to_bytes(3, "little"))
        positions, g, values, e, m = (reader.field(width, what) for width in _FIELD_WIDTHS)
        require(positions <= 2, f"{what}: position coding {positions} is unknown; supported: 0, 1, 2")
        require(values <= 2, f"{what}: value coding {values} is unknown; supported: 0, 1, 2")
        require(g <= RICE_CAP, f"{what}: g = {g} is above {RICE_CAP}")
        require(e <= RICE_CAP, f"{what}: e = {e} is above {RICE_CAP}")
        require(m <= EXP_GOLOMB_CAP, f"{what}: m = {m} is above {EXP_GOLOMB_CAP}")
        return Parameters(Positions(positions), g, Values(values), e, m)


def decode(
    payload: bytes, element_class: ElementClass, block_length: int, count: int, defaults: Parameters
) -> tuple[Parameters, Changes]:
    """The parameters in force and the changes of a block; indexes count from the block's first."""
    bits = BitReader(payload)
    parameters = _read_parameters(bits, defaults)
    index = _read_positions(bits, parameters, block_length, count)
    shift = _read_values(bits, parameters, element_class, count)
    bits.end("block payload")
    element_class.check_shifts(shift)
    return parameters, Changes(index, shift)


def _read_parameters(bits: BitReader, defaults: Parameters) -> Parameters:
    if not bits.field(1, "parameter flag"):
        return defaults
    parameters = Parameters.from_bits(bits.field(PARAMETER_BITS, "own parameters"), "own parameters")
    unused_are_zero = parameters == parameters.unused_fields_zeroed()
    require(unused_are_zero, "own parameters: a field that the codings do not use is not zero")
    return parameters


def _read_ascending(bits: BitReader, k: int, below: int, count: int, what: str) -> np.ndarray:
    """`count` ascending numbers below `below`, as Rice codes of the gaps between them."""
    out = np.empty(count, np.int64)
    previous = -1
    for place in range(count):
        previous += 1 + bits.rice(k, below - previous - 2, what)
        out[place] = previous
    return out


def _read_positions(bits: BitReader, parameters: Parameters, block_length: int, count: int) -> np.ndarray:
    if parameters.positions == Positions.GAPS:
        return _read_ascending(bits, parameters.g, block_length, count, "index gap")
    if parameters.positions == Positions.BITMAP:
        index = np.flatnonzero(bits.flags(block_length, "position bitmap"))
        require(len(index) == count, f"position bitmap has {len(index)} ones, the directory says {count}")
        return index
    require(count == block_length, f"full positions with {count} changes in a block of {block_length}")
    return np.arange(block_length)


def _read_values(bits: BitReader, parameters: Parameters, element_class: ElementClass, count: int) -> np.ndarray:
    if parameters.values == Values.PLANES:
        return _read_planes(bits, element_class, count)
    negative = bits.flags(count, "signs").tolist()
    if parameters.values == Values.EXCEPTIONS:
        magnitudes = _read_exceptions(bits, parameters, count)
    else:
        magnitudes = [1 + bits.exp_golomb(parameters.m, "magnitude") for _ in range(count)]
    shifts = [-size if sign else size for size, sign in zip(magnitudes, negative)]
    for shift in shifts:
        in_range = element_class.smallest_shift <= shift <= element_class.largest_shift
        require(in_range, f"shift {shift} is out of the range of {element_class.name}")
    return np.array(shifts, np.int64)


def _read_exceptions(bits: BitReader, parameters: Parameters, count: int) -> list[int]:
    exceptions = bits.exp_golomb(_EXCEPTION_COUNT_ORDER, "number of exceptions")
    require(exceptions <= count, f"{exceptions} exceptions among {count} changes")
    ranks = _read_ascending(bits, parameters.e, count, exceptions, "exception gap")
    magnitudes = [1] * count
    for rank in ranks.tolist():
        magnitudes[rank] = 2 + bits.exp_golomb(parameters.m, "exception magnitude")
    return magnitudes


def _read_planes(bits: BitReader, element_class: ElementClass, count: int) -> np.ndarray:
    planes = _PLANES[element_class.width]
    content = zstd_frame.decompress(bits.rest("planes"), count * planes, "planes")
    zigzag = np.zeros(count, np.uint64)
    for k, plane in enumerate(np.frombuffer(content, np.uint8).reshape(planes, count)):
        zigzag |= plane.astype(np.uint64) << np.uint64(8 * k)
    half = (zigzag >> np.uint64(1)).view(np.int64)
    return np.where(zigzag & np.uint64(1), -half - 1, half)


def encode(
    changes: Changes,
    element_class: ElementClass,
    block_length: int,
    parameters: Parameters,
    own: bool,
    zstd_level: int = 3,
) -> bytes:
    """A block's payload in the codings asked for; `own` writes the parameters into it."""
    bits = BitWriter()
    bits.field(int(own), 1)
    if own:
        parameters = parameters.unused_fields_zeroed()
        bits.field(parameters.as_bits(), PARAMETER_BITS)
    _write_positions(bits, parameters, block_length, changes.index)
    if parameters.values == Values.PLANES:
        return bits.finish() + zstd_frame.compress(_planes(changes.shift, element_class), zstd_level)
    bits.flags(changes.shift < 0)
    magnitudes = [abs(shift) for shift in changes.shift.tolist()]
    if parameters.values == Values.EXCEPTIONS:
        _write_exceptions(bits, parameters, magnitudes)
    else:
        for magnitude in magnitudes:
            bits.exp_golomb(magnitude - 1, parameters.m)
    return bits.finish()


def _write_ascending(bits: BitWriter, k: int, numbers: list[int]) -> None:
    previous = -1
    for number in numbers:
        bits.rice(number - previous - 1, k)
        previous = number


def _write_positions(bits: BitWriter, parameters: Parameters, block_length: int, index: np.ndarray) -> None:
    if parameters.positions == Positions.GAPS:
        _write_ascending(bits, parameters.g, index.tolist())
    elif parameters.positions == Positions.BITMAP:
        flags = np.zeros(block_length, np.uint8)
        flags[index] = 1
        bits.flags(flags)
    else:
        require(len(index) == block_length, "full positions need every index of the block changed")


def _write_exceptions(bits: BitWriter, parameters: Parameters, magnitudes: list[int]) -> None:
    ranks = [rank for rank, magnitude in enumerate(magnitudes) if magnitude >= 2]
    bits.exp_golomb(len(ranks), _EXCEPTION_COUNT_ORDER)
    _write_ascending(bits, parameters.e, ranks)
    for rank in ranks:
        bits.exp_golomb(magnitudes[rank] - 2, parameters.m)


def _planes(shift: np.ndarray, element_class: ElementClass) -> bytes:
    zigzag = (shift << 1 ^ shift >> 63).view(np.uint64)
    return b"".join(
        (zigzag >> np.uint64(8 * k)).astype(np.uint8).tobytes() for k in range(_PLANES[element_class.width])
    )
