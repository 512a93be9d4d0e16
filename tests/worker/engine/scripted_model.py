"""A target that is a function from token prefix to logits, with the caches and masks of a real model.

Its one layer keeps the tokens themselves in the KV cache, and every row is computed from the tokens that its mask lets
it see. So a wrong mask, a wrong commit or a wrong roll-back changes the prefix that the function is given.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.base import create_attention_mask

LogitsOf = Callable[[Sequence[int]], Sequence[float]]


class ScriptedModel:
    """Called as mlx-lm models are."""

    def __init__(self, logits_of: LogitsOf) -> None:
        self.layers = [object()]
        self.logits_of = logits_of
        self.passes = 0

    def modules(self) -> list[Any]:
        """As a model of mlx has them; none here is in need of an adapter."""
        return []

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        self.passes += 1
        mask = create_attention_mask(inputs, cache[0], return_array=True)
        rows = inputs[:, None, :, None].astype(mx.float32)
        seen, _ = cache[0].update_and_fetch(rows, rows)
        tokens = np.array(seen[0, 0, :, 0]).astype(int)
        count = inputs.shape[1]
        visible = np.ones((count, len(tokens)), dtype=bool) if mask is None else np.array(mask)
        return mx.array([[list(self.logits_of(tokens[row].tolist())) for row in visible]], dtype=mx.float32)


def cached_tokens(cache: Sequence[Any]) -> list[int]:
    """The tokens that a ScriptedModel's cache holds."""
    layer = cache[0]
    if layer.keys is None:
        return []
    return [int(token) for token in np.array(layer.keys[0, 0, : layer.offset, 0])]


def one_hot(vocabulary: int, token: int, height: float = 10.0) -> list[float]:
    return [height if index == token else 0.0 for index in range(vocabulary)]


def continuing(prompt: Sequence[int], text: Sequence[int], vocabulary: int) -> LogitsOf:
    """A target that answers `prompt` with `text`, then repeats its last token; a wrong prefix gives token 1."""

    def logits_of(prefix: Sequence[int]) -> list[float]:
        answered = list(prefix[len(prompt) :])
        if list(prefix[: len(prompt)]) != list(prompt)[: len(prefix)] or answered != list(text[: len(answered)]):
            return one_hot(vocabulary, 1)
        return one_hot(vocabulary, text[min(len(answered), len(text) - 1)])

    return logits_of
