"""Latent attention (MLA, arXiv:2405.04434 section 2.1): passes read the latent rows, as one-token decoding does.

The cache holds one latent row per token. mlx-lm multiplies the up-projections of keys and values into queries and
outputs for one token only; for several it expands keys and values of the whole prefix, in every pass. Here a pass of
several nodes remembers where expanded keys and values came from, and attends to the latent in their stead. MLX is lazy:
what nobody reads is never computed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.mla import MultiLinear, QuantizedMultiLinear

from worker.engine.verify.adapters.in_place import extend, hook, model_file
from worker.engine.verify.tree_pass import TreePass, active_pass, suspended

ATTENTION = "scaled_dot_product_attention"
KEYS, VALUES = "expanded keys", "expanded values"


@dataclass(frozen=True)
class _Expansion:
    """latent: [1, 1, S, rank]. projection(latent) gave expanded: [1, heads, S, head size]."""

    projection: Any
    latent: mx.array
    expanded: mx.array


class _LatentProjection:
    """A projection per head. Keys are expanded with its transpose, values as it is."""

    def __call__(self, x: mx.array, transpose: bool = True) -> mx.array:
        expanded: mx.array = super().__call__(x, transpose)  # type: ignore[misc]
        current = active_pass()
        if current is not None:
            current.notes[VALUES if transpose else KEYS] = _Expansion(self, x, expanded)
        return expanded


def adapt_latent_attention(module: Any) -> bool:
    """Let the projections among the children of `module` remember, and its model file's attention look them up."""
    namespace = model_file(module)
    projections = [child for child in module.values() if isinstance(child, MultiLinear | QuantizedMultiLinear)]
    if not projections or not hasattr(namespace, ATTENTION):
        return False
    for projection in projections:
        extend(projection, _LatentProjection)
    hook(namespace, ATTENTION, _attention)
    return True


def _attention(stock: Callable[..., mx.array]) -> Callable[..., mx.array]:
    def attention(
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        cache: Any,
        scale: float,
        mask: Any,
        sinks: mx.array | None = None,
    ) -> mx.array:
        current = active_pass()
        expansions = current and _take(current, values)
        if not expansions:
            return stock(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
        key, value = expansions
        with suspended():
            if keys is not key.expanded:
                queries, mask = _without_rope(queries, keys, key.expanded.shape[-1], cache, scale, mask)
            latent = stock(
                key.projection(queries), key.latent, value.latent, cache=cache, scale=scale, mask=mask, sinks=sinks
            )
            output: mx.array = value.projection(latent)
        return output

    return attention


def _take(current: TreePass, values: mx.array) -> tuple[_Expansion, _Expansion] | None:
    """The expansions behind `values` and its keys, which are forgotten with that."""
    key, value = (current.notes.pop(name, None) for name in (KEYS, VALUES))
    if key is None or value is None or value.expanded is not values:
        return None
    return key, value


def _without_rope(
    queries: mx.array, keys: mx.array, expanded: int, cache: Any, scale: float, mask: Any
) -> tuple[mx.array, mx.array]:
    """Split rows made of an expanded part and a part with rope (mistral4) as one-token decoding has them.

    Returns the queries of the expanded part, and the masked scores of the rest as a mask to add. The keys with rope are
    what the cache holds as its values: a slice of `keys` would compute the expansion.
    """
    rows = keys.shape[-2]
    rope_keys = cache.values[..., :rows, :]
    assert rope_keys.shape[-2:] == (rows, keys.shape[-1] - expanded)
    queries, rope_queries = mx.split(queries, [expanded], axis=-1)
    scores = (rope_queries * scale) @ rope_keys.swapaxes(-1, -2)
    if isinstance(mask, str):
        assert mask == "causal"
        mask = mx.arange(rows - queries.shape[-2], rows)[:, None] >= mx.arange(rows)
    return queries, mx.where(mask, scores, mx.array(mx.finfo(scores.dtype).min, scores.dtype))
