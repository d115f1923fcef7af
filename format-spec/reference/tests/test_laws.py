"""Laws that hold for all contents, on random ones of every class."""

from __future__ import annotations

import numpy as np
import pytest

from deltaic_reference import FormatError, base, patch_set
from deltaic_reference.block import Parameters, Positions, Values
from deltaic_reference.classes import CLASSES, ElementClass
from deltaic_reference.moments import l_difference, moments, q_difference_from_new, q_difference_from_old
from deltaic_reference.patch import Changes, Patch, apply, compose, diff, negate, patch_id
from deltaic_reference.patch_set import Member, PatchSet
from deltaic_reference.primitives import MASK64

every_class = pytest.mark.parametrize("element_class", CLASSES.values(), ids=lambda c: c.name)
ELEMENTS = 150_000


def _contents(element_class: ElementClass, count: int) -> list[bytes]:
    """Contents that each differ from the one before in some words, at times back to an earlier word."""
    random = np.random.default_rng(element_class.number)
    words = np.frombuffer(random.bytes(ELEMENTS * element_class.width), f"<u{element_class.width}")
    first = words.copy()
    out = [first.tobytes()]
    for _ in range(count - 1):
        words = words.copy()
        places = random.integers(0, 3000, 400) * 50
        words[places] = np.frombuffer(random.bytes(400 * element_class.width), words.dtype)
        back = random.integers(0, 3000, 400) * 50
        words[back] = first[back]
        out.append(words.tobytes())
    return out


@every_class
def test_ord_has_an_inverse(element_class):
    words = element_class.words(_contents(element_class, 1)[0])
    assert (element_class.words_of_ord(element_class.ord(words)) == words).all()


@every_class
def test_apply_undoes_diff(element_class):
    m, n = _contents(element_class, 2)
    patch = diff(element_class, m, n)
    assert len(patch.changes) > 100
    assert apply(patch, m) == n
    assert apply(negate(patch), n) == m
    with pytest.raises(FormatError):
        apply(patch, n)


@every_class
def test_compose_is_the_diff(element_class):
    m, x, n = _contents(element_class, 3)
    composed, direct = compose(diff(element_class, m, x), diff(element_class, x, n)), diff(element_class, m, n)
    assert composed == direct
    assert patch_id(composed) == patch_id(direct)


@every_class
def test_negate_undoes(element_class):
    m, n = _contents(element_class, 2)
    patch = diff(element_class, m, n)
    assert negate(patch) == diff(element_class, n, m)
    assert negate(negate(patch)) == patch
    assert compose(patch, negate(patch)) == diff(element_class, m, m)
    assert patch_id(negate(patch)) != patch_id(patch)


def test_patches_that_do_not_meet():
    element_class = CLASSES[8]
    m, x, n = _contents(element_class, 3)
    with pytest.raises(FormatError):
        compose(diff(element_class, m, x), diff(element_class, m, n))
    with pytest.raises(FormatError):
        diff(element_class, m, n[:-2])
    with pytest.raises(FormatError):
        diff(element_class, m[:-1], n[:-1])


def test_changes_that_no_patch_has():
    bf16 = CLASSES[8]
    for pairs in ([(1, 0)], [(1, 65_536)], [(2, 1), (1, 1)], [(1, 1), (1, 2)], [(9, 1)], [(-1, 1)]):
        with pytest.raises(FormatError):
            Patch(bf16, bytes(32), bytes(32), 9, Changes.of(pairs))
    beyond = Patch(bf16, diff(bf16, b"\xff\x7f", b"\xff\x7f").from_id, bytes(32), 1, Changes.of([(0, 1)]))
    with pytest.raises(FormatError, match="leads out"):
        apply(beyond, b"\xff\x7f")


@every_class
def test_moments_of_a_patch(element_class):
    m, n = _contents(element_class, 2)
    changes = diff(element_class, m, n).changes
    (l_old, q_old), (l_new, q_new) = moments(element_class, m), moments(element_class, n)
    old, new = (element_class.words(content)[changes.index] for content in (m, n))
    assert l_difference(changes) == (l_new - l_old) & MASK64
    assert q_difference_from_old(element_class, changes, old) == (q_new - q_old) & MASK64
    assert q_difference_from_new(element_class, changes, new) == (q_new - q_old) & MASK64
    lost = Changes(changes.index[1:], changes.shift[1:])
    assert l_difference(lost) != l_difference(changes)


def _random_parameters(random: np.random.Generator) -> Parameters:
    return Parameters(
        Positions(random.integers(2)),
        int(random.integers(19)),
        Values(random.integers(3)),
        int(random.integers(19)),
        int(random.integers(63)),
    )


@every_class
@pytest.mark.parametrize("b", patch_set.BLOCK_LOGS)
def test_patch_set_keeps_its_members(element_class, b):
    random = np.random.default_rng(100 * element_class.number + b)
    members = []
    for elements in [1, 2, 70, 300, 300, 300, 65_536, 5, 90_000, 262_145, 262_144, 40]:
        index = np.unique(random.integers(0, elements, min(elements // 3, 60)))
        bits = random.integers(1, 8 * element_class.width, len(index))
        size = 1 + (random.integers(0, 2**63, len(index)) >> (63 - bits))
        shift = np.minimum(size, element_class.largest_shift) * random.choice([-1, 1], len(index))
        members.append(Member(elements, Changes(index, shift)))
    held = PatchSet(element_class, b, members)
    defaults = _random_parameters(random)
    own = {number: _random_parameters(random) for number in range(0, 20, 2)}
    assert patch_set.decode(patch_set.encode(held, defaults, own)) == held


@every_class
def test_base_keeps_its_content(element_class):
    content = np.random.default_rng(9).bytes((2**18 + 77) * element_class.width)
    assert base.decode(base.encode(element_class, content)) == (element_class, content)
