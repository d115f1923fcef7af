//! The made-up model: the shapes of a language model of about the wanted size, and how its weights are spread.

/// Tensors are put into this many weight files.
const SHARDS: u64 = 4;

/// One tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorPlan {
    /// Its name, as Hugging Face models name it.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<u64>,
    /// Mean of its weights.
    pub mean: f32,
    /// Their standard deviation.
    pub deviation: f32,
}

impl TensorPlan {
    /// Number of its elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// A decoder-only transformer with grouped-query attention and tied embeddings.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelPlan {
    /// Width of the residual stream.
    pub hidden: u64,
    /// Width of keys and values.
    pub key_value: u64,
    /// Width inside the feed-forward network.
    pub intermediate: u64,
    /// Number of layers.
    pub layers: u64,
    /// Number of tokens.
    pub vocabulary: u64,
    /// The tensors of each weight file.
    pub shards: Vec<Vec<TensorPlan>>,
}

impl ModelPlan {
    /// A model of about `parameters` parameters; the smallest has some 200,000.
    pub fn about(parameters: u64) -> Self {
        // With a vocabulary of 32 widths and 15 layers a model has about 190 squares of its width.
        let width = (parameters as f64 / 190.0).sqrt() / 64.0;
        let hidden = 64 * (width.round() as u64).max(1);
        let key_value = hidden / 4;
        let intermediate = (hidden * 11 / 4).next_multiple_of(64);
        let vocabulary = 32 * hidden;
        let layer = 2 * hidden * hidden + 2 * hidden * key_value + 3 * hidden * intermediate;
        let rest = parameters.saturating_sub(vocabulary * hidden);
        let layers = ((rest + layer / 2) / layer).max(1);
        let mut plan = Self {
            hidden,
            key_value,
            intermediate,
            layers,
            vocabulary,
            shards: Vec::new(),
        };
        plan.shards = in_shards(plan.all_tensors());
        plan
    }

    /// Number of parameters.
    pub fn parameters(&self) -> u64 {
        self.tensors().map(TensorPlan::elements).sum()
    }

    /// All tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorPlan> {
        self.shards.iter().flatten()
    }

    /// The file name of a shard.
    pub fn shard_name(&self, shard: usize) -> String {
        format!(
            "model-{:05}-of-{:05}.safetensors",
            shard + 1,
            self.shards.len()
        )
    }

    fn all_tensors(&self) -> Vec<TensorPlan> {
        let matrix = |name: String, rows: u64, columns: u64, deviation: f32| TensorPlan {
            name,
            shape: vec![rows, columns],
            mean: 0.0,
            deviation,
        };
        let norm = |name: String| TensorPlan {
            name,
            shape: vec![self.hidden],
            mean: 1.0,
            deviation: 0.1,
        };
        let (hidden, key_value, inner) = (self.hidden, self.key_value, self.intermediate);
        // Trained weights are larger than those that training begins with.
        let embedding = "model.embed_tokens.weight".to_owned();
        let mut tensors = vec![matrix(embedding, self.vocabulary, hidden, 0.03)];
        for layer in 0..self.layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
            tensors.extend([
                norm(name("input_layernorm")),
                matrix(name("self_attn.q_proj"), hidden, hidden, 0.04),
                matrix(name("self_attn.k_proj"), key_value, hidden, 0.05),
                matrix(name("self_attn.v_proj"), key_value, hidden, 0.025),
                matrix(name("self_attn.o_proj"), hidden, hidden, 0.025),
                norm(name("post_attention_layernorm")),
                matrix(name("mlp.gate_proj"), inner, hidden, 0.035),
                matrix(name("mlp.up_proj"), inner, hidden, 0.03),
                matrix(name("mlp.down_proj"), hidden, inner, 0.03),
            ]);
        }
        tensors.push(norm("model.norm.weight".to_owned()));
        tensors
    }
}

/// Spread tensors over weight files of about the same size, in their order.
fn in_shards(tensors: Vec<TensorPlan>) -> Vec<Vec<TensorPlan>> {
    let total: u64 = tensors.iter().map(TensorPlan::elements).sum();
    let mut shards = Vec::new();
    let mut shard = Vec::new();
    let mut elements = 0;
    for tensor in tensors {
        elements += tensor.elements();
        shard.push(tensor);
        if elements >= total.div_ceil(SHARDS) {
            shards.push(std::mem::take(&mut shard));
            elements = 0;
        }
    }
    if !shard.is_empty() {
        shards.push(shard);
    }
    shards
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_about_as_large_as_asked() {
        for wanted in [1_000_000, 10_000_000, 200_000_000, 7_000_000_000] {
            let parameters = ModelPlan::about(wanted).parameters();
            let ratio = parameters as f64 / wanted as f64;
            assert!((0.8..1.2).contains(&ratio), "{parameters} for {wanted}");
        }
        assert!(ModelPlan::about(1).parameters() < 250_000);
    }

    #[test]
    fn every_tensor_is_in_one_shard() {
        let plan = ModelPlan::about(1_000_000);
        let mut names: Vec<&str> = plan.tensors().map(|t| t.name.as_str()).collect();
        assert_eq!(names.len() as u64, 9 * plan.layers + 2);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len() as u64, 9 * plan.layers + 2);
        assert!(plan.shards.len() > 1);
        assert!(plan.shards.iter().all(|shard| !shard.is_empty()));
    }
}
