"""Every golden vector is read back; the whole set is written again to the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard

import write_vectors
from deltaic_reference import FormatError, base, ed25519, objects, patch_set, readable
from deltaic_reference.classes import CLASSES
from deltaic_reference.ids import content_id, derived_id
from deltaic_reference.moments import moments
from deltaic_reference.patch import Changes, Patch, canonical_bytes, diff, patch_id
from vector_cases.stream import generated
from vector_files import VECTORS, cases, label, reader_of, writer_of


def _parametrize(name: str):
    return pytest.mark.parametrize("case", cases(name), ids=label)


def _changes(case: dict) -> Changes:
    return Changes.of([(index, int(shift)) for index, shift in case["changes"]])


def _content(case: dict) -> bytes:
    if "generated" in case:
        return generated(CLASSES[case["class"]], case["generated"])
    return bytes.fromhex(case["content_hex"])


@_parametrize("ord.json")
def test_ord(case):
    element_class = CLASSES[case["class"]]
    words, ords = zip(*case["words"])
    array = np.array([int(word, 16) for word in words], f"<u{element_class.width}")
    assert element_class.ord(array).tolist() == [int(value) for value in ords]


@_parametrize("moments.json")
def test_moments(case):
    found = moments(CLASSES[case["class"]], _content(case))
    assert found == (int(case["L"]), int(case["Q"]))


@_parametrize("patches.json")
def test_patch(case):
    element_class, ids = CLASSES[case["class"]], (bytes.fromhex(case["from"]), bytes.fromhex(case["to"]))
    patch = Patch(element_class, *ids, case["elements"], _changes(case))
    assert canonical_bytes(patch).hex() == case["canonical_hex"]
    assert patch_id(patch).hex() == case["patch_id"]
    if "old_hex" in case:
        assert diff(element_class, bytes.fromhex(case["old_hex"]), bytes.fromhex(case["new_hex"])) == patch


@_parametrize("patch-sets.json")
def test_patch_set(case):
    held = patch_set.decode(bytes.fromhex(case["hex"]))
    assert (held.element_class.number, held.b) == (case["class"], case["b"])
    assert [(m.elements, m.changes) for m in held.members] == [(m["elements"], _changes(m)) for m in case["members"]]


@_parametrize("bases.json")
def test_base(case):
    data = (VECTORS / case["file"]).read_bytes() if "file" in case else bytes.fromhex(case["hex"])
    element_class, content = base.decode(data)
    assert element_class.number == case["class"]
    assert content == _content(case)
    assert content_id(content).hex() == case["id"]


@_parametrize("objects.json")
def test_object(case):
    data = bytes.fromhex(case["hex"])
    held = reader_of(case)(data)
    show = {"schema": readable.schema, "tree": readable.tree, "commit": readable.commit, "ref": readable.stored_ref}
    assert show[case["kind"]](held) == case["value"]
    assert writer_of(case)(held) == data
    if case["kind"] == "ref":
        record = bytes.fromhex(case["record_hex"])
        assert objects.encode_ref_record(held.record) == record
        assert objects.ref_record_id(held.record).hex() == case["id"]
        assert all(ed25519.verify(s.public_key, record, s.signature) for s in held.signatures)
    else:
        assert derived_id(case["kind"], data).hex() == case["id"]


def test_first_parent_sets_the_version():
    parent, child = (objects.Commit(bytes(32), (bytes(32),), version, 0, "", ()) for version in (6, 7))
    assert objects.decode_commit(objects.encode_commit(child), parent) == child
    with pytest.raises(FormatError):
        objects.decode_commit(objects.encode_commit(child), child)


@pytest.mark.skipif(zstandard.__version__ != "0.25.0", reason="the vectors' zstd frames come from zstandard 0.25.0")
def test_vectors_are_written_to_the_same_bytes():
    written = write_vectors.contents()
    assert [name for name, data in written.items() if (VECTORS / name).read_bytes() != data] == []
    assert sum(map(len, written.values())) < 2_000_000
