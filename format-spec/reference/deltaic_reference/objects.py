"""Objects: schema, tree, commit, ref record, each with its strict reader and its writer (SPEC §8).

A writer reads back what it wrote, so that it never writes what a reader would refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from math import prod

import numpy as np

from .classes import Dtype, ElementClass, class_number, dtype_number
from .ids import derived_id
from .names import check_branch_or_tag, check_path, check_repository
from .primitives import (
    FILES_CAP,
    HEADER_CAP,
    MESSAGE_CAP,
    METADATA_CAP,
    PARENTS_CAP,
    RANK_CAP,
    SCHEMA_TENSORS_CAP,
    SIGNATURES_CAP,
    TENSOR_ELEMENTS_CAP,
    ByteReader,
    fixed,
    require,
    string,
    varint,
)

_VERSION = b"\x01"
_MODES = (0, 1)


def _check_strictly_ascending(keys: Iterable[str], what: str) -> None:
    encoded = [key.encode() for key in keys]
    ascending = all(a < b for a, b in zip(encoded, encoded[1:]))
    require(ascending, f"{what} are not strictly ascending")


def _check_one_folder(paths: list[str]) -> None:
    """All paths are distinct and none is a folder of another."""
    files = set(paths)
    require(len(files) == len(paths), "a path stands there twice")
    for path in paths:
        parts = path.split("/")
        folders = {"/".join(parts[:depth]) for depth in range(1, len(parts))}
        require(not folders & files, f"a folder of {path!r} is a file too")


def _checked(data: bytes, decode: Callable[[bytes], object]) -> bytes:
    decode(data)
    return data


# ---------------------------------------------------------------------------------------------- schema


@dataclass(frozen=True)
class Tensor:
    """Name, type and shape of one tensor."""

    name: str
    dtype: Dtype
    element_class: ElementClass
    shape: tuple[int, ...]

    @property
    def byte_length(self) -> int:
        bits = prod(self.shape) * self.dtype.bits
        require(bits % 8 == 0, f"tensor {self.name!r} is no whole number of bytes")
        return bits // 8

    @property
    def elements(self) -> int:
        """Elements in the sense of §2: words of its class, not items of its dtype."""
        return self.byte_length // self.element_class.width


@dataclass(frozen=True)
class WeightFile:
    """A safetensors file with its tensors in the order of their data."""

    path: str
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True)
class Schema:
    files: tuple[WeightFile, ...]

    @property
    def tensors(self) -> list[Tensor]:
        return list(chain.from_iterable(file.tensors for file in self.files))


def encode_schema(schema: Schema) -> bytes:
    out = [_VERSION, varint(len(schema.files))]
    for file in schema.files:
        out += [string(file.path), varint(len(file.tensors))]
        for tensor in file.tensors:
            out += [string(tensor.name), bytes([tensor.dtype.number, tensor.element_class.number])]
            out += map(varint, (len(tensor.shape), *tensor.shape))
    return _checked(b"".join(out), decode_schema)


def decode_schema(data: bytes) -> Schema:
    reader = ByteReader(data)
    reader.version("schema")
    files = []
    tensors_left = SCHEMA_TENSORS_CAP
    for _ in range(reader.count("weight files", FILES_CAP, 2)):
        path = reader.string("path of a weight file")
        check_path(path)
        count = reader.count("tensors", tensors_left, 4)
        tensors_left -= count
        tensors = tuple(_read_tensor(reader) for _ in range(count))
        names = {tensor.name for tensor in tensors}
        require(len(names) == count, f"a tensor of {path} is named twice")
        files.append(WeightFile(path, tensors))
    reader.end("schema")
    _check_strictly_ascending((file.path for file in files), "paths of weight files")
    schema = Schema(tuple(files))
    require(sum(tensor.byte_length for tensor in schema.tensors) < 2**63, "the tensors take 2^63 bytes or more")
    return schema


def _read_tensor(reader: ByteReader) -> Tensor:
    name = reader.string("name of a tensor")
    dtype = dtype_number(reader.u8("dtype"))
    element_class = class_number(reader.u8("element class"))
    fits = dtype.may_be_read_as(element_class)
    require(fits, f"tensor {name!r} of dtype {dtype.name} cannot be read as {element_class.name}")
    rank = reader.count("rank", RANK_CAP, 1)
    tensor = Tensor(name, dtype, element_class, tuple(reader.varint("dim") for _ in range(rank)))
    require(tensor.elements <= TENSOR_ELEMENTS_CAP, f"tensor {name!r} has more than 2^48 elements")
    return tensor


def schema_id(schema: Schema) -> bytes:
    return derived_id("schema", encode_schema(schema))


# ------------------------------------------------------------------------------------------------ tree


@dataclass(frozen=True)
class Header:
    """A weight file's safetensors header: the id of its bytes and their number."""

    id: bytes
    length: int


@dataclass(frozen=True)
class TensorContent:
    """The content of one tensor; `patch` is the PatchId from the first parent's content, where listed."""

    id: bytes
    l_moment: int
    q_moment: int
    patch: bytes | None = None


@dataclass(frozen=True)
class OtherFile:
    """A file that holds no tensors; mode 0 plain, 1 executable."""

    path: str
    mode: int
    size: int
    id: bytes


@dataclass(frozen=True)
class Tree:
    """The content of one version. Headers and tensors stand in schema order."""

    schema: bytes
    headers: tuple[Header, ...]
    tensors: tuple[TensorContent, ...]
    files: tuple[OtherFile, ...]


def encode_tree(tree: Tree, schema: Schema) -> bytes:
    out = [_VERSION, tree.schema, varint(len(tree.headers))]
    out += [header.id + varint(header.length) for header in tree.headers]
    out.append(varint(len(tree.tensors)))
    out += [tensor.id + fixed(tensor.l_moment, 8) + fixed(tensor.q_moment, 8) for tensor in tree.tensors]
    listed = np.array([tensor.patch is not None for tensor in tree.tensors], np.uint8)
    out.append(np.packbits(listed, bitorder="little").tobytes())
    out += [tensor.patch for tensor in tree.tensors if tensor.patch is not None]
    out.append(varint(len(tree.files)))
    out += [string(file.path) + bytes([file.mode]) + varint(file.size) + file.id for file in tree.files]
    return _checked(b"".join(out), lambda data: decode_tree(data, schema))


def decode_tree(data: bytes, schema: Schema) -> Tree:
    """Read a tree, which has the weight files and tensors of `schema`."""
    reader = ByteReader(data)
    reader.version("tree")
    named_schema = reader.take(32, "schema id")
    require(named_schema == schema_id(schema), "the tree names another schema")
    count = reader.count("weight files", FILES_CAP, 33)
    require(count == len(schema.files), f"tree has {count} weight files, its schema {len(schema.files)}")
    headers = tuple(_read_header(reader) for _ in range(count))
    count = reader.count("tensors", SCHEMA_TENSORS_CAP, 48)
    require(count == len(schema.tensors), f"tree has {count} tensors, its schema {len(schema.tensors)}")
    contents = [(reader.take(32, "tensor id"), reader.unsigned(8, "L"), reader.unsigned(8, "Q")) for _ in range(count)]
    bitmap = np.frombuffer(reader.take(-(-count // 8), "patch bitmap"), np.uint8)
    listed = np.unpackbits(bitmap, bitorder="little").tolist()
    require(not any(listed[count:]), "patch bitmap has a one past the last tensor")
    patches = [reader.take(32, "patch id") if bit else None for bit in listed[:count]]
    tensors = tuple(TensorContent(*content, patch) for content, patch in zip(contents, patches))
    files = tuple(_read_other_file(reader) for _ in range(reader.count("other files", FILES_CAP, 35)))
    reader.end("tree")
    _check_strictly_ascending((file.path for file in files), "paths of other files")
    _check_one_folder([file.path for file in chain(schema.files, files)])
    return Tree(named_schema, headers, tensors, files)


def _read_header(reader: ByteReader) -> Header:
    header = Header(reader.take(32, "header id"), reader.varint("header length"))
    require(header.length <= HEADER_CAP, f"a header of {header.length} bytes is above the cap of {HEADER_CAP}")
    return header


def _read_other_file(reader: ByteReader) -> OtherFile:
    path = reader.string("path of a file")
    check_path(path)
    mode = reader.u8("mode")
    require(mode in _MODES, f"file {path!r} has mode {mode}; supported: 0, 1")
    return OtherFile(path, mode, reader.varint("size"), reader.take(32, "file id"))


def tree_id(tree: Tree, schema: Schema) -> bytes:
    return derived_id("tree", encode_tree(tree, schema))


# ---------------------------------------------------------------------------------------------- commit


@dataclass(frozen=True)
class Commit:
    """A version in the history; `time` in ms since 1970, UTC."""

    tree: bytes
    parents: tuple[bytes, ...]
    version: int
    time: int
    message: str
    metadata: tuple[tuple[str, str], ...]


def encode_commit(commit: Commit) -> bytes:
    out = [_VERSION, commit.tree, varint(len(commit.parents)), *commit.parents]
    out += [varint(commit.version), fixed(commit.time, 8, signed=True), string(commit.message)]
    out += [varint(len(commit.metadata)), *map(string, chain.from_iterable(commit.metadata))]
    return _checked(b"".join(out), decode_commit)


def decode_commit(data: bytes, first_parent: Commit | None = None) -> Commit:
    """Read a commit; where its first parent is at hand, the version is held against it."""
    reader = ByteReader(data)
    reader.version("commit")
    tree = reader.take(32, "tree id")
    count = reader.count("parents", PARENTS_CAP, 32)
    parents = tuple(reader.take(32, "parent id") for _ in range(count))
    version = reader.varint("version")
    require((version > 0) == (count > 0), f"version {version} with {count} parents")
    if first_parent is not None:
        follows = version == first_parent.version + 1
        require(follows, f"version {version} after version {first_parent.version}")
    time = reader.i64("time")
    message = reader.string("message", MESSAGE_CAP)
    pairs = range(reader.count("metadata", METADATA_CAP, 2))
    metadata = tuple((reader.string("metadata key"), reader.string("metadata value")) for _ in pairs)
    reader.end("commit")
    _check_strictly_ascending((key for key, _ in metadata), "metadata keys")
    return Commit(tree, parents, version, time, message, metadata)


def commit_id(commit: Commit) -> bytes:
    return derived_id("commit", encode_commit(commit))


# ------------------------------------------------------------------------------------------ ref record


@dataclass(frozen=True)
class RefRecord:
    """What a branch or tag points to; times in ms since 1970, UTC, `expiry` 0 for none."""

    repository: str
    branch: str
    commit: bytes
    version: int
    time: int
    expiry: int


@dataclass(frozen=True)
class Signature:
    """An ed25519 public key with its signature over the record's bytes."""

    public_key: bytes
    signature: bytes


@dataclass(frozen=True)
class StoredRef:
    record: RefRecord
    signatures: tuple[Signature, ...]


def encode_ref_record(record: RefRecord) -> bytes:
    out = [_VERSION, string(record.repository), string(record.branch), record.commit, varint(record.version)]
    out += [fixed(record.time, 8, signed=True), fixed(record.expiry, 8, signed=True)]
    return _checked(b"".join(out), decode_ref_record)


def decode_ref_record(data: bytes) -> RefRecord:
    reader = ByteReader(data)
    reader.version("ref record")
    repository = reader.string("repository")
    check_repository(repository)
    branch = reader.string("branch")
    check_branch_or_tag(branch)
    commit = reader.take(32, "commit id")
    version, time, expiry = reader.varint("version"), reader.i64("time"), reader.i64("expiry")
    reader.end("ref record")
    return RefRecord(repository, branch, commit, version, time, expiry)


def ref_record_id(record: RefRecord) -> bytes:
    return derived_id("ref", encode_ref_record(record))


def encode_stored_ref(ref: StoredRef) -> bytes:
    record = encode_ref_record(ref.record)
    out = [varint(len(record)), record, varint(len(ref.signatures))]
    out += [signature.public_key + signature.signature for signature in ref.signatures]
    return _checked(b"".join(out), decode_stored_ref)


def decode_stored_ref(data: bytes) -> StoredRef:
    """Read a stored ref. Whether its signatures hold, and whose they are, is another question."""
    reader = ByteReader(data)
    record = decode_ref_record(reader.take(reader.varint("record length"), "record"))
    signatures = tuple(
        Signature(reader.take(32, "public key"), reader.take(64, "signature"))
        for _ in range(reader.count("signatures", SIGNATURES_CAP, 96))
    )
    reader.end("stored ref")
    return StoredRef(record, signatures)
