"""Attention of the slots of a block over the context and the block itself."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from worker.engine.drafters.dflash.config import DFlashConfig
from worker.engine.drafters.dflash.context import KeysValues, with_block
from worker.engine.drafters.dflash.masks import Mask


class BlockAttention(nn.Module):  # type: ignore[misc]
    """One projection makes the keys and values of context and block; queries are of the block alone."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        hidden, width = config.hidden_size, config.head_dim
        self.heads, self.key_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, width
        self.q_proj = nn.Linear(hidden, self.heads * width, bias=False)
        self.k_proj = nn.Linear(hidden, self.key_heads * width, bias=False)
        self.v_proj = nn.Linear(hidden, self.key_heads * width, bias=False)
        self.o_proj = nn.Linear(self.heads * width, hidden, bias=False)
        self.q_norm = nn.RMSNorm(width, config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(width, config.rms_norm_eps)
        self.rope = config.rope.build(width)

    def keys_values(self, x: mx.array, position: int) -> KeysValues:
        """Of rows x [n, hidden] at positions from `position` on."""
        keys = self.k_norm(self._by_head(self.k_proj(x), self.key_heads))
        return self.rope(keys, offset=position), self._by_head(self.v_proj(x), self.key_heads)

    def __call__(self, x: mx.array, position: int, layer: Any, mask: Mask) -> mx.array:
        """Of a block's rows x [slots, hidden], the first at `position`, over the context in `layer`: the same shape."""
        queries = self.rope(self.q_norm(self._by_head(self.q_proj(x), self.heads)), offset=position)
        keys, values = with_block(layer, self.keys_values(x, position))
        seen = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=self.head_dim**-0.5, mask=mask)
        output: mx.array = self.o_proj(seen[0].transpose(1, 0, 2).reshape(x.shape[0], -1))
        return output

    def _by_head(self, x: mx.array, heads: int) -> mx.array:
        """[n, heads * head_dim] -> [1, heads, n, head_dim]."""
        return x.reshape(x.shape[0], heads, self.head_dim).transpose(1, 0, 2)[None]
