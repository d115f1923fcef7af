"""Patches: diff, apply, compose, negate, canonical bytes and PatchId (SPEC §4)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .classes import ElementClass
from .ids import content_id, derived_id
from .primitives import TENSOR_ELEMENTS_CAP, fixed, require

CANONICAL_BLOCK = 65_536
_SHIFT_WIDTH = {1: 2, 2: 4, 4: 8, 8: 8}


def _no_changes() -> np.ndarray:
    return np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Changes:
    """Changed elements: flat indexes, strictly ascending, and their shifts; both int64 arrays."""

    index: np.ndarray = field(default_factory=_no_changes)
    shift: np.ndarray = field(default_factory=_no_changes)

    def __len__(self) -> int:
        return len(self.index)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Changes):
            return NotImplemented
        return np.array_equal(self.index, other.index) and np.array_equal(self.shift, other.shift)

    @staticmethod
    def of(pairs: list[tuple[int, int]]) -> Changes:
        return Changes(np.array([i for i, _ in pairs], np.int64), np.array([d for _, d in pairs], np.int64))

    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self.index.tolist(), self.shift.tolist()))

    def check(self, element_class: ElementClass, elements: int) -> None:
        """Refuse changes that no content of that class and length can have."""
        require(len(self.index) == len(self.shift), "as many shifts as indexes are needed")
        require(bool((np.diff(self.index) > 0).all()), "indexes are not strictly ascending")
        in_range = not len(self) or self.index[0] >= 0 and self.index[-1] < elements
        require(bool(in_range), f"an index is not below {elements}")
        element_class.check_shifts(self.shift)


@dataclass(frozen=True)
class Patch:
    """How the content `from_id` of a tensor becomes the content `to_id`."""

    element_class: ElementClass
    from_id: bytes
    to_id: bytes
    elements: int
    changes: Changes

    def __post_init__(self) -> None:
        require(len(self.from_id) == len(self.to_id) == 32, "an id is 32 bytes")
        require(0 <= self.elements <= TENSOR_ELEMENTS_CAP, f"{self.elements} elements are above the cap")
        self.changes.check(self.element_class, self.elements)


def diff_words(element_class: ElementClass, old: np.ndarray, new: np.ndarray) -> Changes:
    """The changes from one array of words to another of the same length."""
    require(len(old) == len(new), "contents differ in length")
    index = np.flatnonzero(old != new)
    # Subtraction mod 2^64 read as an i64 is exact for narrow words and the definition for 8-byte words.
    shift = element_class.ord(new[index]) - element_class.ord(old[index])
    return Changes(index.astype(np.int64), shift.view(np.int64))


def diff(element_class: ElementClass, old: bytes, new: bytes) -> Patch:
    """The patch from one content to another."""
    changes = diff_words(element_class, element_class.words(old), element_class.words(new))
    return Patch(element_class, content_id(old), content_id(new), len(old) // element_class.width, changes)


def shifted(element_class: ElementClass, ords: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """`ord + shift`, refused where it leaves the class's words."""
    if element_class.width < 8:
        moved = ords.astype(np.int64) + shift
        in_range = (moved >= 0) & (moved < 1 << 8 * element_class.width)
        require(bool(in_range.all()), f"a shift leads out of the words of {element_class.name}")
    return ords + shift.view(np.uint64)


def apply(patch: Patch, old: bytes) -> bytes:
    """The content `to_id`, made from the content `from_id`; both ids are checked."""
    element_class, changes = patch.element_class, patch.changes
    require(content_id(old) == patch.from_id, "the content is not the one the patch starts from")
    words = element_class.words(old).copy()
    require(len(words) == patch.elements, "the content has another number of elements")
    ords = shifted(element_class, element_class.ord(words[changes.index]), changes.shift)
    words[changes.index] = element_class.words_of_ord(ords)
    new = words.tobytes()
    require(content_id(new) == patch.to_id, "the patch does not lead to the content it names")
    return new


def compose(first: Patch, second: Patch) -> Patch:
    """M→X and X→N become M→N: shifts are added index by index and zero sums dropped."""
    require(first.element_class == second.element_class, "the patches differ in class")
    require(first.elements == second.elements, "the patches differ in elements")
    require(first.to_id == second.from_id, "the second patch does not start where the first ends")
    index = np.union1d(first.changes.index, second.changes.index)
    shift = np.zeros(len(index), np.int64)
    for changes in (first.changes, second.changes):
        shift[np.searchsorted(index, changes.index)] += changes.shift
    kept = shift != 0
    changes = Changes(index[kept], shift[kept])
    return Patch(first.element_class, first.from_id, second.to_id, first.elements, changes)


def negate(patch: Patch) -> Patch:
    """M→N becomes N→M. The shift -2^63 is its own negative mod 2^64."""
    changes = Changes(patch.changes.index, np.negative(patch.changes.shift))
    return Patch(patch.element_class, patch.to_id, patch.from_id, patch.elements, changes)


def canonical_bytes(patch: Patch) -> bytes:
    """The bytes whose hash is the PatchId."""
    shift_type = f"<i{_SHIFT_WIDTH[patch.element_class.width]}"
    out = [fixed(patch.element_class.number, 1), patch.from_id, patch.to_id, fixed(patch.elements, 8)]
    block_of_change = patch.changes.index // CANONICAL_BLOCK
    numbers, starts, counts = np.unique(block_of_change, return_index=True, return_counts=True)
    for number, start, count in zip(numbers.tolist(), starts.tolist(), counts.tolist()):
        block = slice(start, start + count)
        out += [fixed(number, 8), fixed(count, 4)]
        out.append((patch.changes.index[block] % CANONICAL_BLOCK).astype("<u2").tobytes())
        out.append(patch.changes.shift[block].astype(shift_type).tobytes())
    return b"".join(out)


def patch_id(patch: Patch) -> bytes:
    return derived_id("patch", canonical_bytes(patch))
