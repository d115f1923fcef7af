#!/usr/bin/env python3
"""Make this data set from expanded versions of the whole policy: base.xz, step-NN.xz, set.json.

    make_set.py VERSIONS        (a folder with v000, v001, ...; needs numpy)

Afterwards run `expand.py . OUT --write-sums` and `facts.py OUT`.
"""
import json
import lzma
import struct
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
VERSIONS = 4
# All of layer 0, and of layer 1 all but the MLP's three large matrices: with them the set would exceed 8 MB.
SHARDS = {
    "model-00001-of-00002.safetensors": lambda name: ".layers.0." in name,
    "model-00002-of-00002.safetensors": lambda name: ".layers.1." in name and ".mlp." not in name,
}
EXTRA = {
    "config.json": {"architectures": ["LlamaForCausalLM"], "hidden_size": 576, "num_hidden_layers": 2},
}


def tensors(version: Path) -> dict[str, dict]:
    """Name to dtype, shape and words, in the order of the data."""
    out = {}
    for path in sorted(version.glob("*.safetensors")):
        data = path.read_bytes()
        start = 8 + struct.unpack_from("<Q", data)[0]
        for name, entry in json.loads(data[8:start]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                words = np.frombuffer(data[start + begin : start + end], "<u2")
                out[name] = {"dtype": entry["dtype"], "shape": entry["shape"], "words": words}
    return out


def write(name: str, data: bytes) -> None:
    (HERE / name).write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))


def main() -> None:
    versions = [tensors(Path(sys.argv[1]) / f"v{v:03}") for v in range(VERSIONS)]
    files = [
        {
            "name": shard,
            "tensors": [
                {"name": name, "dtype": tensor["dtype"], "shape": tensor["shape"]}
                for name, tensor in versions[0].items()
                if belongs(name)
            ],
        }
        for shard, belongs in SHARDS.items()
    ]
    names = [tensor["name"] for file in files for tensor in file["tensors"]]
    base = np.concatenate([versions[0][name]["words"] for name in names])
    # The sign goes to the lowest bit, so that the high bytes are exponents; they compress, low bytes hardly.
    rotated = (base << 1) | (base >> 15)
    write("base.xz", (rotated >> 8).astype("u1").tobytes() + (rotated & 0xFF).astype("u1").tobytes())
    for step in range(1, VERSIONS):
        new = np.concatenate([versions[step][name]["words"] for name in names])
        changed = np.flatnonzero(new != base)
        gaps = np.diff(changed, prepend=-1).astype("<u4")
        write(f"step-{step:02}.xz", struct.pack("<I", len(changed)) + gaps.tobytes() + new[changed].tobytes())
        base = new
    described = {"versions": VERSIONS, "files": files, "extra": EXTRA}
    (HERE / "set.json").write_text(json.dumps(described, indent=1) + "\n")


if __name__ == "__main__":
    main()
