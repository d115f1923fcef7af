"""patches.json: patches with their canonical bytes and PatchId."""

from __future__ import annotations

import numpy as np

from deltaic_reference.classes import CLASS_NAMED, CLASSES, ElementClass
from deltaic_reference.ids import content_id
from deltaic_reference.patch import Changes, Patch, canonical_bytes, diff, patch_id

from .stream import Source, content

_EVERY_WIDTH = ("F8_E5M2", "BF16", "F32", "F64")


def _case(name: str, patch: Patch, contents: tuple[bytes, bytes] | None = None) -> dict:
    case = {"name": name, "class": patch.element_class.number, "elements": patch.elements}
    if contents is not None:
        case |= {"old_hex": contents[0].hex(), "new_hex": contents[1].hex()}
    return case | {
        "from": patch.from_id.hex(),
        "to": patch.to_id.hex(),
        "changes": [[index, str(shift)] for index, shift in patch.changes.pairs()],
        "canonical_hex": canonical_bytes(patch).hex(),
        "patch_id": patch_id(patch).hex(),
    }


def _of_contents(name: str, element_class: ElementClass, old: bytes, new: bytes) -> dict:
    return _case(name, diff(element_class, old, new), (old, new))


def _of_words(name: str, element_class: ElementClass, old: list[int], new: list[int]) -> dict:
    word = f"<u{element_class.width}"
    return _of_contents(name, element_class, np.array(old, word).tobytes(), np.array(new, word).tobytes())


def _of_pairs(name: str, element_class: ElementClass, elements: int, pairs: list[tuple[int, int]]) -> dict:
    ids = content_id(f"{name}, from".encode()), content_id(f"{name}, to".encode())
    return _case(name, Patch(element_class, *ids, elements, Changes.of(pairs)))


def _some_words_replaced(element_class: ElementClass) -> dict:
    seed, elements = 600 + element_class.number, 20
    old = np.frombuffer(content(seed, elements * element_class.width), f"<u{element_class.width}")
    new = old.copy()
    places = Source(seed).sample(elements, 6)
    new[places] = np.frombuffer(content(seed + 50, 6 * element_class.width), new.dtype)
    new[0] ^= 1
    return _of_contents("some words replaced", element_class, old.tobytes(), new.tobytes())


def cases() -> list[dict]:
    out = [_some_words_replaced(element_class) for element_class in CLASSES.values()]
    for element_class in CLASSES.values():
        top, sign = 2 * element_class.sign - 1, element_class.sign
        name = "from the least to the greatest word, back, and over the sign"
        out.append(_of_words(name, element_class, [0, top, sign - 1, sign, 0], [top, 0, sign, sign - 1, sign]))
    for name in _EVERY_WIDTH:
        element_class = CLASS_NAMED[name]
        least, most = element_class.smallest_shift, element_class.largest_shift
        same = content(660, 9 * element_class.width)
        out += [
            _of_contents("no changes", element_class, same, same),
            _of_contents("no elements", element_class, b"", b""),
            _of_words("one element", element_class, [5], [6]),
            _of_pairs("extreme shifts", element_class, 7, [(0, least), (1, most), (3, -1), (5, 1), (6, least)]),
            _of_pairs(
                "over block boundaries",
                element_class,
                200_000,
                [(0, 1), (65_535, -1), (65_536, 2), (131_071, most), (131_072, least), (199_999, 3)],
            ),
            _of_pairs("over piece boundaries", element_class, 2**23, [(2**22 - 1, 7), (2**22, -7), (2**23 - 1, 1)]),
            _of_pairs("the last of most elements", element_class, 2**48, [(2**32, -2), (2**48 - 1, 2)]),
        ]
    u64 = CLASS_NAMED["U64"]
    name = "differences that wrap: -1, 1, and -2^63 both ways"
    out.append(_of_words(name, u64, [0, 2**64 - 1, 0, 2**63], [2**64 - 1, 0, 2**63, 0]))
    return out
