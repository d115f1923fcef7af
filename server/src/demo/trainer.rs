//! The made-up trainer: FP32 master weights that an optimizer moves, and checkpoints of them in bf16.
//!
//! AdamW divides each gradient's running mean by its running size, so that a weight moves by a fraction of the learning
//! rate however large its gradient is. What is left to make up is the running mean, in units of that size: a
//! first-order filter over independent noise, with Adam's usual factor of 0.9. Its sign lasts for some steps, as in
//! training, and one byte per weight keeps it.

use super::model::{ModelPlan, TensorPlan};
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use rand_distr::{Distribution, Normal, NormalError};
use rayon::prelude::*;
use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Learning rate: a usual one for reinforcement learning.
pub const LEARNING_RATE: f32 = 1e-6;

/// What the running mean keeps of itself at each step, AdamW's beta 1.
const KEPT: f32 = 0.9;

/// Momentum is stored in units of 1/100 of the gradients' usual size.
const MOMENTUM_UNIT: f32 = 0.01;

/// Usual size of a gradient in units of its running size. Gradients come in bursts, of which the running size, a root
/// of a mean of squares over a thousand steps, sees more than the running mean.
const USUAL_GRADIENT: f32 = 0.5;

/// Standard deviation of the sum of four random bytes: the root of 4 x (256^2 - 1) / 12.
const FOUR_BYTES: f32 = 147.8;

/// Elements that one thread works on at a time.
const CHUNK: usize = 1 << 16;

/// Elements that are written at a time.
const WRITTEN: usize = 64 * CHUNK;

/// One tensor while it is trained.
struct Weights {
    master: Vec<f32>,
    momentum: Vec<i8>,
}

/// A model in training.
pub struct Trainer {
    plan: ModelPlan,
    seed: u64,
    step: u64,
    weights: Vec<Weights>,
}

impl Trainer {
    /// A model whose weights are drawn from `seed`.
    ///
    /// # Errors
    ///
    /// If a deviation of the plan is no number.
    pub fn new(plan: ModelPlan, seed: u64) -> Result<Self, NormalError> {
        let tensors = plan.tensors().enumerate();
        let weights = tensors
            .map(|(i, tensor)| initial(tensor, mix(seed ^ mix(i as u64))))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            plan,
            seed,
            step: 0,
            weights,
        })
    }

    /// Take an optimizer step.
    pub fn step(&mut self) {
        self.step += 1;
        for (i, weights) in self.weights.iter_mut().enumerate() {
            let seed = mix(self.seed ^ mix(self.step << 32 | i as u64));
            let masters = weights.master.par_chunks_mut(CHUNK);
            let chunks = masters.zip(weights.momentum.par_chunks_mut(CHUNK));
            chunks.enumerate().for_each(|(chunk, (master, momentum))| {
                step_chunk(master, momentum, mix(seed.wrapping_add(chunk as u64)));
            });
        }
    }

    /// Write a checkpoint folder: bf16 shards, their index, the model's configuration.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub fn save(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)?;
        let mut weights = self.weights.iter();
        let mut index = Map::new();
        let mut buffer = vec![0; 2 * WRITTEN];
        for (number, shard) in self.plan.shards.iter().enumerate() {
            let name = self.plan.shard_name(number);
            let mut file = File::create(dir.join(&name))?;
            file.write_all(&header(shard))?;
            for (tensor, weights) in shard.iter().zip(&mut weights) {
                for part in weights.master.chunks(WRITTEN) {
                    let bytes = &mut buffer[..2 * part.len()];
                    in_bf16(part, bytes);
                    file.write_all(bytes)?;
                }
                index.insert(tensor.name.clone(), Value::from(name.as_str()));
            }
        }
        let index = json!({
            "metadata": { "total_size": 2 * self.plan.parameters() },
            "weight_map": index,
        });
        write_json(&dir.join("model.safetensors.index.json"), &index)?;
        write_json(&dir.join("config.json"), &self.config())
    }

    fn config(&self) -> Value {
        let plan = &self.plan;
        json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": plan.hidden,
            "intermediate_size": plan.intermediate,
            "num_hidden_layers": plan.layers,
            "num_attention_heads": (plan.hidden / 64).max(4),
            "num_key_value_heads": (plan.key_value / 64).max(1),
            "vocab_size": plan.vocabulary,
            "tie_word_embeddings": true,
            "torch_dtype": "bfloat16",
        })
    }
}

fn initial(tensor: &TensorPlan, seed: u64) -> Result<Weights, NormalError> {
    let normal = Normal::new(tensor.mean, tensor.deviation)?;
    let elements = tensor.elements() as usize;
    let mut master = vec![0.0; elements];
    let chunks = master.par_chunks_mut(CHUNK).enumerate();
    chunks.for_each(|(chunk, master)| {
        let seed = mix(seed.wrapping_add(chunk as u64));
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        master.fill_with(|| normal.sample(&mut random));
    });
    let mut momentum = vec![0; elements];
    let chunks = momentum.par_chunks_mut(CHUNK).enumerate();
    chunks.for_each(|(chunk, momentum)| {
        settle_momentum(momentum, mix(!seed.wrapping_add(chunk as u64)));
    });
    Ok(Weights { master, momentum })
}

/// Begin with the momentum that a long training would have left: one gradient, as large as the mean of all is.
fn settle_momentum(momentum: &mut [i8], seed: u64) {
    let size = ((1.0 - KEPT) / (1.0 + KEPT)).sqrt() / (MOMENTUM_UNIT * FOUR_BYTES);
    for (i, momentum) in momentum.chunks_mut(2).enumerate() {
        let gradients = two_gradients(seed, i);
        for (momentum, gradient) in momentum.iter_mut().zip(gradients) {
            *momentum = nearest_byte(gradient * size);
        }
    }
}

/// Two independent gradients, nearly normal with mean 0 and deviation [`FOUR_BYTES`], from one random number.
fn two_gradients(seed: u64, i: usize) -> [f32; 2] {
    let random = mix(seed.wrapping_add((i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    // Sums of neighbouring bytes in four lanes of 16 bits, then of neighbouring lanes in two of 32.
    let lanes = (random & 0x00FF_00FF_00FF_00FF) + (random >> 8 & 0x00FF_00FF_00FF_00FF);
    let sums = (lanes & 0x0000_FFFF_0000_FFFF) + (lanes >> 16 & 0x0000_FFFF_0000_FFFF);
    [sums as u32, (sums >> 32) as u32].map(|sum| (sum as i32 - 510) as f32)
}

/// The byte nearest to a number, or the end of the range that it is beyond.
fn nearest_byte(number: f32) -> i8 {
    // 1.5 x 2^23: a float of this size has no room for fractions, and its lowest bits are the integer. Rounding by a
    // function call would take most of a step's time.
    const NO_FRACTIONS: f32 = 12_582_912.0;
    (number.clamp(-127.0, 127.0) + NO_FRACTIONS).to_bits() as i8
}

/// One step of some weights.
fn step_chunk(master: &mut [f32], momentum: &mut [i8], seed: u64) {
    const GRADIENT: f32 = (1.0 - KEPT) / (MOMENTUM_UNIT * FOUR_BYTES);
    const STRIDE: f32 = LEARNING_RATE * USUAL_GRADIENT * MOMENTUM_UNIT;
    let pairs = master.chunks_mut(2).zip(momentum.chunks_mut(2));
    for (i, (master, momentum)) in pairs.enumerate() {
        let gradients = two_gradients(seed, i);
        for ((master, momentum), gradient) in master.iter_mut().zip(momentum).zip(gradients) {
            *momentum = nearest_byte(f32::from(*momentum) * KEPT + gradient * GRADIENT);
            *master -= f32::from(*momentum) * STRIDE;
        }
    }
}

/// Write weights in bf16, rounded to nearest, ties to even.
fn in_bf16(master: &[f32], bytes: &mut [u8]) {
    let chunks = bytes
        .par_chunks_mut(2 * CHUNK)
        .zip(master.par_chunks(CHUNK));
    chunks.for_each(|(bytes, master)| {
        for (bytes, weight) in bytes.as_chunks_mut().0.iter_mut().zip(master) {
            *bytes = bf16(*weight).to_le_bytes();
        }
    });
}

/// The bits of a finite weight in bf16.
fn bf16(weight: f32) -> u16 {
    let bits = weight.to_bits();
    ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) as u16
}

/// The length and header of a safetensors file, padded to 8 bytes.
fn header(tensors: &[TensorPlan]) -> Vec<u8> {
    let mut entries = Map::new();
    entries.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    let mut begin = 0;
    for tensor in tensors {
        let end = begin + 2 * tensor.elements();
        let entry = json!({ "dtype": "BF16", "shape": tensor.shape, "data_offsets": [begin, end] });
        entries.insert(tensor.name.clone(), entry);
        begin = end;
    }
    let mut json = Value::from(entries).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    [&(json.len() as u64).to_le_bytes()[..], &json].concat()
}

fn write_json(path: &Path, value: &Value) -> io::Result<()> {
    let mut file = File::create(path)?;
    serde_json::to_writer_pretty(&mut file, value)?;
    writeln!(file)
}

/// The splitmix64 finaliser: a number that looks random, from any number.
fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trainer() -> Trainer {
        Trainer::new(ModelPlan::about(1_000_000), 7).expect("the plan is sound")
    }

    fn share_changed(before: &[u8], after: &[u8]) -> f64 {
        let pairs = before.chunks(2).zip(after.chunks(2));
        let changed = pairs.filter(|(old, new)| old != new).count();
        changed as f64 / (before.len() / 2) as f64
    }

    #[test]
    fn a_step_changes_what_a_real_one_changes() {
        let mut trainer = trainer();
        let bytes = |trainer: &Trainer| -> Vec<u8> {
            let masters = trainer.weights.iter().flat_map(|weights| &weights.master);
            masters.flat_map(|w| bf16(*w).to_le_bytes()).collect()
        };
        trainer.step();
        let before = bytes(&trainer);
        trainer.step();
        let share = share_changed(&before, &bytes(&trainer));
        // Measured on real steps: 0.2 to 1 % (bf16, AdamW at 1e-6).
        assert!((0.002..0.01).contains(&share), "{share}");
    }

    #[test]
    fn momentum_is_as_large_as_adams() {
        let mut trainer = trainer();
        trainer.step();
        let momentum = &trainer.weights[0].momentum;
        let squares = momentum.iter().map(|&m| f64::from(m) * f64::from(m));
        let deviation = (squares.sum::<f64>() / momentum.len() as f64).sqrt() / 100.0;
        // sqrt(0.1^2 / (1 - 0.9^2))
        assert!((deviation - 0.229).abs() < 0.01, "{deviation}");
    }

    #[test]
    fn bytes_are_the_nearest_ones() {
        for (number, byte) in [
            (0.4, 0),
            (0.6, 1),
            (-0.6, -1),
            (2.5, 2),
            (126.7, 127),
            (900.0, 127),
            (-900.0, -127),
        ] {
            assert_eq!(nearest_byte(number), byte, "{number}");
        }
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        // Bits worked out by hand from the IEEE layout.
        assert_eq!(bf16(1.0), 0x3F80);
        assert_eq!(bf16(f32::from_bits(0x3F80_8000)), 0x3F80);
        assert_eq!(bf16(f32::from_bits(0x3F81_8000)), 0x3F82);
        assert_eq!(bf16(f32::from_bits(0x3F80_8001)), 0x3F81);
        assert_eq!(bf16(-0.0), 0x8000);
    }

    #[test]
    fn headers_are_padded_and_describe_the_data() {
        let plan = ModelPlan::about(1_000_000);
        let bytes = header(&plan.shards[0]);
        let (length, json) = bytes.split_first_chunk::<8>().expect("there is a length");
        assert_eq!(u64::from_le_bytes(*length), json.len() as u64);
        assert!(json.len().is_multiple_of(8));
        let json: Value = serde_json::from_slice(json).expect("it is JSON");
        let first = &json[plan.shards[0][0].name.as_str()];
        assert_eq!(first["data_offsets"][1], 2 * plan.shards[0][0].elements());
    }

    #[test]
    fn the_same_seed_trains_the_same_model() {
        let [mut a, mut b] = [trainer(), trainer()];
        a.step();
        b.step();
        assert!(
            a.weights
                .iter()
                .zip(&b.weights)
                .all(|(a, b)| a.master == b.master)
        );
    }
}
