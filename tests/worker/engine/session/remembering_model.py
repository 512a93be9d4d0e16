"""A model that computes nothing but what its caches remember, so that a wrong cache is a wrong integer.

Each layer writes the tokens it is given into one kind of cache. The logits after a token are one number per layer: a
digest of all that this layer can still see, each row with its position.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

PRIME = 8191
WINDOW = 6


class Tally:
    """Part of a cache that is an object of its own."""

    def __init__(self) -> None:
        self.sums = {"all": mx.zeros((1,), dtype=mx.int32)}


class FoldingCache:
    """A cache class that nobody knows. It folds all tokens into arrays, one of which it changes in place."""

    def __init__(self) -> None:
        self.fold = mx.zeros((1, 2), dtype=mx.int32)
        self.recent: list[mx.array] = []
        self.tally = Tally()
        self.offset = 0

    @property
    def state(self) -> Any:
        return self.fold, self.recent, self.tally.sums

    def is_trimmable(self) -> bool:
        return False

    def update(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.fold[0, 1] = (self.fold[0, 1] * 31 + token) % PRIME
            self.tally.sums["all"][0] = (self.tally.sums["all"][0] * 17 + token) % PRIME
            self.recent = [*self.recent[-2:], mx.array(token)]
        self.offset += len(tokens)


KINDS: dict[str, Callable[[], Any]] = {
    "rows": KVCache,
    "quantized rows": lambda: QuantizedKVCache(group_size=32, bits=8),
    "concatenated rows": ConcatenateKVCache,
    "window": lambda: RotatingKVCache(max_size=WINDOW),
    "window with a kept start": lambda: RotatingKVCache(max_size=WINDOW, keep=2),
    "arrays": lambda: ArraysCache(2),
    "chunk": lambda: ChunkedKVCache(8),
    "unknown": FoldingCache,
    "several": lambda: CacheList(KVCache(), CacheList(FoldingCache(), KVCache())),
}
ROWS_ONLY = ("rows", "quantized rows", "concatenated rows")


class RememberingModel(nn.Module):  # type: ignore[misc]
    """Called as mlx-lm models are. `passes` has the number of tokens of each pass."""

    def __init__(self, *kinds: str) -> None:
        super().__init__()
        self.kinds = kinds
        self.passes: list[int] = []

    def make_cache(self) -> list[Any]:
        return [KINDS[kind]() for kind in self.kinds]

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        tokens = inputs[0].tolist()
        self.passes.append(len(tokens))
        digests = [_digest(seen) for layer in cache for seen in _append(layer, tokens)]
        # One token more than there are layers; the digests are the last row's logits.
        logits = mx.zeros((1, len(tokens), len(digests)))
        logits[0, -1] = mx.array(digests, dtype=mx.float32)
        return logits


def _append(layer: Any, tokens: list[int]) -> list[list[int]]:
    """Write `tokens` into `layer`; returns what it sees afterwards, of each cache in it."""
    if isinstance(layer, CacheList):
        return [seen for child in layer.caches for seen in _append(child, tokens)]
    if isinstance(layer, FoldingCache):
        layer.update(tokens)
        return [[*layer.fold[0].tolist(), *(t.item() for t in layer.recent), *layer.tally.sums["all"].tolist()]]
    if isinstance(layer, ArraysCache):
        return [_append_arrays(layer, tokens)]
    if isinstance(layer, ChunkedKVCache):
        layer.maybe_trim_front()
    return [_append_rows(layer, tokens)]


def _append_arrays(layer: ArraysCache, tokens: list[int]) -> list[int]:
    fold = layer[0] if layer[0] is not None else mx.zeros((1,), dtype=mx.int32)
    for token in tokens:
        fold = (fold * 29 + token) % PRIME
    before = layer[1] if layer[1] is not None else mx.zeros((3,), dtype=mx.int32)
    layer[0], layer[1] = fold, mx.concatenate([before, mx.array(tokens, dtype=mx.int32)])[-3:]
    return [*layer[0].tolist(), *layer[1].tolist()]


def _append_rows(layer: Any, tokens: list[int]) -> list[int]:
    """Rows hold 100 * position + token, which float32 and, times 32 equal values, 8-bit quantization hold exactly."""
    places = layer.offset + np.arange(len(tokens))
    rows = mx.array(np.repeat((100 * places + np.array(tokens))[:, None], 32, axis=1)[None, None].astype(np.float32))
    keys, values = layer.update_and_fetch(rows, rows + 1)
    if isinstance(layer, QuantizedKVCache):
        keys, values = (mx.dequantize(*part, group_size=32, bits=8) for part in (keys, values))
    if isinstance(layer, RotatingKVCache):
        keys, values = (part[..., : min(layer.offset, part.shape[2]), :] for part in (keys, values))
    seen = np.array(mx.concatenate([keys[0, 0, :, 0], values[0, 0, :, 5] - 1])).round().astype(int)
    if isinstance(layer, RotatingKVCache):
        # After a pass of several tokens there are more rows than the window, which a mask would hide.
        kept = seen[seen >= 100 * (layer.offset - WINDOW + layer.keep)]
        seen = np.concatenate([kept, seen[seen < 100 * layer.keep]])
    return sorted(seen.tolist())


def _digest(seen: Sequence[int]) -> int:
    digest = len(seen)
    for value in seen:
        digest = (digest * 127 + int(value)) % PRIME
    return digest


def cold_logits(model: RememberingModel, tokens: Sequence[int]) -> list[float]:
    """The logits after `tokens` from an untouched cache, prefilled in one pass and the last token alone."""
    cache = model.make_cache()
    if len(tokens) > 1:
        model(mx.array([list(tokens[:-1])]), cache=cache)
    logits: list[float] = model(mx.array([list(tokens[-1:])]), cache=cache)[0, -1].tolist()
    return logits
