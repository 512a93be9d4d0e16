"""The assistant's network, with the tensor names of its checkpoints.

Decoder layers as in Gemma-4's text models: norms that scale by their weight, attention scaled by 1, GELU with tanh. But
they have no keys and values: each row is a query over what the target has of the committed tokens. So rows do not see
one another, and all nodes of a level of a draft tree, whatever is above them, are one pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from worker.engine.drafters.gemma_assistant.config import AssistantConfig, Centroids, LayerType

KeysValues = tuple[mx.array, mx.array]
"""Keys, which are normed and rotated, and values of the target, [1, heads, tokens, head_dim] each."""
Borrowed = Mapping[LayerType, KeysValues]


class Assistant(nn.Module):  # type: ignore[misc]
    """One step of drafting for M nodes at once."""

    def __init__(self, config: AssistantConfig) -> None:
        super().__init__()
        self.pre_projection = nn.Linear(2 * config.backbone_hidden_size, config.hidden_size, bias=False)
        self.post_projection = nn.Linear(config.hidden_size, config.backbone_hidden_size, bias=False)
        self.model = _Trunk(config)
        if config.centroids is not None:
            self.masked_embedding = _MaskedEmbedding(config, config.centroids)

    def __call__(
        self, embeddings: mx.array, hidden: mx.array, borrowed: Borrowed, positions: mx.array
    ) -> tuple[mx.array, mx.array]:
        """Step from tokens with `embeddings` [M, H], scaled as the target's, at `positions` [M].

        hidden: [M, H] of the token before each: the target's normed state, or what the step of that token returned.
        Returns normed states [M, h] for `head`, and states [M, H] for the steps that follow.
        """
        x = self.pre_projection(mx.concatenate([embeddings, hidden], axis=-1))
        for layer in self.model.layers:
            x = layer(x, borrowed, positions)
        normed: mx.array = self.model.norm(x)
        return normed, self.post_projection(normed)

    def head(self, normed: mx.array) -> tuple[mx.array, mx.array | None]:
        """Logits [M, columns] of the rows of `normed` [M, h], and the tokens [M, columns] that they are of, None = all.

        The head is the embedding, and caps nothing.
        """
        if "masked_embedding" not in self:
            return self.model.embed_tokens.as_linear(normed), None
        logits, ids = self.masked_embedding(normed, self.model.embed_tokens)
        return logits, ids


class _Trunk(nn.Module):  # type: ignore[misc]
    def __init__(self, config: AssistantConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = [_Layer(config, kind) for kind in config.layer_types]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class _Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, config: AssistantConfig, kind: LayerType) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(size, eps=eps)
        self.post_attention_layernorm = nn.RMSNorm(size, eps=eps)
        self.pre_feedforward_layernorm = nn.RMSNorm(size, eps=eps)
        self.post_feedforward_layernorm = nn.RMSNorm(size, eps=eps)
        self.self_attn = _BorrowingAttention(config, kind)
        self.mlp = _FeedForward(config)
        self.layer_scalar = mx.ones((1,))

    def __call__(self, x: mx.array, borrowed: Borrowed, positions: mx.array) -> mx.array:
        attended = self.self_attn(self.input_layernorm(x), borrowed, positions)
        x = x + self.post_attention_layernorm(attended)
        x = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return x * self.layer_scalar


class _BorrowingAttention(nn.Module):  # type: ignore[misc]
    def __init__(self, config: AssistantConfig, kind: LayerType) -> None:
        super().__init__()
        self._kind: LayerType = kind
        self._heads, self._width = config.num_attention_heads, config.head_dims[kind]
        self.q_proj = nn.Linear(config.hidden_size, self._heads * self._width, bias=False)
        self.o_proj = nn.Linear(self._heads * self._width, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(self._width, eps=config.rms_norm_eps)
        self.rope = config.new_rope(kind)

    def __call__(self, x: mx.array, borrowed: Borrowed, positions: mx.array) -> mx.array:
        keys, values = borrowed[self._kind]
        # Rows are the batch while they are rotated, as each has a position of its own; then they are queries.
        queries = self.q_norm(self.q_proj(x).reshape(-1, self._heads, 1, self._width))
        queries = self.rope(queries, offset=positions).swapaxes(0, 2)
        attended = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=1.0)
        output: mx.array = self.o_proj(attended.swapaxes(0, 2).reshape(x.shape[0], -1))
        return output


class _FeedForward(nn.Module):  # type: ignore[misc]
    def __init__(self, config: AssistantConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        output: mx.array = self.down_proj(nn.gelu_approx(self.gate_proj(x)) * self.up_proj(x))
        return output


class _MaskedEmbedding(nn.Module):  # type: ignore[misc]
    """A head that scores only the tokens of the best clusters of embeddings."""

    def __init__(self, config: AssistantConfig, centroids: Centroids) -> None:
        super().__init__()
        self._active = centroids.active
        self._clusters = (centroids.count, config.vocab_size // centroids.count)
        self.centroids = nn.Linear(config.hidden_size, centroids.count, bias=False)
        self.token_ordering = mx.arange(config.vocab_size, dtype=mx.int64)

    def __call__(self, normed: mx.array, embedding: Any) -> tuple[mx.array, mx.array]:
        """Logits and ids [M, active clusters * tokens of a cluster] of rows [M, h]; the others have no chance."""
        best = mx.argpartition(-self.centroids(normed), self._active - 1, axis=-1)[:, : self._active]
        ids = self.token_ordering.reshape(self._clusters)[best].flatten(1)
        logits = (embedding(ids) @ normed[..., None]).squeeze(-1)
        return logits, ids
