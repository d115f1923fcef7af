"""The deterministic source of all "random" content in the vectors (described in `vectors/README.md`)."""

from __future__ import annotations

import numpy as np

from deltaic_reference.classes import ElementClass
from deltaic_reference.primitives import MASK64, mix_array

_GOLDEN = 0x9E3779B97F4A7C15


def content(seed: int, length: int, mask: int = MASK64) -> bytes:
    """The first `length` bytes of the little-endian u64 stream mix(seed + k * golden) & mask, k = 1, 2, 3, …"""
    k = np.arange(1, -(-length // 8) + 1, dtype=np.uint64)
    stream = mix_array(np.uint64(seed) + k * np.uint64(_GOLDEN)) & np.uint64(mask)
    return stream.astype("<u8").tobytes()[:length]


def generated(element_class: ElementClass, case: dict) -> bytes:
    """The content that a case's "generated" key stands for."""
    mask = int(case.get("mask", hex(MASK64)), 16)
    return content(case["seed"], case["elements"] * element_class.width, mask)


class Source:
    """Numbers drawn from one stream."""

    def __init__(self, seed: int):
        self._numbers = iter(np.frombuffer(content(seed, 8 * 4096), "<u8").tolist())

    def below(self, bound: int) -> int:
        return next(self._numbers) % bound

    def sample(self, population: int, count: int) -> list[int]:
        """`count` distinct ascending numbers below `population`."""
        chosen: set[int] = set()
        while len(chosen) < count:
            chosen.add(self.below(population))
        return sorted(chosen)

    def shift(self, element_class: ElementClass, bits: int) -> int:
        """A shift of up to `bits` bits that the class allows."""
        size = 1 + self.below((1 << min(bits, 8 * element_class.width - 1)) - 1)
        return -size if self.below(2) else size
