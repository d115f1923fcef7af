"""bases.json: bases, small ones in hex, those around the block length as files."""

from __future__ import annotations

from deltaic_reference.base import encode
from deltaic_reference.classes import CLASS_NAMED, CLASSES, ElementClass
from deltaic_reference.ids import content_id

from .stream import content, generated

# Few bits of the stream are kept, so that the planes compress and the files stay small.
_GENERATED = [
    ("below-one-block", "F8_E4M3", {"seed": 811, "elements": 2**18 - 1, "mask": "0x0000000000000101"}),
    ("one-block", "BF16", {"seed": 812, "elements": 2**18, "mask": "0x8000000000000001"}),
    ("above-one-block", "F32", {"seed": 813, "elements": 2**18 + 1, "mask": "0x8000000000000000"}),
    ("two-blocks-and-some", "F64", {"seed": 814, "elements": 2**19 + 3, "mask": "0x0000000000000001"}),
    ("raw-and-zstd", "U16", {"seed": 815, "elements": 2**18 + 2, "mask": "0x000000000000FF00"}),
]


def _small(name: str, element_class: ElementClass, data: bytes) -> dict:
    case = {"name": name, "class": element_class.number, "content_hex": data.hex()}
    return case | {"id": content_id(data).hex(), "hex": encode(element_class, data).hex()}


def _words_with_even_high_bytes(element_class: ElementClass) -> bytes:
    """Words whose highest bytes are all alike, as exponents are, and whose lowest are not."""
    words = bytearray(content(830 + element_class.number, 200 * element_class.width))
    words[element_class.width - 1 :: element_class.width] = bytes([0x3C]) * 200
    return bytes(words)


def cases() -> list[dict]:
    out = []
    for element_class in CLASSES.values():
        seed = 820 + element_class.number
        out.append(_small("raw planes", element_class, content(seed, 11 * element_class.width)))
    for element_class in CLASSES.values():
        out.append(_small("zstd planes", element_class, bytes([0x3C]) * (60 * element_class.width)))
    for name in ("BF16", "F32", "F64", "I32"):
        element_class = CLASS_NAMED[name]
        out.append(_small("raw and zstd planes", element_class, _words_with_even_high_bytes(element_class)))
    for name in ("U8", "BF16", "F32", "F64"):
        out.append(_small("no elements", CLASS_NAMED[name], b""))
        out.append(_small("one element", CLASS_NAMED[name], content(840, CLASS_NAMED[name].width)))
    out.append(_small("a file", CLASS_NAMED["U8"], b'{"model_type": "llama", "tie_word_embeddings": true}\n'))
    for name, class_name, recipe in _GENERATED:
        element_class = CLASS_NAMED[class_name]
        case = {"name": name, "class": element_class.number, "generated": recipe}
        data = generated(element_class, recipe)
        out.append(case | {"id": content_id(data).hex(), "file": f"bases/{name}.dbs"})
    return out


def files() -> dict[str, bytes]:
    """The encoded bytes of the cases that stand in files of their own."""
    return {
        f"bases/{name}.dbs": encode(CLASS_NAMED[class_name], generated(CLASS_NAMED[class_name], recipe), 19)
        for name, class_name, recipe in _GENERATED
    }
