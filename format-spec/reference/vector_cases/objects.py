"""objects.json: schemas, trees, commits and stored refs with their ids."""

from __future__ import annotations

from deltaic_reference import ed25519, objects, readable
from deltaic_reference.classes import CLASS_NAMED, DTYPE_NAMED, DTYPES, class_of_tensor
from deltaic_reference.ids import content_id
from deltaic_reference.objects import (
    Commit,
    Header,
    OtherFile,
    RefRecord,
    Schema,
    Signature,
    StoredRef,
    Tensor,
    TensorContent,
    Tree,
    WeightFile,
)

from .stream import content

_TIME = 1_796_083_200_123


def _id(label: str) -> bytes:
    return content_id(label.encode())


def _tensor(name: str, dtype_name: str, *shape: int) -> Tensor:
    dtype = DTYPE_NAMED[dtype_name]
    return Tensor(name, dtype, class_of_tensor(dtype, name), shape)


MINIMAL_SCHEMA = Schema(())
TYPICAL_SCHEMA = Schema(
    (
        WeightFile(
            "model-00001-of-00002.safetensors",
            (
                _tensor("model.embed_tokens.weight", "BF16", 49_152, 576),
                _tensor("model.layers.0.input_layernorm.weight", "F32", 576),
                _tensor("model.layers.0.mlp.down_proj.weight", "F8_E4M3", 576, 1536),
                _tensor("model.layers.0.mlp.down_proj.weight_scale_inv", "F32", 5, 12),
            ),
        ),
        WeightFile("model-00002-of-00002.safetensors", (_tensor("model.norm.weight", "BF16", 576),)),
    )
)
_SCHEMAS = {
    "no files": MINIMAL_SCHEMA,
    "a file without tensors": Schema((WeightFile("model.safetensors", ()),)),
    "two shards": TYPICAL_SCHEMA,
    "every dtype": Schema(
        (
            WeightFile(
                "all.safetensors",
                tuple(_tensor(f"{dtype.number:02}.{dtype.name}", dtype.name, 4) for dtype in DTYPES.values()),
            ),
        )
    ),
    "scalars and dims of size zero": Schema(
        (
            WeightFile(
                "odd/shapes.safetensors",
                (
                    _tensor("", "F32"),
                    _tensor("zero", "F64", 0),
                    _tensor("zeros", "BF16", 3, 0, 5),
                    _tensor("ranked", "U8", *[1] * 16),
                    _tensor("six bits", "F6_E2M3", 2, 2),
                    _tensor("complex", "C64", 7, 1),
                    _tensor("flags", "BOOL", 3),
                ),
            ),
        )
    ),
    "packed nibbles": Schema(
        (
            WeightFile(
                "gptq.safetensors",
                (
                    _tensor("model.layers.0.mlp.up_proj.g_idx", "I32", 576),
                    _tensor("model.layers.0.mlp.up_proj.qweight", "I32", 72, 1536),
                    _tensor("model.layers.0.mlp.up_proj.qzeros", "I32", 5, 192),
                    _tensor("model.layers.0.mlp.up_proj.scales", "F16", 5, 1536),
                    _tensor("model.layers.1.weight_packed", "I64", 8),
                    _tensor("qweight", "U16", 8),
                    _tensor("weight_zero_point_packed", "I8", 8),
                    _tensor("x.qweight", "BF16", 8),
                    _tensor("qweight.x", "I32", 8),
                ),
            ),
        )
    ),
    "unicode names, sorted by their bytes": Schema(
        (
            WeightFile("Gewichte/größe.safetensors", (_tensor("schicht.0.größe", "F16", 2),)),
            WeightFile("Z.safetensors", ()),
            WeightFile("a.safetensors", ()),
            WeightFile("模型/权重.safetensors", (_tensor("层.0.权重", "BF16", 2), _tensor("🜁", "BF16", 1))),
        )
    ),
    "most elements": Schema(
        (
            WeightFile(
                "large.safetensors",
                (_tensor("a", "U8", 2**24, 2**24), _tensor("b", "F64", 2**48), _tensor("c", "F4", 2, 2**48)),
            ),
        )
    ),
    "an own class for one of two packed-capable tensors": Schema(
        (
            WeightFile(
                "m.safetensors",
                (
                    Tensor("a", DTYPE_NAMED["I32"], CLASS_NAMED["U8"], (6,)),
                    Tensor("b", DTYPE_NAMED["I32"], CLASS_NAMED["I32"], (6,)),
                ),
            ),
        )
    ),
}


def _contents(count: int, listed: set[int]) -> tuple[TensorContent, ...]:
    return tuple(
        TensorContent(
            _id(f"tensor {k}"),
            int.from_bytes(content(900 + k, 8), "little"),
            int.from_bytes(content(950 + k, 8), "little"),
            _id(f"patch {k}") if k in listed else None,
        )
        for k in range(count)
    )


def _tree(schema: Schema, listed: set[int], files: tuple[OtherFile, ...], header_lengths: tuple[int, ...]) -> Tree:
    headers = tuple(Header(_id(f"header {k}"), length) for k, length in enumerate(header_lengths))
    return Tree(objects.schema_id(schema), headers, _contents(len(schema.tensors), listed), files)


_TYPICAL_FILES = (
    OtherFile("config.json", 0, 704, _id("config.json")),
    OtherFile("tokenizer/merges.txt", 0, 466_391, _id("merges")),
    OtherFile("tools/convert.py", 1, 2048, _id("convert")),
)
TYPICAL_TREE = _tree(TYPICAL_SCHEMA, {0, 2}, _TYPICAL_FILES, (616, 128))
_PACKED = _SCHEMAS["packed nibbles"]
_TREES = {
    "no files at all": (MINIMAL_SCHEMA, _tree(MINIMAL_SCHEMA, set(), (), ())),
    "first version of two shards": (TYPICAL_SCHEMA, _tree(TYPICAL_SCHEMA, set(), _TYPICAL_FILES, (616, 128))),
    "some patches listed": (TYPICAL_SCHEMA, TYPICAL_TREE),
    "nine patches, so two bytes of bits": (_PACKED, _tree(_PACKED, set(range(9)), (), (1000,))),
    "only the ninth patch": (_PACKED, _tree(_PACKED, {8}, (), (1000,))),
    "64-bit size, longest header, unicode paths": (
        _SCHEMAS["a file without tensors"],
        _tree(
            _SCHEMAS["a file without tensors"],
            set(),
            (
                OtherFile("A", 1, 2**64 - 1, _id("A")),
                OtherFile("a.txt", 0, 0, content_id(b"")),
                OtherFile("b/.deltaic/...", 0, 1, _id("dots")),
                OtherFile("é.txt", 0, 2**32, _id("é")),
            ),
            (100_000_000,),
        ),
    ),
}

TYPICAL_COMMIT = Commit(
    _id("tree"),
    (_id("parent"),),
    13,
    _TIME,
    "Step 13\n\nlr 1e-6, clip 1.0\n",
    (("loss", "0.4137"), ("run", "policy-7"), ("step", "13")),
)
_COMMITS = {
    "the first": Commit(_id("tree"), (), 0, 0, "", ()),
    "typical": TYPICAL_COMMIT,
    "several parents": Commit(_id("tree"), (_id("p"), _id("q"), _id("a")), 128, _TIME, "Merge", ()),
    "greatest version, time before 1970": Commit(_id("t"), (_id("p"),), 2**64 - 1, -1, "old", ()),
    "least time": Commit(_id("t"), (), 0, -(2**63), "least", ()),
    "greatest time": Commit(_id("t"), (), 0, 2**63 - 1, "greatest", ()),
    "unicode and empty metadata": Commit(
        _id("t"), (), 0, _TIME, "Schritt für Schritt 🜁", (("", ""), ("Z", "z"), ("a", "\x00"), ("é", "größer"))
    ),
}

TYPICAL_RECORD = RefRecord("lab/policy", "main", _id("commit"), 13, _TIME, 0)
_RECORDS = {
    "unsigned": (TYPICAL_RECORD, 0),
    "signed": (TYPICAL_RECORD, 1),
    "signed three times": (TYPICAL_RECORD, 3),
    "with expiry": (RefRecord("r", "b", _id("commit"), 0, 0, _TIME), 1),
    "longest names": (
        RefRecord("/".join(["R" * 128] * 8), "/".join(["b" * 128] * 8), _id("commit"), 2**64 - 1, -1, 2**63 - 1),
        0,
    ),
    "unusual names": (RefRecord("_/0.-/A..", "v1.0/v2", _id("commit"), 1, 1, 1), 1),
}


def sign(record: RefRecord, count: int) -> StoredRef:
    data = objects.encode_ref_record(record)
    secrets = [content(980 + k, 32) for k in range(count)]
    return StoredRef(record, tuple(Signature(ed25519.public_key(s), ed25519.sign(s, data)) for s in secrets))


def cases() -> list[dict]:
    out = []

    def add(kind: str, name: str, value: dict, data: bytes, id: bytes, **more: str) -> None:
        out.append({"kind": kind, "name": name, "value": value, **more, "hex": data.hex(), "id": id.hex()})

    for name, schema in _SCHEMAS.items():
        add("schema", name, readable.schema(schema), objects.encode_schema(schema), objects.schema_id(schema))
    for name, (schema, tree) in _TREES.items():
        data, id = objects.encode_tree(tree, schema), objects.tree_id(tree, schema)
        add("tree", name, readable.tree(tree), data, id, schema_hex=objects.encode_schema(schema).hex())
    for name, commit in _COMMITS.items():
        add("commit", name, readable.commit(commit), objects.encode_commit(commit), objects.commit_id(commit))
    for name, (record, count) in _RECORDS.items():
        ref = sign(record, count)
        data, id = objects.encode_stored_ref(ref), objects.ref_record_id(record)
        add("ref", name, readable.stored_ref(ref), data, id, record_hex=objects.encode_ref_record(record).hex())
    return out
