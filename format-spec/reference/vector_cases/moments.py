"""moments.json: contents with L and Q."""

from __future__ import annotations

from deltaic_reference.classes import CLASS_NAMED, CLASSES
from deltaic_reference.moments import moments

from .stream import content, generated

_EVERY_WIDTH = ("F8_E4M3", "BF16", "F32", "F64")
_LENGTHS = (0, 1, 511, 512, 513, 1025)
_LONG = [
    ("U8", 65_537, 501),
    ("F16", 65_537, 502),
    ("I32", 65_537, 503),
    ("U64", 65_537, 504),
    ("F8_E5M2", 2**22 + 3, 505),
    ("BF16", 2**22 + 3, 506),
    ("F32", 2**22 + 3, 507),
    ("F64", 2**22 + 3, 508),
]


def cases() -> list[dict]:
    short = [(CLASS_NAMED[name], length) for name in _EVERY_WIDTH for length in _LENGTHS]
    short += [(element_class, 33) for element_class in CLASSES.values()]
    out = []
    for k, (element_class, length) in enumerate(short):
        data = content(400 + k, length * element_class.width)
        l_moment, q_moment = moments(element_class, data)
        case = {"class": element_class.number, "content_hex": data.hex()}
        out.append(case | {"L": str(l_moment), "Q": str(q_moment)})
    for name, elements, seed in _LONG:
        element_class, recipe = CLASS_NAMED[name], {"seed": seed, "elements": elements}
        l_moment, q_moment = moments(element_class, generated(element_class, recipe))
        case = {"class": element_class.number, "generated": recipe}
        out.append(case | {"L": str(l_moment), "Q": str(q_moment)})
    return out
