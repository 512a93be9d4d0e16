"""The assistant's forward in numpy, one token at a time, after the published description of it."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.models.cache import make_prompt_cache
from reference_expansion import Path

Array = npt.NDArray[np.float64]
KINDS = ("sliding_attention", "full_attention")


class ReferenceAssistant:
    """tensors: dense, by their published names. advancing: whether a step moves on by its depth."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, Any], target: Any, advancing: bool = False) -> None:
        self.config, self.text = config, config["text_config"]
        self.tensors = {name: np.asarray(tensor, dtype=np.float64) for name, tensor in tensors.items()}
        self.target, self.advancing = target, advancing

    def see(self, tokens: Sequence[int]) -> None:
        """Take the text so far, the pending token included, and what the target made of it in one pass."""
        *committed, self.pending = tokens
        self.position = len(committed)
        language = self.target.language_model if hasattr(self.target, "language_model") else self.target
        self.inner = language.model
        cache = make_prompt_cache(self.target)
        self.hidden = float64(self.inner(mx.array([committed]), cache=cache))[0, -1]
        own = self.inner.layers[: len(cache)]
        # The first pass leaves all of its rows in every cache, those of windows too.
        self.rows = {
            kind: next(
                tuple(float64(part)[0, :, : self.position] for part in (layer.keys, layer.values))
                for layer, block in zip(reversed(cache), reversed(own), strict=True)
                if block.layer_type == kind
            )
            for kind in KINDS
        }

    def logprobs(self, path: Path) -> Array:
        """Of all tokens, after the pending one and those of `path`."""
        hidden = self.hidden
        for depth, token in enumerate((self.pending, *path)):
            position = self.position + depth if self.advancing else self.position
            normed, hidden = self._step(token, hidden, position)
        logits = self._logits(normed)
        return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())

    def _step(self, token: int, hidden: Array, position: int) -> tuple[Array, Array]:
        embedding = float64(self.inner.embed_tokens(mx.array([token])))[0] * np.sqrt(len(hidden))
        x = self.tensors["pre_projection.weight"] @ np.concatenate([embedding, hidden])
        for number, kind in enumerate(self.text["layer_types"]):
            x = self._layer(f"model.layers.{number}", kind, x, position)
        normed = self._norm("model.norm", x)
        return normed, self.tensors["post_projection.weight"] @ normed

    def _layer(self, name: str, kind: str, x: Array, position: int) -> Array:
        attended = self._attention(f"{name}.self_attn", kind, self._norm(f"{name}.input_layernorm", x), position)
        x = x + self._norm(f"{name}.post_attention_layernorm", attended)
        inner = self._norm(f"{name}.pre_feedforward_layernorm", x)
        gate, up, down = (self.tensors[f"{name}.mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
        x = x + self._norm(f"{name}.post_feedforward_layernorm", down @ (gelu(gate @ inner) * (up @ inner)))
        return x * self.tensors[f"{name}.layer_scalar"]

    def _attention(self, name: str, kind: str, x: Array, position: int) -> Array:
        keys, values = self.rows[kind]
        if kind == "sliding_attention":
            # Position p is seen from `position` when position - p < window.
            near = np.arange(self.position) > self.position - self.text["sliding_window"]
            keys, values = keys[:, near], values[:, near]
        heads = self.text["num_attention_heads"]
        queries = (self.tensors[f"{name}.q_proj.weight"] @ x).reshape(heads, -1)
        output = []
        for head, query in enumerate(queries):
            own = head // (heads // len(keys))
            rotated = self._rotated(self._norm(f"{name}.q_norm", query), kind, position)
            weights = np.exp(keys[own] @ rotated - (keys[own] @ rotated).max())
            output.append(weights / weights.sum() @ values[own])
        return self.tensors[f"{name}.o_proj.weight"] @ np.concatenate(output)

    def _rotated(self, x: Array, kind: str, position: int) -> Array:
        rope, half = self.text["rope_parameters"][kind], len(x) // 2
        angles = position * rope["rope_theta"] ** (-np.arange(half) / half)
        if rope["rope_type"] == "proportional":
            angles[int(half * rope["partial_rotary_factor"]) :] = 0
        first, second = x[:half], x[half:]
        return np.concatenate(
            [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)]
        )

    def _logits(self, normed: Array) -> Array:
        logits = self.tensors["model.embed_tokens.weight"] @ normed
        if not self.config["use_ordered_embeddings"]:
            return logits
        scores = self.tensors["masked_embedding.centroids.weight"] @ normed
        clusters = self.tensors["masked_embedding.token_ordering"].astype(int).reshape(len(scores), -1)
        active = clusters[np.argsort(-scores)[: self.config["centroid_intermediate_top_k"]]].ravel()
        masked = np.full_like(logits, -np.inf)
        masked[active] = logits[active]
        return masked

    def _norm(self, name: str, x: Array) -> Array:
        return x / np.sqrt((x**2).mean() + self.text["rms_norm_eps"]) * self.tensors[f"{name}.weight"]


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def float64(array: mx.array) -> Array:
    return np.array(array.astype(mx.float32)).astype(np.float64)
