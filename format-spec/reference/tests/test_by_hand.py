"""Expected values from elsewhere: worked by hand from SPEC.md, published test vectors, numpy's floats."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from deltaic_reference import FormatError, base, ed25519, moments, names, patch_set
from deltaic_reference.bits import BitReader, BitWriter
from deltaic_reference.block import Parameters, Values
from deltaic_reference.classes import CLASS_NAMED, CLASSES, DTYPE_NAMED, DTYPES, class_of_tensor
from deltaic_reference.ids import content_id, derived_id
from deltaic_reference.patch import Changes, Patch, canonical_bytes
from deltaic_reference.patch_set import Member, PatchSet
from deltaic_reference.primitives import ByteReader, mix, mix_array, varint
from vector_files import VECTORS

BF16 = CLASS_NAMED["BF16"]


def test_varint():
    known = {0: "00", 127: "7f", 128: "8001", 300: "ac02", 2**64 - 1: "ff" * 9 + "01"}
    for value, expected in known.items():
        assert varint(value).hex() == expected
        assert ByteReader(bytes.fromhex(expected)).varint("value") == value


def test_mix_is_splitmix64():
    # The first outputs of splitmix64 with seed 0.
    golden = 0x9E3779B97F4A7C15
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    inputs = [k * golden % 2**64 for k in (1, 2, 3)]
    assert [mix(z) for z in inputs] == expected
    assert mix_array(np.array(inputs, np.uint64)).tolist() == expected


def test_ids():
    # The first is what `b3sum` prints for nothing; derive-key mode must differ from it.
    assert content_id(b"").hex() == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    kinds = ["schema", "tree", "commit", "ref", "patch"]
    assert len({derived_id(kind, b"") for kind in kinds} | {content_id(b"")}) == 6


def test_ed25519_of_rfc_8032():
    secret = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    key = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    signature = bytes.fromhex(
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555"
        "fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
    )
    assert ed25519.public_key(secret) == key
    assert ed25519.sign(secret, b"") == signature
    assert ed25519.verify(key, b"", signature)
    assert not ed25519.verify(key, b"x", signature)


def test_bit_stream():
    # field 5 in 3 bits: 1 0 1; Rice(5, 1): 0 0 1 then 1; EG(4, 1): y = 6 = 110b: 0 1 then low bits 10b: 0 1.
    # In order 1 0 1 0 0 1 1 0 | 1 0 1, so the bytes are 01100101b and 101b.
    written = BitWriter().field(5, 3).rice(5, 1).exp_golomb(4, 1).finish()
    assert written == bytes([0b01100101, 0b101])
    bits = BitReader(written)
    assert [bits.field(3, ""), bits.rice(1, 9, ""), bits.exp_golomb(1, "")] == [5, 5, 4]
    bits.end("")


def test_exp_golomb_of_order_3():
    # The number of exceptions 0 is y = 8 = 1000b: a one bit, then three zeros.
    assert BitWriter().exp_golomb(0, 3).finish() == bytes([0b0001])


@pytest.mark.parametrize("name", ["F16", "F32", "F64"])
def test_ord_follows_the_floats(name):
    element_class = CLASS_NAMED[name]
    words = np.random.default_rng(1).integers(0, 256, 8000, np.uint8).tobytes()
    floats = np.frombuffer(words, f"<f{element_class.width}")
    ordered = floats[np.argsort(element_class.ord(element_class.words(words)), kind="stable")]
    first, last = np.isnan(ordered).argmin(), len(ordered) - np.isnan(ordered)[::-1].argmin()
    assert not np.isnan(ordered[first:last]).any()
    assert (np.diff(ordered[first:last].astype(np.float64)) >= 0).all()


@pytest.mark.parametrize("name", ["I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64"])
def test_ord_follows_the_integers(name):
    element_class = CLASS_NAMED[name]
    words = np.random.default_rng(2).integers(0, 256, 800, np.uint8).tobytes()
    numbers = np.frombuffer(words, f"<{name[0].lower()}{element_class.width}").tolist()
    ords = element_class.ord(element_class.words(words)).tolist()
    assert [x for _, x in sorted(zip(ords, numbers))] == sorted(numbers)
    assert max(ords) < 1 << 8 * element_class.width


def test_ord_of_bf16_by_hand():
    words = np.array([0xFFFF, 0xFF80, 0xBF80, 0x8000, 0x0000, 0x0001, 0x3F80, 0x7FFF], np.uint16)
    expected = [0, 0x7F, 0x407F, 0x7FFF, 0x8000, 0x8001, 0xBF80, 0xFFFF]
    assert BF16.ord(words).tolist() == expected


def test_classes_of_dtypes():
    assert {dtype.name: dtype.element_class.name for dtype in DTYPES.values()} == {
        **{name: "U8" for name in ("BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "F8_E8M0")},
        **{name: name for name in ("I8", "F8_E5M2", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16", "U16")},
        **{name: name for name in ("F16", "BF16", "I32", "U32", "F32", "F64", "I64", "U64")},
        "C64": "F32",
    }
    chosen = {
        ("I32", "layer.0.qweight"): "U8",
        ("I32", "qzeros"): "U8",
        ("U64", "a.weight_packed"): "U8",
        ("I16", "a.weight_zero_point_packed"): "U8",
        ("I32", "a.qweight.scale"): "I32",
        ("I32", "a.myqweight"): "I32",
        ("BF16", "a.qweight"): "BF16",
    }
    for (dtype, name), expected in chosen.items():
        assert class_of_tensor(DTYPE_NAMED[dtype], name).name == expected


def test_range_of_shifts():
    ranges = {"U8": 255, "BF16": 65_535, "F32": 2**32 - 1}
    for name, largest in ranges.items():
        assert (CLASS_NAMED[name].smallest_shift, CLASS_NAMED[name].largest_shift) == (-largest, largest)
    assert (CLASS_NAMED["I64"].smallest_shift, CLASS_NAMED["I64"].largest_shift) == (-(2**63), 2**63 - 1)


def test_canonical_bytes_by_hand():
    patch = Patch(BF16, b"\x11" * 32, b"\x22" * 32, 200_000, Changes.of([(5, 1), (65_535, -1), (131_073, 65_535)]))
    assert canonical_bytes(patch).hex() == (
        "08" + "11" * 32 + "22" * 32 + "400d030000000000"
        "0000000000000000" "02000000" "0500" "ffff" "01000000" "ffffffff"
        "0200000000000000" "01000000" "0100" "ffff0000"
    )  # fmt: skip


def test_moment_primes():
    listed = [int(line) for line in (VECTORS / "moment-primes.txt").read_text().splitlines()]
    assert listed == list(moments.moment_primes())
    sieve = np.ones(65_537, bool)
    sieve[:2] = False
    for k in range(2, 257):
        sieve[k * k :: k] &= not sieve[k]
    small = np.flatnonzero(sieve)

    def is_prime(n: int) -> bool:
        return bool((n % small).all())

    taken: set[int] = set()
    for k, prime in enumerate(listed):
        start = 2**31 + (mix(k + 0x9E3779B97F4A7C15) >> 33)
        assert is_prime(prime) and start <= prime < 2**32 and prime not in taken
        assert not any(is_prime(n) and n not in taken for n in range(start, prime))
        taken.add(prime)
    assert len(listed) == 512


@pytest.mark.parametrize("element_class", CLASSES.values(), ids=lambda c: c.name)
def test_moments_in_plain_integers(element_class):
    content = np.random.default_rng(3).integers(0, 256, 1100 * element_class.width, np.uint8).tobytes()
    width, sign = element_class.width, element_class.sign
    l_moment = q_moment = 0
    for i in range(1100):
        word = int.from_bytes(content[i * width : (i + 1) * width], "little")
        if element_class.order == "float" and word & sign:
            word = ~word & 2 * sign - 1
        elif element_class.order != "unsigned":
            word ^= sign
        r = (mix(i // 512 + 0x9E3779B97F4A7C15) | 1) * moments.moment_primes()[i % 512]
        l_moment += r * word
        q_moment += r * (word * word if width <= 2 else mix(word))
    assert moments.moments(element_class, content) == (l_moment % 2**64, q_moment % 2**64)


def test_patch_set_by_hand():
    members = [Member(4, Changes()), Member(10, Changes.of([(2, 1), (5, -3)]))]
    data = patch_set.encode(PatchSet(BF16, 16, members), Parameters(g=2, m=1))
    # 20 bits of parameters: g = 2 at bit 2, m = 1 at bit 14. Members in two runs. P = 1 = B, so no bitmap.
    start = "8944" "50530d0a1a0a" "01" "01" "08" "10" "00" "084000" "02" "0401" "0a01" "01" "02"  # fmt: skip
    # Virtual indexes 6 and 9: bit 0 for the defaults; Rice(6, 2) 0 1 0 1; Rice(2, 2) 1 0 1; signs 0 1;
    # one exception EG(1, 3), y = 9 = 1001b: 1 1 0 0; at rank 1, Rice(1, 0) 0 1; EG(1, 1), y = 3 = 11b: 1 1.
    # In order 0 0 1 0 1 1 0 1 | 0 1 1 1 0 0 0 1 | 1 1.
    assert data.hex() == start + "03" + "b4" "8e" "03"  # fmt: skip


def test_magnitudes_by_hand():
    members = [Member(3, Changes.of([(0, 1), (2, -2)]))]
    data = patch_set.encode(PatchSet(BF16, 17, members), Parameters(), {0: Parameters(values=Values.MAGNITUDES)})
    # bit 1 for own parameters; 20 bits with value coding 1 at bit 7; Rice(0, 0) 1; Rice(1, 0) 0 1; signs 0 1;
    # EG(0, 0) 1; EG(1, 0), y = 2 = 10b: 0 1 0. In order 1 0000000 | 1 0000000 | 00000 1 0 1 | 0 1 1 0 1 0.
    assert data[-4:].hex() == "0101a016"


def test_base_by_hand():
    # 1.0 and -1.0 are 3F80 and BF80; rotated left by one 7F00 and 7F01.
    data = base.encode(BF16, bytes.fromhex("803f80bf"))
    header = "894442530d0a1a0a" + "01" + "08" + "12" + "0200000000000000"
    assert data.hex() == header + "0001" + "7f7f" + "0404" + "02000000"


def test_names():
    for name in ["a", "A.b_c-d", "0/1/2/3/4/5/6/7", "v1", "v", "_", "x" * 128]:
        names.check_repository(name)
    for name in ["main", "v1.0", "v1/x", "x/v1", "V1", "v1a"]:
        names.check_branch_or_tag(name)
    for name in ["v0", "v12", "v007"]:
        with pytest.raises(FormatError):
            names.check_branch_or_tag(name)
    for path in ["a", "a/b", "...", "a b", ".hidden", "a/.deltaic", "größe", "-x", "a/C:"]:
        names.check_path(path)


def _inspect(file: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "deltaic_reference", "inspect", str(file)]
    folder = str(Path(__file__).resolve().parents[1])
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": folder})


def test_inspect(tmp_path):
    file = tmp_path / "some"
    file.write_bytes(patch_set.encode(PatchSet(BF16, 16, [Member(9, Changes.of([(1, 1)])), Member(9, Changes())])))
    held = json.loads(_inspect(file).stdout)
    assert (held["format"], held["class"], held["members"], held["changes"]) == ("patch set", "BF16", 2, 1)
    assert held["codings"] == {"gaps+exceptions": 1}
    file.write_bytes(base.encode(BF16, b"abcd"))
    held = json.loads(_inspect(file).stdout)
    assert (held["format"], held["elements"], held["content_id"]) == ("base", 2, content_id(b"abcd").hex())
    file.write_bytes(b"else")
    refused = _inspect(file)
    assert refused.returncode == 1 and "magic" in refused.stderr
