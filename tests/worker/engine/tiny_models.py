"""Tiny random models of several mlx-lm families, in float32 unless asked otherwise."""

import importlib
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map_with_path

VOCABULARY = 97
CONTEXT = 4096

_DENSE = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**_DENSE, "model_type": "llama", "tie_word_embeddings": False},
    "mistral": {**_DENSE, "model_type": "llama", "num_key_value_heads": 4, "head_dim": 16},
    "qwen2": {**_DENSE, "model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {**_DENSE, "model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
    "phi3": {**_DENSE, "model_type": "phi3"},
    "gpt2": {
        "model_type": "gpt2",
        "n_ctx": 512,
        "n_embd": 64,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 512,
        "layer_norm_epsilon": 1e-5,
        "vocab_size": VOCABULARY,
    },
    "gemma3_text": {
        "model_type": "gemma3_text",
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 8,
        "sliding_window_pattern": 2,
        "vocab_size": VOCABULARY,
    },
    "qwen3_next": {
        "model_type": "qwen3_next",
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "full_attention_interval": 4,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "norm_topk_prob": True,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": CONTEXT,
        "vocab_size": VOCABULARY,
    },
}
ATTENTION_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "phi3")


def tiny_model(family: str, *, dtype: mx.Dtype = mx.float32, seed: int = 1, **changes: Any) -> Any:
    """A model whose greedy text wanders: small embeddings keep the residual stream from repeating its input, and large
    layer weights make the logits depend on the whole context.
    """
    config = {**CONFIGS[family], **changes}
    architecture = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    mx.random.seed(seed)
    model = architecture.Model(architecture.ModelArgs.from_dict(config))

    def scaled(path: str, weight: mx.array) -> mx.array:
        if "embed_tokens" in path or "wte" in path:
            return weight * 0.05
        in_layer = "layers." in path or ".h." in path or path.startswith("h.")
        return weight * 4 if in_layer and weight.ndim == 2 else weight

    model.update(tree_map_with_path(scaled, model.parameters()))
    model.set_dtype(dtype)
    mx.eval(model.parameters())
    return model
