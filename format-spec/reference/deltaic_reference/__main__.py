"""`python -m deltaic_reference inspect FILE`: a JSON summary of a patch set or base."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .primitives import FormatError
from .readable import summary


def main() -> int:
    parser = argparse.ArgumentParser(prog="deltaic_reference", description="Looks into Deltaic files.")
    commands = parser.add_subparsers(dest="command", required=True)
    inspect = commands.add_parser("inspect", help="print a JSON summary of a patch set or base")
    inspect.add_argument("file", type=Path)
    arguments = parser.parse_args()
    try:
        print(json.dumps(summary(arguments.file.read_bytes()), indent=2))
    except (FormatError, OSError) as error:
        print(f"{arguments.file}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
