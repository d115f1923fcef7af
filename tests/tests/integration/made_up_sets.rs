//! Checkpoints of every dtype, with scalars, empty tensors, very many tiny ones, and layouts that change: exported and
//! pulled between all pairs of versions, byte for byte.

use crate::each_way;
use deltaic_format::Dtype;
use deltaic_tests::checkpoints::{NamedTensor, write_folder};
use deltaic_tests::stores::assert_same_files;
use deltaic_tests::weights::Stream;
use std::fs;
use std::path::{Path, PathBuf};

fn bytes(len: u64, seed: u64) -> Vec<u8> {
    Stream::new(seed).bytes(len as usize, u64::MAX)
}

/// Change every `stride`-th byte, beginning at `first`.
fn step(tensors: &[NamedTensor], first: usize, stride: usize) -> Vec<NamedTensor> {
    let mut next = tensors.to_vec();
    for (i, byte) in next
        .iter_mut()
        .flat_map(|t| &mut t.content)
        .enumerate()
        .skip(first)
    {
        if i % stride == 0 {
            *byte = byte.wrapping_add(1 + (i % 3) as u8);
        }
    }
    next
}

fn every_dtype() -> Vec<NamedTensor> {
    let mut tensors = Vec::new();
    for (i, &dtype) in Dtype::ALL.iter().enumerate() {
        for (j, shape) in [vec![], vec![0, 3], vec![4], vec![65, 516], vec![2, 0]]
            .into_iter()
            .enumerate()
        {
            let values: u64 = shape.iter().product();
            if !(values * dtype.bits()).is_multiple_of(8) {
                continue;
            }
            tensors.push(NamedTensor {
                name: format!("{dtype}.{j}"),
                dtype,
                content: bytes(values * dtype.bits() / 8, 100 * i as u64 + j as u64),
                shape,
            });
        }
    }
    tensors
}

/// A version: weight files by path, and files besides them.
#[derive(Default)]
struct Version<'a> {
    weights: Vec<(&'a str, Vec<NamedTensor>)>,
    others: Vec<(&'a str, Vec<u8>)>,
}

impl<'a> Version<'a> {
    fn of(weights: Vec<(&'a str, Vec<NamedTensor>)>) -> Self {
        Self {
            weights,
            others: Vec::new(),
        }
    }

    fn write(&self, folder: &Path) {
        write_folder(folder, &self.weights).unwrap();
        for (name, content) in &self.others {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
    }
}

/// Commit all versions, then export each and pull one replica between all pairs.
fn all_pairs(versions: &[Version<'_>]) {
    each_way(|store| {
        let folders: Vec<PathBuf> = (0..versions.len())
            .map(|v| store.path(&format!("v{v}")))
            .collect();
        for (folder, version) in folders.iter().zip(versions) {
            version.write(folder);
            store.commit("run/one", folder);
        }
        let replica = store.place("replica");
        for from in 0..folders.len() {
            let out = store.place(&format!("out{from}"));
            store.json(&["export", &format!("run/one@v{from}"), "-o", &out]);
            assert_same_files(out.as_ref(), &folders[from]);
            for (to, folder) in folders.iter().enumerate() {
                store.json(&["pull", &format!("run/one@v{from}"), "-o", &replica]);
                store.json(&[
                    "pull",
                    &format!("run/one@v{to}"),
                    "-o",
                    &replica,
                    "--proof",
                    "full",
                ]);
                assert_same_files(replica.as_ref(), folder);
            }
        }
        store.verify();
    });
}

#[test]
fn every_dtype_with_scalars_and_empty_tensors() {
    let first = every_dtype();
    let second = step(&first, 0, 200);
    let third = step(&second, 7, 2);
    let fourth = step(&third, 0, 1);
    let one_file = |tensors| Version::of(vec![("model.safetensors", tensors)]);
    all_pairs(&[first, second, third, fourth].map(one_file));
}

#[test]
fn layouts_that_change_from_version_to_version() {
    let flat = |name: &str, len: u64, seed| NamedTensor::flat(name, Dtype::BF16, bytes(len, seed));
    let (a, b, c) = (flat("a", 2000, 1), flat("b", 300_000, 2), flat("c", 40, 3));
    let longer_name = flat("a.renamed", 2000, 1);
    let retyped = NamedTensor::flat("a", Dtype::F16, bytes(2000, 5));
    let shorter = flat("b", 100_000, 6);
    let config = |text: &str| text.as_bytes().to_vec();
    all_pairs(&[
        Version {
            weights: vec![
                ("m1.safetensors", vec![a.clone(), b.clone()]),
                ("m2.safetensors", vec![c.clone()]),
            ],
            others: vec![("tokenizer/vocab.txt", config("a b c"))],
        },
        // The other way round; another file goes, one comes in a folder of its own.
        Version {
            weights: vec![
                ("m1.safetensors", vec![b.clone(), a.clone()]),
                ("m2.safetensors", vec![c.clone()]),
            ],
            others: vec![("draft/config.json", config("{}"))],
        },
        // A weight file goes, another tensor has its dtype changed.
        Version::of(vec![(
            "m1.safetensors",
            vec![retyped, b.clone(), c.clone()],
        )]),
        // A weight file comes in a sub-folder, and one below that.
        Version {
            weights: vec![
                ("m1.safetensors", vec![longer_name, shorter]),
                ("sub/m3.safetensors", vec![b.clone(), c.clone()]),
                ("sub/sub/m3.safetensors", vec![a.clone()]),
            ],
            others: vec![
                ("sub/notes", config("of the sub-folder")),
                ("tokenizer/vocab.txt", config("a b c d")),
            ],
        },
        // A folder takes the place of a file, and what was below goes up.
        Version {
            weights: vec![("sub/m3.safetensors", vec![c, b])],
            others: vec![("tokenizer", config("a file now")), ("empty", Vec::new())],
        },
        Version::of(vec![("m1.safetensors", vec![a])]),
        Version::of(vec![("m1.safetensors", vec![])]),
    ]);
}

#[test]
fn a_hundred_thousand_tiny_tensors() {
    each_way(|store| {
        let first: Vec<NamedTensor> = (0..100_000)
            .map(|i| {
                let content = bytes(16 + 4 * (i % 5), i);
                NamedTensor::flat(&format!("layers.{i}.bias"), Dtype::F32, content)
            })
            .collect();
        let second = step(&first, 3, 500);
        let replica = store.place("replica");
        for (number, tensors) in [first, second].into_iter().enumerate() {
            let folder = store.path(&format!("v{number}"));
            write_folder(&folder, &[("model.safetensors", tensors)]).unwrap();
            let commit = store.commit("run/one", &folder);
            assert_eq!(commit["version"], number);
            store.json(&["pull", "run/one", "-o", &replica]);
            assert_same_files(replica.as_ref(), &folder);
        }
        let out = store.place("out");
        store.json(&["export", "run/one@v0", "-o", &out]);
        assert_same_files(out.as_ref(), &store.path("v0"));
    });
}
