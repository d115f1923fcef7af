//! The crate against the golden vectors, which an independent implementation wrote from SPEC.md.

use deltaic_format::base::{decode_base, encode_base};
use deltaic_format::bytes::{ByteReader, put_varint};
use deltaic_format::ids::{CommitId, FileId, PatchId, SchemaId, TensorId, TreeId};
use deltaic_format::object::{
    CanonicalObject, Commit, RefRecord, Schema, SignedRef, Snapshot, Tree,
};
use deltaic_format::patch::{PIECE_ELEMENTS, Patch, PatchHasher, piece_count};
use deltaic_format::patch_set::{PatchSetReader, encode};
use deltaic_format::{FormatError, Moments, Version, ord};
use deltaic_tests::vectors::{self, Case, cases, hex, list, number, shifts, text, unhex};
use deltaic_tests::{model, places};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

#[test]
fn ord_is_that_of_the_vectors() {
    for case in cases("ord.json") {
        let class = case.class();
        assert_eq!(class.name(), case.text("name"));
        for pair in list(case.at("words")) {
            let word = u64::from_str_radix(&text(&pair[0])[2..], 16).unwrap();
            let bytes = model::bytes(class, [word]);
            assert_eq!(ord(class, &bytes), number(&pair[1]), "{case} {word:#x}");
        }
    }
}

#[test]
fn moments_are_those_of_the_vectors() {
    for case in cases("moments.json") {
        let expected = Moments {
            l: case.number("L"),
            q: case.number("Q"),
        };
        assert_eq!(
            Moments::of(case.class(), 0, &case.content()),
            expected,
            "{case}"
        );
    }
}

#[test]
fn patches_and_their_ids_are_those_of_the_vectors() {
    for case in cases("patches.json") {
        let class = case.class();
        let [from, to] = ["from", "to"].map(|key| case.text(key).parse::<TensorId>().unwrap());
        let id: PatchId = case.text("patch_id").parse().unwrap();
        let elements = case.number("elements");
        let expected: model::Shifts = shifts(case.at("changes")).collect();
        let canonical = model::canonical_bytes(class, from, to, elements, &expected);
        assert_eq!(hex(&canonical), case.text("canonical_hex"), "{case}");

        let mut hasher = PatchHasher::new(class, from, to, elements);
        for piece in 0..piece_count(elements) {
            let range = piece * PIECE_ELEMENTS..(piece + 1) * PIECE_ELEMENTS;
            let first = range.start;
            let pairs = expected.range(range).map(|(i, d)| ((i - first) as u32, *d));
            let changes = deltaic_format::patch::Changes::from_pairs(pairs).unwrap();
            hasher.piece(piece, &changes);
        }
        assert_eq!(hasher.finish(), id, "{case}");

        if case.get("old_hex").is_some() {
            let [old, new] = ["old_hex", "new_hex"].map(|key| case.bytes(key));
            let patch = Patch::diff(class, &old, &new).unwrap();
            assert_eq!((patch.from, patch.to, patch.id()), (from, to, id), "{case}");
            let mut content = old;
            patch.apply(&mut content).unwrap();
            assert_eq!(content, new, "{case}");
        }
    }
}

#[test]
fn patch_sets_of_the_vectors_are_read() {
    for case in cases("patch-sets.json") {
        let bytes = case.bytes("hex");
        let reader = PatchSetReader::new(&bytes).unwrap_or_else(|e| panic!("{case}: {e}"));
        assert_eq!(reader.class(), case.class(), "{case}");
        let members = list(case.at("members"));
        assert!(
            reader
                .members()
                .map(u64::from)
                .eq(members.iter().map(|m| number(&m["elements"])))
        );
        let all = reader.all().unwrap_or_else(|e| panic!("{case}: {e}"));
        let expected: Vec<_> = members
            .iter()
            .map(|m| vectors::changes(&m["changes"]))
            .collect();
        assert_eq!(all, expected, "{case}");
        for (member, changes) in expected.iter().enumerate() {
            assert_eq!(reader.member(member).as_ref(), Ok(changes), "{case}");
        }
        // Our own encoding means the same.
        let lengths = reader.members();
        let members: Vec<_> = lengths.zip(&all).collect();
        let again = encode(reader.class(), &members).unwrap();
        assert_eq!(
            PatchSetReader::new(&again.bytes).unwrap().all(),
            Ok(expected),
            "{case}"
        );
    }
}

#[test]
fn bases_of_the_vectors_are_read() {
    for case in cases("bases.json") {
        let base = match case.get("file") {
            Some(file) => std::fs::read(places::vectors().join(text(file))).unwrap(),
            None => case.bytes("hex"),
        };
        let content = case.content();
        assert_eq!(
            TensorId::of(&content).to_string(),
            case.text("id"),
            "{case}"
        );
        let (class, decoded) = decode_base(&base).unwrap_or_else(|e| panic!("{case}: {e}"));
        assert_eq!(class, case.class(), "{case}");
        assert!(decoded == content, "{case}");
        let again = encode_base(class, &content);
        assert_eq!(decode_base(&again), Ok((class, content)), "{case}");
    }
}

#[test]
fn objects_of_the_vectors_are_read_and_written() {
    for case in cases("objects.json") {
        let bytes = case.bytes("hex");
        match case.text("kind") {
            "schema" => check_schema(&case, &bytes),
            "tree" => check_tree(&case, &bytes),
            "commit" => check_commit(&case, &bytes),
            "ref" => check_ref(&case, &bytes),
            other => panic!("{case}: unknown kind {other}"),
        }
    }
}

fn read<T: CanonicalObject>(case: &Case, bytes: &[u8]) -> T {
    let object = T::from_bytes(bytes).unwrap_or_else(|e| panic!("{case}: {e}"));
    assert!(
        object.to_bytes() == bytes,
        "{case} is not written as it was read"
    );
    object
}

fn check_schema(case: &Case, bytes: &[u8]) {
    let schema: Schema = read(case, bytes);
    assert_eq!(Schema::id_of(bytes).to_string(), case.text("id"), "{case}");
    let files = list(&case.at("value")["files"]);
    assert_eq!(schema.files.len(), files.len(), "{case}");
    for (file, expected) in schema.files.iter().zip(files) {
        assert_eq!(file.path.as_str(), text(&expected["path"]), "{case}");
        let tensors = list(&expected["tensors"]);
        assert_eq!(file.tensors.len(), tensors.len(), "{case}");
        for (tensor, expected) in file.tensors.iter().zip(tensors) {
            assert_eq!(tensor.name, text(&expected["name"]), "{case}");
            assert_eq!(tensor.dtype.name(), text(&expected["dtype"]), "{case}");
            assert_eq!(
                u64::from(tensor.class.number()),
                number(&expected["class"]),
                "{case}"
            );
            assert!(
                tensor
                    .shape
                    .iter()
                    .copied()
                    .eq(list(&expected["shape"]).iter().map(number))
            );
        }
    }
}

/// Tree and schema, read together as a version is.
fn read_tree(schema: &[u8], tree: &[u8]) -> Result<Tree, FormatError> {
    let id = Schema::id_of(schema);
    let schema = Schema::from_bytes(schema)?;
    let tree = Tree::from_bytes(tree)?;
    if tree.schema != id {
        let why = "another schema".to_owned();
        return Err(FormatError::Invalid { what: "tree", why });
    }
    let commit = Commit {
        tree: tree.id(),
        parents: Vec::new(),
        version: Version(0),
        time_ms: 0,
        message: String::new(),
        meta: BTreeMap::new(),
    };
    Ok(Snapshot::new(commit.id(), commit, tree, Arc::new(schema))?.tree)
}

fn check_tree(case: &Case, bytes: &[u8]) {
    let tree: Tree = read(case, bytes);
    assert_eq!(Tree::id_of(bytes).to_string(), case.text("id"), "{case}");
    assert_eq!(
        read_tree(&case.bytes("schema_hex"), bytes).as_ref(),
        Ok(&tree),
        "{case}"
    );
    let value = case.at("value");
    assert_eq!(
        tree.schema,
        text(&value["schema"]).parse::<SchemaId>().unwrap(),
        "{case}"
    );
    let headers = list(&value["headers"]).iter();
    assert!(
        tree.weight_files
            .iter()
            .map(|f| (f.header, f.header_len))
            .eq(headers.map(|h| {
                (
                    text(&h["id"]).parse::<FileId>().unwrap(),
                    number(&h["length"]),
                )
            }))
    );
    assert_eq!(tree.tensors.len(), list(&value["tensors"]).len(), "{case}");
    for (tensor, expected) in tree.tensors.iter().zip(list(&value["tensors"])) {
        let moments = Moments {
            l: number(&expected["L"]),
            q: number(&expected["Q"]),
        };
        let patch = expected["patch"]
            .as_str()
            .map(|id| id.parse::<PatchId>().unwrap());
        let id: TensorId = text(&expected["id"]).parse().unwrap();
        assert_eq!(
            (tensor.id, tensor.moments, tensor.patch),
            (id, moments, patch),
            "{case}"
        );
    }
    assert_eq!(tree.files.len(), list(&value["files"]).len(), "{case}");
    for (file, expected) in tree.files.iter().zip(list(&value["files"])) {
        assert_eq!(file.path.as_str(), text(&expected["path"]), "{case}");
        let numbers = (file.mode as u64, file.size);
        assert_eq!(
            numbers,
            (number(&expected["mode"]), number(&expected["size"])),
            "{case}"
        );
        assert_eq!(
            file.id,
            text(&expected["id"]).parse::<FileId>().unwrap(),
            "{case}"
        );
    }
}

fn signed(value: &Value) -> i64 {
    text(value).parse().expect("a decimal number")
}

fn check_commit(case: &Case, bytes: &[u8]) {
    let commit: Commit = read(case, bytes);
    assert_eq!(Commit::id_of(bytes).to_string(), case.text("id"), "{case}");
    let value = case.at("value");
    let strings = |key: &str| list(&value[key]).iter();
    let expected = Commit {
        tree: text(&value["tree"]).parse::<TreeId>().unwrap(),
        parents: strings("parents")
            .map(|p| text(p).parse::<CommitId>().unwrap())
            .collect(),
        version: Version(number(&value["version"])),
        time_ms: signed(&value["time"]),
        message: text(&value["message"]).to_owned(),
        meta: strings("metadata")
            .map(|pair| (text(&pair[0]).to_owned(), text(&pair[1]).to_owned()))
            .collect(),
    };
    assert_eq!(commit, expected, "{case}");
}

fn check_ref(case: &Case, bytes: &[u8]) {
    let signed_ref = SignedRef::from_bytes(bytes).unwrap_or_else(|e| panic!("{case}: {e}"));
    assert_eq!(signed_ref.to_bytes(), bytes, "{case}");
    let record = &signed_ref.record;
    assert_eq!(hex(&record.to_bytes()), case.text("record_hex"), "{case}");
    assert_eq!(RefRecord::id(record).to_string(), case.text("id"), "{case}");
    let value = case.at("value");
    assert_eq!(record.repo.as_str(), text(&value["repository"]), "{case}");
    assert_eq!(record.branch.as_str(), text(&value["branch"]), "{case}");
    assert_eq!(record.commit.to_string(), text(&value["commit"]), "{case}");
    assert_eq!(record.version, Version(number(&value["version"])), "{case}");
    assert_eq!(record.time_ms, signed(&value["time"]), "{case}");
    assert_eq!(
        record.expiry_ms.unwrap_or(0),
        signed(&value["expiry"]),
        "{case}"
    );
    let signatures = list(&value["signatures"]);
    assert_eq!(signed_ref.signatures.len(), signatures.len(), "{case}");
    for (signature, expected) in signed_ref.signatures.iter().zip(signatures) {
        assert_eq!(
            signature.public_key.as_slice(),
            unhex(text(&expected["key"])),
            "{case}"
        );
        assert_eq!(
            signature.signature.as_slice(),
            unhex(text(&expected["signature"])),
            "{case}"
        );
    }
}

#[test]
fn what_the_vectors_refuse_is_refused() {
    let mut accepted = Vec::new();
    for case in cases("refused.json") {
        let bytes = case.bytes("hex");
        let refused = match case.text("kind") {
            "varint" => ByteReader::new("varint", &bytes).varint().is_err(),
            "patch-set" => PatchSetReader::new(&bytes).and_then(|r| r.all()).is_err(),
            "base" => decode_base(&bytes).is_err(),
            "schema" => Schema::from_bytes(&bytes).is_err(),
            "tree" => read_tree(&case.bytes("schema_hex"), &bytes).is_err(),
            "commit" => Commit::from_bytes(&bytes).is_err(),
            "ref" => SignedRef::from_bytes(&bytes).is_err(),
            other => panic!("{case}: unknown kind {other}"),
        };
        if !refused {
            accepted.push(case.to_string());
        }
    }
    assert!(accepted.is_empty(), "accepted: {accepted:#?}");
}

#[test]
fn varints_have_one_form() {
    let values = (0..64).flat_map(|bit| [1 << bit, (1 << bit) - 1, u64::MAX >> bit]);
    for value in values {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, value);
        let mut reader = ByteReader::new("varint", &bytes);
        assert_eq!(reader.varint(), Ok(value));
        assert_eq!(reader.finish(), Ok(()));
        // One byte longer, with nothing in it.
        if let Some(last) = bytes.last_mut() {
            *last |= 0x80;
        }
        bytes.push(0);
        assert!(
            ByteReader::new("varint", &bytes).varint().is_err(),
            "{value}"
        );
    }
}
