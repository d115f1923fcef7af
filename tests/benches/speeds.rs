//! How fast the hot paths are, beside a memory copy in the same process.

use deltaic_format::base::{decode_base_of, encode_base};
use deltaic_format::patch::{PIECE_ELEMENTS, apply, compose, diff, touched};
use deltaic_format::patch_set::{PatchSetReader, encode};
use deltaic_format::{ElementClass, Moments};
use deltaic_tests::weights::{self, Density, Update};
use serde_json::{Value, json};
use std::hint::black_box;
use std::time::Instant;

const CLASS: ElementClass = ElementClass::BF16;
const RUNS: usize = 9;
/// Pieces worked on in turn, more than any cache holds.
const PIECES: usize = 16;

/// The median of the seconds that `work` takes.
fn seconds(mut work: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let begun = Instant::now();
            work();
            begun.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[RUNS / 2]
}

/// All paths at several densities.
pub(crate) fn measure() -> Value {
    let elements = PIECE_ELEMENTS;
    let pieces: Vec<Vec<u8>> = (0..PIECES)
        .map(|i| weights::bf16_weights(elements, i as u64))
        .collect();
    let bytes = (PIECES * pieces[0].len()) as f64;
    let mut copies = pieces.clone();
    let memcpy = seconds(|| {
        for (piece, copy) in pieces.iter().zip(&mut copies) {
            copy.copy_from_slice(black_box(piece));
        }
    });
    let mut rows = Vec::new();
    let mut row = |path: &str, percent: f64, seconds: f64| {
        rows.push(json!({
            "path": path,
            "changed_percent": percent,
            "gb_per_s": bytes / seconds / 1e9,
            "of_memcpy": memcpy / seconds,
        }));
    };
    row("memcpy", 0.0, memcpy);
    let each = |work: &mut dyn FnMut(usize)| seconds(|| (0..PIECES).for_each(&mut *work));
    row(
        "BLAKE3",
        0.0,
        each(&mut |i| {
            black_box(blake3::hash(&pieces[i]));
        }),
    );
    row(
        "moments (full proof)",
        0.0,
        each(&mut |i| {
            black_box(Moments::of(CLASS, 0, &pieces[i]));
        }),
    );
    row(
        "encode base",
        0.0,
        each(&mut |i| {
            black_box(encode_base(CLASS, &pieces[i]));
        }),
    );
    let bases: Vec<Vec<u8>> = pieces
        .iter()
        .map(|piece| encode_base(CLASS, piece))
        .collect();
    let mut content = Vec::new();
    row(
        "decode base",
        0.0,
        each(&mut |i| {
            decode_base_of(CLASS, elements, &bases[i], &mut content).expect("it decodes");
        }),
    );
    for percent in [0.013, 0.25, 1.0, 5.0, 20.0] {
        let density = Density::Share(percent / 100.0);
        let updated = |seed: u64| -> Vec<Vec<u8>> {
            let update = |(i, old): (usize, &Vec<u8>)| {
                weights::updated(CLASS, old, density, Update::Step, seed + i as u64)
            };
            pieces.iter().enumerate().map(update).collect()
        };
        let new = updated(1000);
        let between = |new: &[Vec<u8>]| -> Vec<_> {
            (pieces.iter().zip(new))
                .map(|(old, new)| diff(CLASS, old, new).expect("they compare"))
                .collect()
        };
        let changes = between(&new);
        let others = between(&updated(2000));
        let member = |i: usize| [(elements as u32, &changes[i])];
        let sets: Vec<Vec<u8>> = (0..PIECES)
            .map(|i| encode(CLASS, &member(i)).expect("it encodes").bytes)
            .collect();
        row(
            "diff",
            percent,
            each(&mut |i| {
                black_box(diff(CLASS, &pieces[i], &new[i]).expect("they compare"));
            }),
        );
        row(
            "encode patch",
            percent,
            each(&mut |i| {
                black_box(encode(CLASS, &member(i)).expect("it encodes"));
            }),
        );
        row(
            "decode patch",
            percent,
            each(&mut |i| {
                let reader = PatchSetReader::new(&sets[i]).expect("it reads");
                black_box(reader.all().expect("it decodes"));
            }),
        );
        row(
            "compose two",
            percent,
            each(&mut |i| {
                black_box(compose(CLASS, &[&changes[i], &others[i]]).expect("they compose"));
            }),
        );
        row(
            "touched proof",
            percent,
            each(&mut |i| {
                black_box(touched(CLASS, 0, &pieces[i], &changes[i]).expect("it fits"));
            }),
        );
        let mut targets = pieces.clone();
        let mut forwards = true;
        let back: Vec<_> = changes
            .iter()
            .map(|changes| {
                let mut back = changes.clone();
                back.negate();
                back
            })
            .collect();
        row(
            "apply",
            percent,
            seconds(|| {
                let patches = if forwards { &changes } else { &back };
                forwards = !forwards;
                for (target, patch) in targets.iter_mut().zip(patches) {
                    apply(CLASS, target, patch).expect("it fits");
                }
            }),
        );
    }
    Value::Array(rows)
}
