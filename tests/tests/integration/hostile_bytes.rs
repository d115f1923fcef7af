//! Every decoder meets damaged bytes: each truncation and many mutations of valid ones give Ok or a typed error,
//! never a panic, and never an allocation that the bytes there do not justify (invariant I5).

use crate::allocations::largest_of;
use deltaic_format::base::{decode_base_of, encode_base};
use deltaic_format::ids::{CommitId, FileId, PatchId, SchemaId, TensorId, TreeId};
use deltaic_format::name::{BranchName, RepoName, TreePath};
use deltaic_format::object::{
    CanonicalObject, Commit, FileEntry, FileMode, RefRecord, RefSignature, Schema, SignedRef,
    TensorEntry, TensorSpec, Tree, WeightFileEntry, WeightFileSpec,
};
use deltaic_format::patch::Changes;
use deltaic_format::patch_set;
use deltaic_format::{Dtype, ElementClass, Moments, Version};
use deltaic_tests::checkpoints::{NamedTensor, safetensors_file};
use deltaic_tests::decoders::{self, Decoder};
use deltaic_tests::mutations::mutated;
use deltaic_tests::weights::{self, Density, Stream, Update};

/// What a decoder may allocate at once, however small its input: the members of the largest set.
const ALLOWED: usize = 64 << 20;

fn check(name: &str, decode: Decoder, bytes: &[u8]) -> bool {
    let mut accepted = false;
    let largest = largest_of(|| accepted = decode(bytes));
    assert!(
        largest <= ALLOWED,
        "{name}: {largest} bytes allocated for {} bytes of input",
        bytes.len()
    );
    accepted
}

/// Every truncation (of long inputs: some) and `mutations` mutations of each of `valid`.
fn torment(name: &str, valid: &[Vec<u8>], mutations: u64) {
    let (_, decode) = *decoders::ALL
        .iter()
        .find(|d| d.0 == name)
        .expect("a decoder of this name");
    let mut refused = 0;
    for (number, bytes) in valid.iter().enumerate() {
        assert!(check(name, decode, bytes), "{name} {number} is valid");
        let stride = (bytes.len() / 2000).max(1);
        for length in (0..bytes.len()).step_by(stride) {
            let accepted = check(name, decode, &bytes[..length]);
            assert!(
                !accepted,
                "{name} {number} cut to {length} bytes was accepted"
            );
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(
            !check(name, decode, &longer),
            "{name} {number} with a byte more was accepted"
        );
        let mut stream = Stream::new(number as u64);
        for _ in 0..mutations {
            refused += u64::from(!check(name, decode, &mutated(bytes, &mut stream)));
        }
    }
    assert!(refused > 0, "{name}: mutations do damage");
}

fn set(class: ElementClass, members: &[(u32, Changes)]) -> Vec<u8> {
    let members: Vec<_> = members.iter().map(|(n, c)| (*n, c)).collect();
    patch_set::encode(class, &members)
        .expect("the members fit a set")
        .bytes
}

fn patch_sets() -> Vec<Vec<u8>> {
    let mut sets = vec![set(ElementClass::U8, &[])];
    let cases = [
        (ElementClass::BF16, 3000, Density::Share(0.01), Update::Step),
        (
            ElementClass::F8E4M3,
            70_000,
            Density::Share(0.002),
            Update::Step,
        ),
        (ElementClass::I32, 900, Density::Share(0.6), Update::Step),
        (ElementClass::U16, 500, Density::All, Update::Rewrite),
        (
            ElementClass::F64,
            300,
            Density::Share(0.3),
            Update::Extremes,
        ),
        (ElementClass::I8, 263_000, Density::Ends, Update::Extremes),
    ];
    for (class, elements, density, update) in cases {
        let members = [(elements, 1), (7, 2), (elements, 3)]
            .map(|(n, seed)| (n, weights::changes(class, n, density, update, seed)));
        sets.push(set(class, &members));
    }
    let class = ElementClass::BF16;
    let many: Vec<_> = (0..300)
        .map(|i| {
            (
                64,
                weights::changes(class, 64, Density::Share(0.02), Update::Step, i),
            )
        })
        .collect();
    sets.push(set(class, &many));
    sets
}

#[test]
fn damaged_patch_sets_are_refused_or_read() {
    torment("patch_set", &patch_sets(), 4000);
}

#[test]
fn damaged_bases_are_refused_or_read() {
    let mut bases: Vec<Vec<u8>> = [ElementClass::U8, ElementClass::BF16, ElementClass::F64]
        .into_iter()
        .flat_map(|class| [0, 1, 700].map(|n| encode_base(class, &weights::content(class, n, n))))
        .collect();
    bases.push(encode_base(
        ElementClass::F32,
        &vec![0; 4 * ((1 << 18) + 5)],
    ));
    torment("base", &bases, 400);
}

fn schema_value() -> Schema {
    let tensor = |name: &str, dtype, shape: &[u64]| {
        TensorSpec::new(name, dtype, shape.to_vec()).expect("a small tensor")
    };
    let file = |path: &str, tensors| WeightFileSpec {
        path: TreePath::new(path).expect("a path"),
        tensors,
    };
    Schema {
        files: vec![
            file(
                "model-00001-of-00002.safetensors",
                vec![
                    tensor("model.embed_tokens.weight", Dtype::BF16, &[49_152, 576]),
                    tensor(
                        "model.layers.0.mlp.up_proj.qweight",
                        Dtype::I32,
                        &[72, 1536],
                    ),
                    tensor("scalar", Dtype::F32, &[]),
                    tensor("empty", Dtype::F64, &[0, 3]),
                ],
            ),
            file(
                "model-00002-of-00002.safetensors",
                vec![tensor("model.norm.weight", Dtype::F4, &[576])],
            ),
        ],
    }
}

#[test]
fn damaged_schemas_are_refused_or_read() {
    torment(
        "schema",
        &[Schema::default().to_bytes(), schema_value().to_bytes()],
        20_000,
    );
}

/// Lengths whose sum would wrap: each tensor is as large as one may be.
#[test]
fn a_schema_of_more_bytes_than_can_be_counted_is_refused() {
    let tensor = |i: usize| TensorSpec::new(format!("t{i}"), Dtype::F64, vec![1 << 48]);
    let schema = |count: usize| Schema {
        files: vec![WeightFileSpec {
            path: TreePath::new("model.safetensors").expect("a path"),
            tensors: (0..count)
                .map(|i| tensor(i).expect("2^48 elements are allowed"))
                .collect(),
        }],
    };
    assert!(Schema::from_bytes(&schema(4095).to_bytes()).is_ok());
    assert!(Schema::from_bytes(&schema(4096).to_bytes()).is_err());
}

fn tree_value(tensors: usize) -> Tree {
    let mut stream = Stream::new(1);
    let mut hash = || {
        let mut hash = [0; 32];
        hash.iter_mut()
            .for_each(|byte| *byte = stream.number() as u8);
        hash
    };
    let file = |path: &str, mode, id| FileEntry {
        path: TreePath::new(path).expect("a path"),
        mode,
        size: 700,
        id,
    };
    Tree {
        schema: SchemaId(hash()),
        weight_files: vec![WeightFileEntry {
            header: FileId(hash()),
            header_len: 616,
        }],
        tensors: (0..tensors)
            .map(|i| TensorEntry {
                id: TensorId(hash()),
                moments: Moments {
                    l: i as u64,
                    q: u64::MAX,
                },
                patch: (i % 3 == 0).then(|| PatchId(hash())),
            })
            .collect(),
        files: vec![
            file("config.json", FileMode::Plain, FileId(hash())),
            file("tools/convert.py", FileMode::Executable, FileId(hash())),
        ],
    }
}

#[test]
fn damaged_trees_are_refused_or_read() {
    let trees = [0, 1, 8, 21].map(|tensors| tree_value(tensors).to_bytes());
    torment("tree", &trees, 10_000);
}

#[test]
fn damaged_commits_are_refused_or_read() {
    let commit = |parents: Vec<CommitId>, message: &str| Commit {
        tree: TreeId([7; 32]),
        version: Version(41 * u64::from(!parents.is_empty())),
        parents,
        time_ms: -5,
        message: message.to_owned(),
        meta: [("step", "1200"), ("läuft", "ja")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
    };
    let commits = [
        commit(Vec::new(), "").to_bytes(),
        commit(vec![CommitId([1; 32]), CommitId([2; 32])], "two parents\n").to_bytes(),
    ];
    torment("commit", &commits, 20_000);
}

#[test]
fn damaged_refs_are_refused_or_read() {
    let signed = |signatures: usize| {
        let record = RefRecord {
            repo: RepoName::new("acme/policy").expect("a name"),
            branch: BranchName::new("main").expect("a name"),
            commit: CommitId([3; 32]),
            version: Version(300),
            time_ms: 1_796_083_200_123,
            expiry_ms: None,
        };
        let signature = RefSignature {
            public_key: [4; 32],
            signature: [5; 64],
        };
        SignedRef {
            record,
            signatures: vec![signature; signatures],
        }
        .to_bytes()
    };
    torment("signed_ref", &[signed(0), signed(2)], 20_000);
}

#[test]
fn damaged_safetensors_files_are_refused_or_read() {
    let files = [
        safetensors_file(&[]),
        safetensors_file(&[
            NamedTensor::flat("a", Dtype::BF16, vec![1; 64]),
            NamedTensor::flat("none", Dtype::F32, Vec::new()),
            NamedTensor::flat("model.layers.0.größe", Dtype::U8, vec![2; 3]),
        ]),
    ];
    torment("safetensors_file", &files, 30_000);
}

/// Noise that begins as the real thing does.
#[test]
fn noise_behind_a_valid_beginning_is_refused_or_read() {
    let mut stream = Stream::new(77);
    let beginnings: [(usize, &[u8]); 7] = [
        (0, b"\x89DPS\r\n\x1a\n\x01\x01\x08\x10\x00\x00\x00\x00"),
        (1, b"\x89DBS\r\n\x1a\n\x01\x08\x12"),
        (2, b"\x01\x01\x01m"),
        (3, b"\x01"),
        (4, b"\x01"),
        (5, b"\x42\x01"),
        (6, b"\x20\x00\x00\x00\x00\x00\x00\x00{\"a\":{"),
    ];
    for (decoder, beginning) in beginnings {
        let (name, decode) = decoders::ALL[decoder];
        for _ in 0..5000 {
            let length = stream.below(200) as usize;
            let mut bytes = beginning.to_vec();
            bytes.extend(Stream::new(stream.number()).bytes(length, u64::MAX));
            check(name, decode, &bytes);
        }
    }
}

/// A few bytes that claim to be as large as a base can be: what is allocated follows from what is expected.
#[test]
fn a_base_that_claims_much_allocates_little() {
    for elements in [1 << 18, 4000 << 18, 1 << 48, (1 << 48) + 1, u64::MAX] {
        let mut bytes = b"\x89DBS\r\n\x1a\n\x01\x01\x12".to_vec();
        bytes.extend(u64::to_le_bytes(elements));
        // 4,000 planes of one byte, said to be zstd.
        bytes.extend([7; 4000]);
        bytes.extend([3; 4000]);
        bytes.extend(4000u32.to_le_bytes());
        let largest = largest_of(|| {
            let mut content = Vec::new();
            let result = decode_base_of(ElementClass::U8, 1000, &bytes, &mut content);
            assert!(result.is_err(), "{elements}");
        });
        assert!(largest < 1 << 20, "{elements}: {largest} bytes allocated");
    }
}
