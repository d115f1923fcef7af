"""The cases of the golden vectors, one module per file; `all_json` gathers them."""

from __future__ import annotations

from . import bases, moments, objects, ords, patch_sets, patches, refused


def all_json() -> dict[str, list[dict]]:
    """File name to cases."""
    return {
        "ord.json": ords.cases(),
        "moments.json": moments.cases(),
        "patches.json": patches.cases(),
        "patch-sets.json": patch_sets.cases(),
        "bases.json": bases.cases(),
        "objects.json": objects.cases(),
        "refused.json": refused.cases(),
    }
