"""The moments L and Q of a content, and what a patch says of them (SPEC §5)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .classes import ElementClass
from .patch import Changes, shifted
from .primitives import MASK64, mix, mix_array

ROW = 512
_GOLDEN = 0x9E3779B97F4A7C15
_ROWS_AT_ONCE = 2**13  # bounds the memory that `moments` takes


def _is_prime(n: int) -> bool:
    """Miller-Rabin; the witnesses 2, 7 and 61 decide every odd n from 62 to 4,759,123,140."""
    if n % 2 == 0:
        return False
    twos = (n - 1 & 1 - n).bit_length() - 1
    for witness in (2, 7, 61):
        x = pow(witness, n - 1 >> twos, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


@lru_cache(maxsize=1)
def moment_primes() -> tuple[int, ...]:
    """The 512 primes A[0] … A[511]."""
    primes: list[int] = []
    for k in range(ROW):
        candidate = 2**31 + (mix(k + _GOLDEN) >> 33)
        while candidate in primes or not _is_prime(candidate):
            candidate += 1
        primes.append(candidate)
    assert all(2**31 < prime < 2**32 for prime in primes)
    return tuple(primes)


@lru_cache(maxsize=1)
def _column_factors() -> np.ndarray:
    return np.array(moment_primes(), np.uint64)


def _row_factors(rows: np.ndarray) -> np.ndarray:
    """G(j): always odd, so that r(i) has an inverse mod 2^64."""
    return mix_array(rows.astype(np.uint64) + np.uint64(_GOLDEN)) | np.uint64(1)


def coefficients(index: np.ndarray) -> np.ndarray:
    """r(i) of flat indexes."""
    return _row_factors(index // ROW) * _column_factors()[index % ROW]


def spread(element_class: ElementClass, ords: np.ndarray) -> np.ndarray:
    """h of ords."""
    return ords * ords if element_class.width <= 2 else mix_array(ords)


def moments(element_class: ElementClass, content: bytes) -> tuple[int, int]:
    """(L, Q) of a content."""
    words = element_class.words(content)
    sums = [0, 0]
    for first_row in range(0, -(-len(words) // ROW), _ROWS_AT_ONCE):
        start = first_row * ROW
        ords = element_class.ord(words[start : start + _ROWS_AT_ONCE * ROW])
        rows = -(-len(ords) // ROW)
        row_factors = _row_factors(np.arange(first_row, first_row + rows))
        for k, values in enumerate((ords, spread(element_class, ords))):
            table = np.zeros((rows, ROW), np.uint64)
            table.reshape(-1)[: len(values)] = values
            row_sums = (table * _column_factors()).sum(axis=1, dtype=np.uint64)
            sums[k] += int((row_sums * row_factors).sum(dtype=np.uint64))
    return sums[0] & MASK64, sums[1] & MASK64


def _weighted(index: np.ndarray, values: np.ndarray) -> int:
    return int((coefficients(index) * values).sum(dtype=np.uint64))


def l_difference(changes: Changes) -> int:
    """L(N) - L(M), from the patch alone."""
    return _weighted(changes.index, changes.shift.view(np.uint64))


def q_difference_from_old(element_class: ElementClass, changes: Changes, old: np.ndarray) -> int:
    """Q(N) - Q(M) if the words `old` at the changed indexes are those of M: the patch fits."""
    ords = element_class.ord(old)
    moved = shifted(element_class, ords, changes.shift)
    return _weighted(changes.index, spread(element_class, moved) - spread(element_class, ords))


def q_difference_from_new(element_class: ElementClass, changes: Changes, new: np.ndarray) -> int:
    """Q(N) - Q(M) if the words `new` at the changed indexes are those of N: the patch is applied already."""
    ords = element_class.ord(new)
    moved = shifted(element_class, ords, np.negative(changes.shift))
    return _weighted(changes.index, spread(element_class, ords) - spread(element_class, moved))
