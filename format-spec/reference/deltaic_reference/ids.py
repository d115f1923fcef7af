"""BLAKE3 ids of contents, objects and patches (SPEC §3). An id is 32 bytes and prints as 64 hex digits."""

from __future__ import annotations

from blake3 import blake3


def content_id(content: bytes) -> bytes:
    """TensorId or FileId: plain BLAKE3 of the content."""
    return blake3(content).digest()


def derived_id(kind: str, data: bytes) -> bytes:
    """SchemaId, TreeId, CommitId, RefRecordId or PatchId; `kind` is the word in the context."""
    assert kind in {"schema", "tree", "commit", "ref", "patch"}
    return blake3(data, derive_key_context=f"deltaic 2026-11-30 {kind} v1").digest()
