//! Memory is bounded by the work in flight, not by the checkpoint (I6). What this prevents: a program that reads or maps a
//! whole checkpoint, and is killed on one that is larger than memory.

use crate::scratch_store;
use deltaic_format::Dtype;
use deltaic_tests::checkpoints::write_sparse;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Tensors of the checkpoint, and bytes of each: 1.5 GiB together.
const TENSORS: u64 = 12;
const TENSOR_LEN: u64 = 128 << 20;

/// Most bytes that may be resident, a quarter of the checkpoint.
const MOST: u64 = 400_000_000;

#[test]
fn a_checkpoint_of_a_gigabyte_and_a_half_takes_a_quarter_of_that() {
    let store = scratch_store();
    let checkpoint = store.place("model.safetensors");
    let replica = store.place("replica");
    let data = write_sparse(checkpoint.as_ref(), Dtype::BF16, TENSORS, TENSOR_LEN).unwrap();
    let mut peaks = Vec::new();
    let mut run = |args: &[&str]| {
        let (answer, peak) = store.measured(args);
        peaks.push((args.join(" "), peak));
        answer
    };
    run(&["commit", "run", &checkpoint]);
    run(&["pull", "run", "-o", &replica]);
    // A change in every tensor, some in its first piece and some in its last one.
    let file = File::options().write(true).open(&checkpoint).unwrap();
    for tensor in 0..TENSORS {
        let offset = (tensor % 2) * (TENSOR_LEN - 2);
        file.write_all_at(&[1, 0], data + tensor * TENSOR_LEN + offset)
            .unwrap();
    }
    assert_eq!(run(&["commit", "run", &checkpoint])["changed"], TENSORS);
    let pulled = run(&["pull", "run", "-o", &replica]);
    assert_eq!(pulled["changed"], TENSORS);
    assert_eq!(run(&["verify", &replica])["ok"], true);
    for (command, peak) in peaks {
        println!("{} MB: {command}", peak / 1_000_000);
        assert!(peak < MOST, "{command} took {peak} bytes");
    }
}
