"""The MTP head in float64 numpy, written from its definition: every pair at once, no cache.

`raw` are the tensors of a raw checkpoint (zero-centred norms, fused experts), which may have been packed and unpacked.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def numbers(tensor: mx.array) -> Array:
    return np.array(tensor.astype(mx.float32)).astype(np.float64)


def reference(
    raw: Mapping[str, mx.array],
    config: Mapping[str, Any],
    embedded: Array,
    hidden: Array,
    positions: Array,
    seen: npt.NDArray[np.bool_],
) -> Array:
    """Normed outputs [N, H] of N pairs (embedding, hidden state); seen: [N, N], which pairs a pair attends to."""
    head = _Head({name: numbers(tensor) for name, tensor in raw.items()}, config)
    return head.run(embedded, hidden, positions, seen)


class _Head:
    def __init__(self, weights: Mapping[str, Array], config: Mapping[str, Any]) -> None:
        self.weights, self.config = weights, config

    def run(self, embedded: Array, hidden: Array, positions: Array, seen: npt.NDArray[np.bool_]) -> Array:
        pair = [self.norm(embedded, "pre_fc_norm_embedding"), self.norm(hidden, "pre_fc_norm_hidden")]
        x = np.concatenate(pair, axis=1) @ self.weights["fc.weight"].T
        x = x + self.attention(self.norm(x, "layers.0.input_layernorm"), positions, seen)
        normed = self.norm(x, "layers.0.post_attention_layernorm")
        moe = "layers.0.mlp.gate.weight" in self.weights
        x = x + (self.experts(normed) if moe else self.mlp(normed, "layers.0.mlp"))
        return self.norm(x, "norm")

    def norm(self, x: Array, name: str) -> Array:
        """The stored weight is one less than the factor."""
        scale = np.sqrt((x**2).mean(axis=-1, keepdims=True) + self.config["rms_norm_eps"])
        return x / scale * (1 + self.weights[f"{name}.weight"])

    def attention(self, x: Array, positions: Array, seen: npt.NDArray[np.bool_]) -> Array:
        heads, kv_heads, d = (self.config[n] for n in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        q, k, v = (x @ self.weights[f"layers.0.self_attn.{n}_proj.weight"].T for n in "qkv")
        outputs = []
        for head in range(heads):
            both = q[:, head * 2 * d : (head + 1) * 2 * d]
            query = self.rotated(self.norm(both[:, :d], "layers.0.self_attn.q_norm"), positions)
            group = slice(head // (heads // kv_heads) * d, (head // (heads // kv_heads) + 1) * d)
            key = self.rotated(self.norm(k[:, group], "layers.0.self_attn.k_norm"), positions)
            scores = np.where(seen, query @ key.T / np.sqrt(d), -np.inf)
            outputs.append(_softmax(scores) @ v[:, group] * _sigmoid(both[:, d:]))
        return np.concatenate(outputs, axis=1) @ self.weights["layers.0.self_attn.o_proj.weight"].T

    def rotated(self, x: Array, positions: Array) -> Array:
        rope = self.config["rope_parameters"]
        half = int(x.shape[1] * rope["partial_rotary_factor"]) // 2
        angles = positions[:, None] * rope["rope_theta"] ** (-np.arange(half) / half)
        first, second, rest = x[:, :half], x[:, half : 2 * half], x[:, 2 * half :]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, first * sin + second * cos, rest], axis=1)

    def mlp(self, x: Array, path: str) -> Array:
        gate, up, down = (self.weights[f"{path}.{n}_proj.weight"] for n in ("gate", "up", "down"))
        return (_silu(x @ gate.T) * (x @ up.T)) @ down.T

    def experts(self, x: Array) -> Array:
        shared_gate = _sigmoid(x @ self.weights["layers.0.mlp.shared_expert_gate.weight"].T)
        output = self.mlp(x, "layers.0.mlp.shared_expert") * shared_gate
        odds = _softmax(x @ self.weights["layers.0.mlp.gate.weight"].T)
        for row in range(len(x)):
            chosen = np.argsort(-odds[row])[: self.config["num_experts_per_tok"]]
            for expert in chosen:
                share = odds[row, expert] / odds[row, chosen].sum()
                gate, up = np.split(self.weights["layers.0.mlp.experts.gate_up_proj"][expert], 2)
                down = self.weights["layers.0.mlp.experts.down_proj"][expert]
                output[row] += share * ((_silu(x[row] @ gate.T) * (x[row] @ up.T)) @ down.T)
        return output


def _softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)
