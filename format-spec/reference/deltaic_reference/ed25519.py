"""Ed25519 in plain integers, after RFC 8032 §5.1. For checking and for vectors; not constant-time."""

from __future__ import annotations

import hashlib

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_ROOT_OF_MINUS_ONE = pow(2, (_P - 1) // 4, _P)

Point = tuple[int, int, int, int]  # extended coordinates X, Y, Z, T with x = X/Z, y = Y/Z, xy = T/Z


def _add(a: Point, b: Point) -> Point:
    s = (a[1] - a[0]) * (b[1] - b[0])
    t = (a[1] + a[0]) * (b[1] + b[0])
    u = 2 * a[3] * b[3] * _D
    v = 2 * a[2] * b[2]
    e, f, g, h = t - s, v - u, v + u, t + s
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _multiply(scalar: int, point: Point) -> Point:
    total: Point = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            total = _add(total, point)
        point = _add(point, point)
        scalar >>= 1
    return total


def _compress(point: Point) -> bytes:
    inverse = pow(point[2], -1, _P)
    x, y = point[0] * inverse % _P, point[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _decompress(data: bytes) -> Point | None:
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, y & (1 << 255) - 1
    if y >= _P:
        return None
    x_squared = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(x_squared, (_P + 3) // 8, _P)
    if (x * x - x_squared) % _P:
        x = x * _ROOT_OF_MINUS_ONE % _P
    if (x * x - x_squared) % _P or x == 0 and sign:
        return None
    if x & 1 != sign:
        x = _P - x
    return x, y, 1, x * y % _P


def _base_point() -> Point:
    point = _decompress((4 * pow(5, -1, _P) % _P).to_bytes(32, "little"))
    assert point is not None
    return point


_BASE = _base_point()


def _hash(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little")


def _expand(secret: bytes) -> tuple[int, bytes]:
    digest = hashlib.sha512(secret).digest()
    scalar = int.from_bytes(digest[:32], "little") & (1 << 254) - 8 | 1 << 254
    return scalar, digest[32:]


def public_key(secret: bytes) -> bytes:
    return _compress(_multiply(_expand(secret)[0], _BASE))


def sign(secret: bytes, message: bytes) -> bytes:
    scalar, prefix = _expand(secret)
    key = _compress(_multiply(scalar, _BASE))
    nonce = _hash(prefix, message) % _ORDER
    commitment = _compress(_multiply(nonce, _BASE))
    s = (nonce + _hash(commitment, key, message) * scalar) % _ORDER
    return commitment + s.to_bytes(32, "little")


def verify(key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` is one of `message` under the public key."""
    if len(key) != 32 or len(signature) != 64:
        return False
    point, commitment = _decompress(key), _decompress(signature[:32])
    s = int.from_bytes(signature[32:], "little")
    if point is None or commitment is None or s >= _ORDER:
        return False
    challenge = _hash(signature[:32], key, message) % _ORDER
    return _compress(_multiply(s, _BASE)) == _compress(_add(commitment, _multiply(challenge, point)))
