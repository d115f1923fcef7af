#!/usr/bin/env python3
"""Write facts.json: what changes between versions, and what ideal coders would take for it.

    facts.py VERSIONS [PAIR ...]        (a folder with v000, v001, ... from expand.py; needs numpy)

Per pair M-N: changed elements in all and per tensor, the shares of +1 and -1 shifts, the sum of all shifts (in `ord`
order), and two lower bounds in bytes: `blind_bound_bytes` for a coder that does not look at the weights (per tensor
n H(k/n) for the positions, and the empirical entropy of the shifts), `sighted_bound_bytes` for one that conditions both
on the exponent of the old weight.
"""
import json
import sys
from pathlib import Path

import numpy as np

from make_set import tensors

PAIRS = ["0-1", "1-2", "2-3", "0-3", "3-0"]


def ord_of(words: np.ndarray) -> np.ndarray:
    words = words.astype(np.int64)
    return np.where(words & 0x8000, 0xFFFF - words, words | 0x8000)


def position_bits(elements: int, changed: int) -> float:
    if changed in (0, elements):
        return 0.0
    p = changed / elements
    return -elements * (p * np.log2(p) + (1 - p) * np.log2(1 - p))


def entropy_bits(values: np.ndarray) -> float:
    if not len(values):
        return 0.0
    counts = np.unique(values, return_counts=True)[1]
    return float(-(counts * np.log2(counts / len(values))).sum())


def facts(old: dict[str, dict], new: dict[str, dict]) -> dict:
    blind = sighted = 0.0
    per_tensor, all_shifts, all_exponents, elements = {}, [], [], 0
    for name, tensor in old.items():
        before, after = tensor["words"], new[name]["words"]
        changed = before != after
        exponents = (before >> 7) & 0xFF
        per_tensor[name] = int(changed.sum())
        elements += len(before)
        blind += position_bits(len(before), per_tensor[name])
        for exponent in np.unique(exponents[changed]):
            inside = exponents == exponent
            sighted += position_bits(int(inside.sum()), int(changed[inside].sum()))
        all_shifts.append((ord_of(after) - ord_of(before))[changed])
        all_exponents.append(exponents[changed])
    shifts, exponents = np.concatenate(all_shifts), np.concatenate(all_exponents)
    blind += entropy_bits(shifts)
    sighted += sum(entropy_bits(shifts[exponents == exponent]) for exponent in np.unique(exponents))
    return {
        "elements": elements,
        "changed": len(shifts),
        "bytes": 2 * elements,
        "tensors": per_tensor,
        "density": len(shifts) / elements,
        "plus_one": float((shifts == 1).mean()),
        "minus_one": float((shifts == -1).mean()),
        "sum_of_steps": int(shifts.sum()),
        "blind_bound_bytes": round(blind / 8),
        "sighted_bound_bytes": round(sighted / 8),
    }


def main() -> None:
    folder, pairs = Path(sys.argv[1]), sys.argv[2:] or PAIRS
    versions = {v: tensors(folder / f"v{int(v):03}") for pair in pairs for v in pair.split("-")}
    result = {pair: facts(*(versions[v] for v in pair.split("-"))) for pair in pairs}
    out = Path(__file__).resolve().parent / "facts.json"
    out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
