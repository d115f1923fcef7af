"""Real checkpoints, and files that the Rust crate wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from deltaic_reference import base, patch_set
from deltaic_reference.block import Parameters
from deltaic_reference.classes import CLASSES, DTYPE_NAMED, ElementClass, class_of_tensor
from deltaic_reference.ids import content_id
from deltaic_reference.moments import l_difference, moments
from deltaic_reference.patch import Changes, Patch, diff_words, patch_id
from deltaic_reference.primitives import MASK64, PIECE_ELEMENTS
from vector_files import REPOSITORY, VECTORS

DATA = REPOSITORY.parent / "shared" / "data"
RUST = VECTORS / "rust"


def _tensors(folder: Path) -> dict[str, tuple[ElementClass, bytes]]:
    """Name to class and content of every tensor in a checkpoint folder."""
    out = {}
    for file in sorted(folder.glob("*.safetensors")):
        data = file.read_bytes()
        data_start = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:data_start]).items():
            if name != "__metadata__":
                start, end = (data_start + offset for offset in entry["data_offsets"])
                out[name] = class_of_tensor(DTYPE_NAMED[entry["dtype"]], name), data[start:end]
    return out


@pytest.fixture(scope="module")
def versions(tmp_path_factory) -> list[dict[str, tuple[ElementClass, bytes]]]:
    if not DATA.is_dir():
        pytest.skip("the real checkpoints are absent: no folder shared/data beside the repository")
    out = tmp_path_factory.mktemp("policy-bf16")
    command = [sys.executable, DATA / "expand.py", "policy-bf16", out, "--versions", "0-1"]
    subprocess.run(command, check=True, capture_output=True)
    return [_tensors(out / "v000"), _tensors(out / "v001")]


@pytest.fixture(scope="module")
def differences(versions) -> dict[str, Changes]:
    old, new = versions
    assert old.keys() == new.keys()
    return {
        name: diff_words(element_class, element_class.words(content), element_class.words(new[name][1]))
        for name, (element_class, content) in old.items()
    }


def test_changes_of_a_training_step(versions, differences):
    facts = json.loads((DATA / "policy-bf16" / "facts.json").read_text())["0-1"]
    shifts = np.concatenate([changes.shift for changes in differences.values()])
    assert sum(len(content) // kind.width for kind, content in versions[0].values()) == facts["elements"]
    assert {name: len(changes) for name, changes in differences.items()} == facts["tensors"]
    assert len(shifts) == facts["changed"]
    assert (shifts == 1).mean() == pytest.approx(facts["plus_one"], abs=1e-12)
    assert (shifts == -1).mean() == pytest.approx(facts["minus_one"], abs=1e-12)
    assert shifts.sum() == facts["sum_of_steps"]


def test_moments_of_a_training_step(versions, differences):
    for name in list(differences)[:12]:
        (element_class, old), (_, new) = (tensors[name] for tensors in versions)
        difference = moments(element_class, new)[0] - moments(element_class, old)[0]
        assert l_difference(differences[name]) == difference & MASK64


def test_patch_set_of_a_training_step(versions, differences):
    """All pieces of all tensors in one set."""
    members = []
    for name, changes in differences.items():
        element_class, content = versions[0][name]
        elements = len(content) // element_class.width
        for start in range(0, elements, PIECE_ELEMENTS):
            inside = slice(*np.searchsorted(changes.index, [start, start + PIECE_ELEMENTS]))
            piece = Changes(changes.index[inside] - start, changes.shift[inside])
            members.append(patch_set.Member(min(PIECE_ELEMENTS, elements - start), piece))
    held = patch_set.PatchSet(CLASSES[8], 18, members)
    data = patch_set.encode(held, Parameters(g=8, e=2, m=0))
    assert patch_set.decode(data) == held
    assert len(data) < 2.5 * sum(map(len, differences.values()))


def test_base_of_a_real_tensor(versions):
    element_class, content = versions[0]["model.layers.0.mlp.up_proj.weight"]
    data = base.encode(element_class, content)
    assert base.decode(data) == (element_class, content)
    assert len(data) < 0.9 * len(content)


def _manifest() -> dict:
    if not RUST.is_dir():
        pytest.skip("the files of the Rust crate are absent: no folder format-spec/vectors/rust")
    return json.loads((RUST / "manifest.json").read_text())


def _member_elements(listed: dict) -> int:
    """The elements of a member, whose entry may name those of its whole tensor."""
    elements = listed["elements"]
    if elements <= PIECE_ELEMENTS:
        return elements
    return min(PIECE_ELEMENTS, elements - listed["piece"] * PIECE_ELEMENTS)


def test_patch_sets_of_the_rust_crate():
    for entry in _manifest()["patch_sets"]:
        held = patch_set.decode((RUST / entry["file"]).read_bytes())
        assert held.element_class.number == entry["class"]
        assert [member.elements for member in held.members] == [_member_elements(m) for m in entry["members"]]
        for member, listed in zip(held.members, entry["members"]):
            if listed["whole"]:
                ids = bytes.fromhex(listed["from"]), bytes.fromhex(listed["to"])
                patch = Patch(held.element_class, *ids, member.elements, member.changes)
                assert patch_id(patch).hex() == listed["patch_id"]


def test_bases_of_the_rust_crate():
    for entry in _manifest()["bases"]:
        _, content = base.decode((RUST / entry["file"]).read_bytes())
        assert content_id(content).hex() == entry["id"]
