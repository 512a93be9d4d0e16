"""The forward of a block drafter, written down slot by slot in float64, to compare with.

It keeps nothing: the context of all committed tokens is computed anew from the target's hidden states.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Reference:
    """config: of the checkpoint, as JSON. tensors: by published name. embedding, head: the target's, [V, H]."""

    config: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]
    embedding: np.ndarray
    head: np.ndarray
    embedding_scale: float = 1.0
    causal: bool | None = None

    def logits(self, hidden: np.ndarray, root: int, block_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Normed hidden states and logits of the mask slots; hidden: [tokens, taps * H], of all committed tokens."""
        own = self.config["dflash_config"]
        context = [rms_norm(self.tensor("fc.weight") @ row, self.tensor("hidden_norm.weight")) for row in hidden]
        ids = [root] + [own["mask_token_id"]] * (block_size - 1)
        scale = self.embedding_scale * own.get("input_embedding_scale", 1.0)
        z = np.stack([self.embedding[token] * scale for token in ids])
        for layer in range(self.config["num_hidden_layers"]):
            z = z + self.wrapped(layer, "attention", "input", z, lambda u, n=layer: self.attention(n, context, u))
            z = z + self.wrapped(layer, "mlp", "post_attention", z, lambda u, n=layer: self.mlp(n, u))
        states = np.stack([rms_norm(row, self.tensor("norm.weight")) for row in z[1:]])
        logits = states @ self.head.T * own.get("output_multiplier", 1.0)
        cap = own.get("final_logit_softcapping")
        return states, logits if cap is None else cap * np.tanh(logits / cap)

    def lattice(self, states: np.ndarray, logits: np.ndarray, root: int) -> list[dict[tuple[int, int], float]]:
        """For each slot the score of (token before, token), over its best tokens and those of the slot before."""
        count = self.config["dflash_config"]["selector_top_k"]
        best = [np.argsort(-row, kind="stable")[:count].tolist() for row in logits]
        predecessor = self.tensor("candidate_selector.predecessor_codebook")
        successor = self.tensor("candidate_selector.successor_codebook")
        slots = []
        for slot, state in enumerate(states):
            gate = self.tensor("candidate_selector.hidden_projection.weight") @ state
            slots.append(
                {
                    (before, token): logits[slot, token] + float(np.sum(predecessor[before] * gate * successor[token]))
                    for before in (best[slot - 1] if slot else [root])
                    for token in best[slot]
                }
            )
        return slots

    def tensor(self, name: str) -> np.ndarray:
        return self.tensors[name].astype(np.float64)

    def wrapped(self, layer: int, kind: str, norm: str, z: np.ndarray, sublayer: Any) -> np.ndarray:
        """A sublayer of the normed rows of z, between its convolutions where the checkpoint has them."""
        x = np.stack([rms_norm(row, self.tensor(f"layers.{layer}.{norm}_layernorm.weight")) for row in z])
        if "conv_kernel_size" not in self.config["dflash_config"]:
            return sublayer(x)
        prefix = f"layers.{layer}.{kind}_conv."
        return self.convolution(prefix, 1, x, sublayer(self.convolution(prefix, 0, x, x)))

    def convolution(self, prefix: str, side: int, x: np.ndarray, u: np.ndarray) -> np.ndarray:
        own = self.config["dflash_config"]
        taps, group = own["conv_kernel_size"], own["conv_group_size"]
        base, projection = self.tensor(prefix + "base_kernel"), self.tensor(prefix + "kernel_projection.weight")
        out = np.zeros_like(u)
        for t in range(len(u)):
            delta = (projection @ x[t]).reshape(2, taps, -1)
            for tap in range(min(taps, t + 1)):
                for channel in range(u.shape[1]):
                    kernel = base[side, tap, channel] + delta[side, tap, channel // group]
                    out[t, channel] += kernel * u[t - tap, channel]
        return out

    def attention(self, layer: int, context: list[np.ndarray], x: np.ndarray) -> np.ndarray:
        heads, key_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        width, prefix = self.config["head_dim"], f"layers.{layer}.self_attn."
        start = len(context)

        def projected(row: np.ndarray, name: str) -> np.ndarray:
            return (self.tensor(prefix + f"{name}_proj.weight") @ row).reshape(-1, width)

        def normed(vectors: np.ndarray, name: str) -> np.ndarray:
            return np.stack([rms_norm(vector, self.tensor(prefix + f"{name}_norm.weight")) for vector in vectors])

        rows = [*context, *x]
        keys = [self.rope(normed(projected(row, "k"), "k"), place) for place, row in enumerate(rows)]
        values = [projected(row, "v") for row in rows]
        outputs = []
        for slot, row in enumerate(x):
            query = self.rope(normed(projected(row, "q"), "q"), start + slot)
            seen = [place for place in range(len(rows)) if self.sees(layer, start, start + slot, place)]
            attended = []
            for head in range(heads):
                source = head // (heads // key_heads)
                scores = np.array([query[head] @ keys[place][source] / math.sqrt(width) for place in seen])
                odds = np.exp(scores - scores.max())
                attended.append(
                    sum(p * values[place][source] for p, place in zip(odds / odds.sum(), seen, strict=True))
                )
            outputs.append(self.tensor(prefix + "o_proj.weight") @ np.concatenate(attended))
        return np.stack(outputs)

    def sees(self, layer: int, start: int, query: int, key: int) -> bool:
        """Whether the slot at position `query` sees `key`; the block begins at `start`."""
        slides = self.config["layer_types"][layer] == "sliding_attention"
        if slides and abs(query - key) >= self.config["sliding_window"]:
            return False
        stated = self.config.get("is_causal") if self.causal is None else self.causal
        causal = slides if stated is None else stated
        return key <= query or not causal

    def mlp(self, layer: int, x: np.ndarray) -> np.ndarray:
        gate, up, down = (self.tensor(f"layers.{layer}.mlp.{name}_proj.weight") for name in ("gate", "up", "down"))
        activation = gelu if self.config["hidden_act"] == "gelu_pytorch_tanh" else silu
        return np.stack([down @ (activation(gate @ row) * (up @ row)) for row in x])

    def rope(self, vectors: np.ndarray, position: int) -> np.ndarray:
        """Rotates pairs (i, i + width / 2) by position / theta^(2 i / width); yarn as in arXiv:2309.00071."""
        width = vectors.shape[1]
        rates, scale = rope_rates(self.config, width)
        angles = position * rates
        first, second = vectors[:, : width // 2], vectors[:, width // 2 :]
        cos, sin = np.cos(angles) * scale, np.sin(angles) * scale
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=1)


YARN_SCALES = (("mscale", 1), ("mscale_all_dim", 0))


def rope_rates(config: Mapping[str, Any], width: int) -> tuple[np.ndarray, float]:
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = parameters.get("rope_theta") or config["rope_theta"]
    rates = np.array([theta ** (-2 * i / width) for i in range(width // 2)])
    if parameters.get("rope_type", "default") != "yarn":
        return rates, 1.0
    factor, trained = parameters["factor"], parameters["original_max_position_embeddings"]

    def place_of(rotations: float) -> float:
        return width * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(place_of(parameters.get("beta_fast", 32))), 0)
    high = min(math.ceil(place_of(parameters.get("beta_slow", 1))), width - 1)
    ramp = np.clip((np.arange(width // 2) - low) / max(high - low, 0.001), 0, 1)
    scales = [0.1 * parameters.get(name, default) * math.log(factor) + 1 for name, default in YARN_SCALES]
    return rates / factor * ramp + rates * (1 - ramp), scales[0] / scales[1]


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    """The approximation by tanh of arXiv:1606.08415."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def rms_norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x) + 1e-6) * weight
