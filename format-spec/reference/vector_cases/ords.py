"""ord.json: words of every class with their `ord`."""

from __future__ import annotations

import numpy as np

from deltaic_reference.classes import CLASSES, ElementClass

from .stream import content

# Words of note in the float classes: ±0, ±1, smallest and largest finite, ±infinity, NaNs of both signs.
_FLOAT_WORDS = {
    "F8_E4M3": [0x38, 0xB8, 0x01, 0x81, 0x7E, 0xFE],
    "F8_E5M2": [0x3C, 0xBC, 0x01, 0x81, 0x7B, 0xFB, 0x7C, 0xFC, 0x7D, 0xFD, 0x7E, 0xFE],
    "F8_E4M3FNUZ": [0x40, 0xC0, 0x01, 0x81],
    "F8_E5M2FNUZ": [0x40, 0xC0, 0x01, 0x81],
    "F16": [0x3C00, 0xBC00, 0x0001, 0x8001, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7C01, 0xFC01, 0x7E00, 0xFE00],
    "BF16": [0x3F80, 0xBF80, 0x0001, 0x8001, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7F81, 0xFF81, 0x7FC0, 0xFFC0],
    "F32": [
        *(0x3F800000, 0xBF800000, 0x00000001, 0x80000001, 0x7F7FFFFF, 0xFF7FFFFF),
        *(0x7F800000, 0xFF800000, 0x7F800001, 0xFF800001, 0x7FC00000, 0xFFC00000),
    ],
    "F64": [
        *(0x3FF0000000000000, 0xBFF0000000000000, 0x0000000000000001, 0x8000000000000001),
        *(0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF, 0x7FF0000000000000, 0xFFF0000000000000),
        *(0x7FF0000000000001, 0xFFF0000000000001, 0x7FF8000000000000, 0xFFF8000000000000),
    ],
}


def _words(element_class: ElementClass) -> list[int]:
    top, sign = 2 * element_class.sign - 1, element_class.sign
    extremes = [0, 1, sign - 1, sign, sign + 1, top - 1, top]
    random = np.frombuffer(content(100 + element_class.number, 8 * element_class.width), f"<u{element_class.width}")
    return list(dict.fromkeys(extremes + _FLOAT_WORDS.get(element_class.name, []) + random.tolist()))


def cases() -> list[dict]:
    out = []
    for element_class in CLASSES.values():
        words = np.array(_words(element_class), f"<u{element_class.width}")
        digits = 2 * element_class.width
        pairs = [
            [f"0x{word:0{digits}X}", str(value)]
            for word, value in zip(words.tolist(), element_class.ord(words).tolist())
        ]
        out.append({"class": element_class.number, "name": element_class.name, "words": pairs})
    return out
