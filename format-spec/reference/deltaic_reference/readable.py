"""JSON forms: objects for the vectors, patch sets and bases for `inspect`.

Ids are hex; integers that may exceed 2^53 are decimal strings.
"""

from __future__ import annotations

from collections import Counter

from . import base, patch_set
from .block import Parameters
from .ids import content_id
from .objects import Commit, OtherFile, Schema, StoredRef, Tensor, TensorContent, Tree
from .primitives import FormatError


def schema(value: Schema) -> dict:
    return {"files": [{"path": file.path, "tensors": [_tensor(t) for t in file.tensors]} for file in value.files]}


def _tensor(tensor: Tensor) -> dict:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype.name,
        "class": tensor.element_class.number,
        "shape": [str(dim) for dim in tensor.shape],
    }


def tree(value: Tree) -> dict:
    return {
        "schema": value.schema.hex(),
        "headers": [{"id": header.id.hex(), "length": header.length} for header in value.headers],
        "tensors": [_tensor_content(tensor) for tensor in value.tensors],
        "files": [_other_file(file) for file in value.files],
    }


def _tensor_content(tensor: TensorContent) -> dict:
    return {
        "id": tensor.id.hex(),
        "L": str(tensor.l_moment),
        "Q": str(tensor.q_moment),
        "patch": tensor.patch.hex() if tensor.patch is not None else None,
    }


def _other_file(file: OtherFile) -> dict:
    return {"path": file.path, "mode": file.mode, "size": str(file.size), "id": file.id.hex()}


def commit(value: Commit) -> dict:
    return {
        "tree": value.tree.hex(),
        "parents": [parent.hex() for parent in value.parents],
        "version": str(value.version),
        "time": str(value.time),
        "message": value.message,
        "metadata": [list(pair) for pair in value.metadata],
    }


def stored_ref(value: StoredRef) -> dict:
    record = value.record
    return {
        "repository": record.repository,
        "branch": record.branch,
        "commit": record.commit.hex(),
        "version": str(record.version),
        "time": str(record.time),
        "expiry": str(record.expiry),
        "signatures": [{"key": s.public_key.hex(), "signature": s.signature.hex()} for s in value.signatures],
    }


def summary(data: bytes) -> dict:
    """What a patch set or base holds, told apart by the magic."""
    if data.startswith(patch_set.MAGIC):
        return _patch_set_summary(data)
    if data.startswith(base.MAGIC):
        return _base_summary(data)
    raise FormatError("neither a patch set nor a base: the magic is unknown")


def _parameters(value: Parameters) -> dict:
    positions, values = value.positions.name.lower(), value.values.name.lower()
    return {"positions": positions, "g": value.g, "values": values, "e": value.e, "m": value.m}


def _patch_set_summary(data: bytes) -> dict:
    coded = patch_set.parse(data)
    members = patch_set.decode(data).members
    codings: Counter[str] = Counter()
    for block in coded.blocks:
        parameters, _ = coded.decode_block(block)
        codings[f"{parameters.positions.name}+{parameters.values.name}".lower()] += 1
    return {
        "format": "patch set",
        "version": 1,
        "class": coded.element_class.name,
        "b": coded.virtual.b,
        "bytes": len(data),
        "defaults": _parameters(coded.defaults),
        "members": len(members),
        "members_with_changes": sum(len(member.changes) > 0 for member in members),
        "elements": sum(member.elements for member in members),
        "changes": sum(len(member.changes) for member in members),
        "virtual_length": coded.virtual.length,
        "blocks": coded.virtual.blocks,
        "blocks_with_changes": len(coded.blocks),
        "codings": dict(sorted(codings.items())),
    }


def _base_summary(data: bytes) -> dict:
    coded = base.parse(data)
    content = b"".join(base.decode_blocks(coded))
    planes = [plane for block in coded.blocks for plane in block]
    return {
        "format": "base",
        "version": 1,
        "class": coded.element_class.name,
        "b": base.B,
        "bytes": len(data),
        "elements": coded.elements,
        "content_bytes": len(content),
        "content_id": content_id(content).hex(),
        "blocks": len(coded.blocks),
        "raw_planes": sum(plane.coding == 0 for plane in planes),
        "zstd_planes": sum(plane.coding == 1 for plane in planes),
    }
