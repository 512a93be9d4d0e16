"""What the target lends: keys and values of its last layers that have their own, its embedding and its normed state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache
from mlx_lm.models.gemma4_text import Gemma4TextModel

from worker.engine.drafters.gemma_assistant.config import LayerType
from worker.engine.drafters.gemma_assistant.network import Borrowed, KeysValues
from worker.engine.verify.taps import Taps, head_and_inner


class Lender:
    """A Gemma-4 target, as its assistant sees it. Raises ValueError for any other model."""

    def __init__(self, target: Any) -> None:
        _, inner = head_and_inner(target)
        if not isinstance(inner, Gemma4TextModel):
            raise ValueError("its text model is not a Gemma-4 one")
        self._inner: Any = inner
        self.taps = Taps(target, normed=True)
        self.hidden_size = int(inner.config.hidden_size)
        self.vocab_size = int(inner.config.vocab_size)
        self.sliding_window = int(inner.window_size)
        self.dtype: mx.Dtype = self.embed(mx.array([0])).dtype
        # The cache has an entry for each layer that owns its keys and values; the last of a type is the one to borrow.
        owners = [layer for layer in inner.layers if layer.self_attn.has_kv]
        self._places: dict[LayerType, int] = {layer.layer_type: place for place, layer in enumerate(owners)}

    def attention(self, kind: LayerType) -> Any | None:
        """The attention whose keys and values layers of type `kind` borrow; None when the target has none."""
        return self._inner.layers[self._places[kind]].self_attn if kind in self._places else None

    def embed(self, tokens: mx.array) -> mx.array:
        """The target's embeddings of tokens [M] as it scales them, [M, hidden size]."""
        scaled: mx.array = self.taps.embed(tokens) * self._inner.embed_scale
        return scaled

    def lend(self, cache: Sequence[Any], committed: int, kinds: Iterable[LayerType], window: int) -> Borrowed:
        """Keys and values of `committed` tokens, of each type of layers; of sliding ones, what a token sees after them.

        window: positions that it sees, its own included.
        """
        return {
            kind: _last(cache[self._places[kind]], committed, window - 1 if kind == "sliding_attention" else committed)
            for kind in kinds
        }


def _last(layer: Any, committed: int, count: int) -> KeysValues:
    """The rows of the last `count` of the first `committed` tokens, oldest first; all where there are fewer.

    A pass that was queued already may have put the pending token's row behind them.
    """
    keys, values = layer.keys, layer.values
    behind = layer.offset - committed
    assert behind >= 0
    if isinstance(layer, RotatingKVCache):
        keys, values = layer._temporal_order(keys), layer._temporal_order(values)
        end = keys.shape[2] - behind
    else:
        end = committed
    start = max(0, end - count)
    return keys[..., start:end, :], values[..., start:end, :]
