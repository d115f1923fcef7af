#!/usr/bin/env python3
"""Expand this data set into one checkpoint folder per version: OUT/v000, OUT/v001, ...

    expand.py SET OUT

Needs only Python's standard library. SET is this folder. Every file written is compared with SHA256SUMS.

base.xz holds all words of version 0 (bf16, rotated left by one bit): the high bytes of all, then the low bytes.
step-NN.xz holds what changed since: u32 count, count x u32 distance from the changed word before (the first from -1),
count x u16 new word. Words are numbered through all tensors in the order of set.json.
"""
import argparse
import array
import hashlib
import json
import lzma
import math
import struct
import sys
from pathlib import Path


def unpacked(path: Path) -> bytes:
    return lzma.decompress(path.read_bytes())


def base_words(data: bytes) -> array.array:
    half = len(data) // 2
    mixed = bytearray(len(data))
    mixed[1::2], mixed[0::2] = data[:half], data[half:]
    words = array.array("H", bytes(mixed))
    if sys.byteorder == "big":
        words.byteswap()
    return array.array("H", (word >> 1 | (word & 1) << 15 for word in words))


def apply_step(words: array.array, data: bytes) -> None:
    (count,) = struct.unpack_from("<I", data)
    gaps = struct.unpack_from(f"<{count}I", data, 4)
    news = struct.unpack_from(f"<{count}H", data, 4 + 4 * count)
    index = -1
    for gap, new in zip(gaps, news):
        index += gap
        words[index] = new


def safetensors(tensors: list[dict], contents: list[bytes]) -> bytes:
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for tensor, content in zip(tensors, contents):
        end = offset + len(content)
        header[tensor["name"]] = {"dtype": tensor["dtype"], "shape": tensor["shape"], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(contents)


def checkpoint(described: dict, words: array.array) -> dict[str, bytes]:
    """The files of one version."""
    raw, position, files, weight_map = words, 0, {}, {}
    if sys.byteorder == "big":
        raw = array.array("H", words)
        raw.byteswap()
    for file in described["files"]:
        contents = []
        for tensor in file["tensors"]:
            count = math.prod(tensor["shape"])
            contents.append(raw[position : position + count].tobytes())
            position += count
            weight_map[tensor["name"]] = file["name"]
        files[file["name"]] = safetensors(file["tensors"], contents)
    index = {"metadata": {"total_size": 2 * position}, "weight_map": weight_map}
    texts = described["extra"] | {"model.safetensors.index.json": index}
    return files | {name: json.dumps(text, indent=2).encode() + b"\n" for name, text in texts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=Path, help="this folder")
    parser.add_argument("out", type=Path, help="where the versions go")
    parser.add_argument("--write-sums", action="store_true", help="write SHA256SUMS instead of comparing with it")
    arguments = parser.parse_args()
    described = json.loads((arguments.set / "set.json").read_text())
    sums_path = arguments.set / "SHA256SUMS"
    words = base_words(unpacked(arguments.set / "base.xz"))
    lines = []
    for version in range(described["versions"]):
        if version:
            apply_step(words, unpacked(arguments.set / f"step-{version:02}.xz"))
        for name, content in checkpoint(described, words).items():
            path = arguments.out / f"v{version:03}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            lines.append(f"{hashlib.sha256(content).hexdigest()}  v{version:03}/{name}\n")
    if arguments.write_sums:
        sums_path.write_text("".join(lines))
    elif sums_path.read_text() != "".join(lines):
        sys.exit(f"{arguments.out}: what was expanded differs from {sums_path}")


if __name__ == "__main__":
    main()
