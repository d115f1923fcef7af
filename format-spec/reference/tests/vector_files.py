"""The golden vectors, and the reader of each kind of bytes in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from deltaic_reference import base, objects, patch_set
from deltaic_reference.primitives import ByteReader

REPOSITORY = Path(__file__).resolve().parents[3]
VECTORS = REPOSITORY / "format-spec" / "vectors"


def cases(name: str) -> list[dict]:
    return json.loads((VECTORS / name).read_text(encoding="utf-8"))


def label(case: dict) -> str:
    """How a case is called in a test's id."""
    words = case.get("name") or case.get("why") or str(case.get("content_hex", case.get("generated")))[:40]
    return "-".join(str(part) for part in (case.get("kind"), case.get("class"), words) if part is not None)


def _varint(data: bytes) -> int:
    reader = ByteReader(data)
    value = reader.varint("varint")
    reader.end("varint")
    return value


def reader_of(case: dict) -> Callable[[bytes], object]:
    """The function that decodes a case's "hex"."""
    if case["kind"] == "tree":
        schema = objects.decode_schema(bytes.fromhex(case["schema_hex"]))
        return lambda data: objects.decode_tree(data, schema)
    return {
        "varint": _varint,
        "patch-set": patch_set.decode,
        "base": base.decode,
        "schema": objects.decode_schema,
        "commit": objects.decode_commit,
        "ref": objects.decode_stored_ref,
    }[case["kind"]]


def writer_of(case: dict) -> Callable[[object], bytes]:
    """The inverse of `reader_of` for objects, which have only one form."""
    if case["kind"] == "tree":
        schema = objects.decode_schema(bytes.fromhex(case["schema_hex"]))
        return lambda tree: objects.encode_tree(tree, schema)
    return {
        "schema": objects.encode_schema,
        "commit": objects.encode_commit,
        "ref": objects.encode_stored_ref,
    }[case["kind"]]


def encoded_cases() -> list[dict]:
    """Every valid case that holds encoded bytes in "hex", with its kind."""
    sets = [case | {"kind": "patch-set"} for case in cases("patch-sets.json")]
    bases = [case | {"kind": "base"} for case in cases("bases.json") if "hex" in case]
    return sets + bases + cases("objects.json")
