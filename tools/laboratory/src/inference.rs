//! What a model's KV cache is, and how long an accelerator computes it: equations, since there is no accelerator here.

/// Tokens of a page of the cache, as vLLM has them.
pub const PAGE_TOKENS: usize = 16;

/// A model, by its published configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Its name.
    pub name: &'static str,
    /// Parameters that a token passes through.
    pub active_parameters: f64,
    /// Layers that keep a cache for each token. Others keep none, or a state that does not grow, which is not moved here.
    pub kv_layers: usize,
    /// Bytes that such a layer keeps of a token: values of two bytes.
    pub layer_token_bytes: usize,
    /// Values that such a layer's attention multiplies a token by another with: heads × their dimension.
    pub attention_width: f64,
    /// Accelerators of a site that share its work evenly.
    pub accelerators: f64,
}

/// An accelerator, by its data sheet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accelerator {
    /// Its name.
    pub name: &'static str,
    /// Operations a second on values of two bytes, without sparsity.
    pub flops: f64,
    /// Bytes a second of its memory.
    pub memory_bytes: f64,
    /// The share of `flops` that a prefill reaches.
    pub prefill_share: f64,
    /// The share of `memory_bytes` that a decode step reaches.
    pub decode_share: f64,
}

/// NVIDIA's H100 SXM. The shares are assumptions: what large dense products and streams of weights usually reach.
pub const H100: Accelerator =
    Accelerator { name: "H100 SXM", flops: 989e12, memory_bytes: 3.35e12, prefill_share: 0.5, decode_share: 0.7 };

/// Those that are played.
pub const MODELS: [Model; 4] = [
    // 8 heads of keys and of values of 128 in each of 32 layers: 128 KiB a token.
    Model {
        name: "Llama-3.1-8B",
        active_parameters: 8.03e9,
        kv_layers: 32,
        layer_token_bytes: 4096,
        attention_width: 4096.0,
        accelerators: 1.0,
    },
    // The same in 80 layers: 320 KiB.
    Model {
        name: "Llama-3.1-70B",
        active_parameters: 70.6e9,
        kv_layers: 80,
        layer_token_bytes: 4096,
        attention_width: 8192.0,
        accelerators: 8.0,
    },
    // 7 of 27 layers attend, with 576 latent values: 8,064 bytes. 3 of 48 billion parameters are active.
    Model {
        name: "Kimi-Linear-48B",
        active_parameters: 3e9,
        kv_layers: 7,
        layer_token_bytes: 1152,
        attention_width: 32.0 * 192.0,
        accelerators: 1.0,
    },
    // 4 of 56 layers attend: 16,384 bytes.
    Model {
        name: "Nemotron-Nano-9B",
        active_parameters: 8.9e9,
        kv_layers: 4,
        layer_token_bytes: 4096,
        attention_width: 40.0 * 128.0,
        accelerators: 1.0,
    },
];

impl Model {
    /// Bytes of the cache for a token.
    pub fn token_bytes(&self) -> usize {
        self.kv_layers * self.layer_token_bytes
    }

    /// Bytes of a layer's page, which is what an engine is asked to move.
    pub fn page_bytes(&self) -> usize {
        PAGE_TOKENS * self.layer_token_bytes
    }

    /// Seconds that a site computes a prompt: 2 operations a parameter and token, and of causal attention 2 × 2 for each value
    /// of each earlier token.
    pub fn prefill_s(&self, tokens: usize, accelerator: &Accelerator) -> f64 {
        let tokens = tokens as f64;
        let products = 2.0 * self.active_parameters * tokens;
        let attention = self.kv_layers as f64 * 4.0 * self.attention_width * tokens * tokens / 2.0;
        (products + attention) / (self.accelerators * accelerator.flops * accelerator.prefill_share)
    }

    /// Seconds that the first token takes once the cache is there: the weights and the cache are read once.
    pub fn first_token_s(&self, tokens: usize, accelerator: &Accelerator) -> f64 {
        let bytes = 2.0 * self.active_parameters + (tokens * self.token_bytes()) as f64;
        bytes / (self.accelerators * accelerator.memory_bytes * accelerator.decode_share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_those_of_the_published_tables() {
        let bytes = MODELS.map(|model| model.token_bytes());
        assert_eq!(bytes, [128 << 10, 320 << 10, 8064, 16_384]);
    }

    #[test]
    fn equations_give_what_paper_and_pencil_do() {
        // 2 × 8.03e9 × 1024 = 16.45e12 operations, and 32 × 4 × 4096 × 1024² ÷ 2 = 0.27e12 of attention, at 494.5e12 a second.
        let llama = MODELS[0];
        assert!((llama.prefill_s(1024, &H100) - 0.033_81).abs() < 1e-4);
        // 16.06e9 bytes of weights and 0.134e9 of cache, at 2.345e12 a second.
        assert!((llama.first_token_s(1024, &H100) - 0.006_906).abs() < 1e-5);
    }
}
