"""Element classes, safetensors dtypes, `ord` and the range of shifts (SPEC §2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .primitives import require


@dataclass(frozen=True)
class ElementClass:
    """How a tensor's bytes are read: words of `width` bytes in an `order`."""

    number: int
    name: str
    width: int
    order: str  # "unsigned", "signed" or "float"

    @property
    def sign(self) -> int:
        """The word whose only set bit is the highest one."""
        return 1 << 8 * self.width - 1

    @property
    def smallest_shift(self) -> int:
        return -(2**63) if self.width == 8 else 1 - 2 ** (8 * self.width)

    @property
    def largest_shift(self) -> int:
        return 2**63 - 1 if self.width == 8 else 2 ** (8 * self.width) - 1

    def words(self, content: bytes) -> np.ndarray:
        """The words of a content, as a read-only array of unsigned integers."""
        require(len(content) % self.width == 0, f"{len(content)} bytes are no whole number of {self.name} words")
        return np.frombuffer(content, f"<u{self.width}")

    def ord(self, words: np.ndarray) -> np.ndarray:
        """`ord` of words, as an array of uint64 in the order of the values."""
        sign = words.dtype.type(self.sign)
        if self.order == "signed":
            words = words ^ sign
        elif self.order == "float":
            words = np.where(words & sign, ~words, words ^ sign)
        return words.astype(np.uint64)

    def words_of_ord(self, ords: np.ndarray) -> np.ndarray:
        """The inverse of `ord`."""
        words = ords.astype(f"<u{self.width}")
        sign = words.dtype.type(self.sign)
        if self.order == "signed":
            words = words ^ sign
        elif self.order == "float":
            words = np.where(words & sign, words ^ sign, ~words)
        return words

    def check_shifts(self, shifts: np.ndarray) -> None:
        """Refuse an array of int64 that holds zero or what no two words of this class differ by."""
        require(bool((shifts != 0).all()), "a shift is zero")
        in_range = (shifts >= self.smallest_shift) & (shifts <= self.largest_shift)
        require(bool(in_range.all()), f"a shift is out of the range of {self.name}")


CLASSES = {
    number: ElementClass(number, name, width, order)
    for number, name, width, order in [
        (1, "U8", 1, "unsigned"),
        (2, "I8", 1, "signed"),
        (3, "F8_E4M3", 1, "float"),
        (4, "F8_E5M2", 1, "float"),
        (5, "U16", 2, "unsigned"),
        (6, "I16", 2, "signed"),
        (7, "F16", 2, "float"),
        (8, "BF16", 2, "float"),
        (9, "U32", 4, "unsigned"),
        (10, "I32", 4, "signed"),
        (11, "F32", 4, "float"),
        (12, "U64", 8, "unsigned"),
        (13, "I64", 8, "signed"),
        (14, "F64", 8, "float"),
        (15, "F8_E4M3FNUZ", 1, "float"),
        (16, "F8_E5M2FNUZ", 1, "float"),
    ]
}
CLASS_NAMED = {element_class.name: element_class for element_class in CLASSES.values()}
U8 = CLASS_NAMED["U8"]


@dataclass(frozen=True)
class Dtype:
    """A safetensors dtype with its number in a schema, its bits per item and its element class."""

    number: int
    name: str
    bits: int
    element_class: ElementClass

    def may_be_read_as(self, element_class: ElementClass) -> bool:
        """Whether a schema may give this dtype that class: its own, or U8 for packed integers."""
        return element_class == self.element_class or element_class == U8 and self.name in _PACKABLE_DTYPES


DTYPES = {
    number: Dtype(number, name, bits, CLASS_NAMED[class_name])
    for number, name, bits, class_name in [
        (1, "BOOL", 8, "U8"),
        (2, "F4", 4, "U8"),
        (3, "F6_E2M3", 6, "U8"),
        (4, "F6_E3M2", 6, "U8"),
        (5, "U8", 8, "U8"),
        (6, "I8", 8, "I8"),
        (7, "F8_E5M2", 8, "F8_E5M2"),
        (8, "F8_E4M3", 8, "F8_E4M3"),
        (9, "F8_E8M0", 8, "U8"),
        (10, "F8_E4M3FNUZ", 8, "F8_E4M3FNUZ"),
        (11, "F8_E5M2FNUZ", 8, "F8_E5M2FNUZ"),
        (12, "I16", 16, "I16"),
        (13, "U16", 16, "U16"),
        (14, "F16", 16, "F16"),
        (15, "BF16", 16, "BF16"),
        (16, "I32", 32, "I32"),
        (17, "U32", 32, "U32"),
        (18, "F32", 32, "F32"),
        (19, "C64", 64, "F32"),
        (20, "F64", 64, "F64"),
        (21, "I64", 64, "I64"),
        (22, "U64", 64, "U64"),
    ]
}
DTYPE_NAMED = {dtype.name: dtype for dtype in DTYPES.values()}

_PACKABLE_DTYPES = {"U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"}
_PACKED_NAMES = {"qweight", "qzeros", "weight_packed", "weight_zero_point_packed"}


def class_number(number: int) -> ElementClass:
    require(number in CLASSES, f"element class {number} is unknown; supported: 1 to {len(CLASSES)}")
    return CLASSES[number]


def dtype_number(number: int) -> Dtype:
    require(number in DTYPES, f"dtype {number} is unknown; supported: 1 to {len(DTYPES)}")
    return DTYPES[number]


def class_of_tensor(dtype: Dtype, name: str) -> ElementClass:
    """The class a schema's writer chooses for a tensor: packed nibbles are read by bytes."""
    packed = dtype.name in _PACKABLE_DTYPES and name.split(".")[-1] in _PACKED_NAMES
    return U8 if packed else dtype.element_class
