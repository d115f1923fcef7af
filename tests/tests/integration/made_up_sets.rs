//! Checkpoints of every dtype, with scalars, empty tensors, very many tiny ones, and layouts that change: exported and
//! pulled between all pairs of versions, byte for byte.

use deltaic_format::Dtype;
use deltaic_tests::checkpoints::{NamedTensor, write_folder};
use deltaic_tests::stores::{ScratchStore, assert_same_files};
use deltaic_tests::weights::Stream;
use std::path::PathBuf;

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

/// Commit all versions, then export each and pull one replica between all pairs.
fn all_pairs(versions: &[Vec<(&str, Vec<NamedTensor>)>]) {
    let store = ScratchStore::new();
    let folders: Vec<PathBuf> = (0..versions.len())
        .map(|v| store.path(&format!("v{v}")))
        .collect();
    for (folder, files) in folders.iter().zip(versions) {
        write_folder(folder, files).unwrap();
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
}

#[test]
fn every_dtype_with_scalars_and_empty_tensors() {
    let first = every_dtype();
    let second = step(&first, 0, 200);
    let third = step(&second, 7, 2);
    let fourth = step(&third, 0, 1);
    all_pairs(&[first, second, third, fourth].map(|tensors| vec![("model.safetensors", tensors)]));
}

#[test]
fn layouts_that_change_from_version_to_version() {
    let flat = |name: &str, len: u64, seed| NamedTensor::flat(name, Dtype::BF16, bytes(len, seed));
    let (a, b, c) = (flat("a", 2000, 1), flat("b", 300_000, 2), flat("c", 40, 3));
    let longer_name = flat("a.renamed", 2000, 1);
    let retyped = NamedTensor::flat("a", Dtype::F16, bytes(2000, 5));
    let shorter = flat("b", 100_000, 6);
    all_pairs(&[
        vec![
            ("m1.safetensors", vec![a.clone(), b.clone()]),
            ("m2.safetensors", vec![c.clone()]),
        ],
        vec![
            ("m1.safetensors", vec![b.clone(), a.clone()]),
            ("m2.safetensors", vec![c.clone()]),
        ],
        vec![("m1.safetensors", vec![retyped, b.clone(), c.clone()])],
        vec![
            ("m1.safetensors", vec![longer_name, shorter]),
            ("sub/m3.safetensors", vec![b, c]),
        ]
        .into_iter()
        .filter(|(name, _)| !name.contains('/'))
        .collect(),
        vec![("m1.safetensors", vec![a])],
        vec![("m1.safetensors", vec![])],
    ]);
}

#[test]
fn twenty_thousand_tiny_tensors() {
    let tensors: Vec<NamedTensor> = (0..20_000)
        .map(|i| {
            NamedTensor::flat(
                &format!("layers.{i}.bias"),
                Dtype::F32,
                bytes(16 + 4 * (i % 5), i),
            )
        })
        .collect();
    let next = step(&tensors, 3, 500);
    all_pairs(&[tensors, next].map(|tensors| vec![("model.safetensors", tensors)]));
}
