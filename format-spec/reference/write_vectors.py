#!/usr/bin/env python3
"""Write the golden vectors into `../vectors`, from this reference alone; the same bytes every time."""

from __future__ import annotations

import json
from pathlib import Path

from deltaic_reference.moments import moment_primes
from vector_cases import all_json, bases

VECTORS = Path(__file__).resolve().parent.parent / "vectors"


def contents() -> dict[str, bytes]:
    """File name below `vectors/` to bytes. A JSON file is an array with one case per line."""
    out = {"moment-primes.txt": "".join(f"{prime}\n" for prime in moment_primes()).encode()}
    for name, cases in all_json().items():
        lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases)
        out[name] = f"[\n{lines}\n]\n".encode()
    return out | bases.files()


def main() -> None:
    for name, data in contents().items():
        path = VECTORS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


if __name__ == "__main__":
    main()
