"""What the slots of a block see: how far back, and whether ahead."""

from __future__ import annotations

from typing import Literal

import mlx.core as mx

Mask = mx.array | Literal["causal"] | None


def block_mask(context: int, slots: int, window: int | None, causal: bool) -> Mask:
    """The mask of `slots` queries over keys of `context` tokens, the latest, and of the block, in this order.

    A window allows a distance of less than `window`, in both directions. As an array it is [slots, context + slots]
    booleans; None where every key is seen.
    """
    if window is None or context + slots <= window:
        return "causal" if causal else None
    queries, keys = mx.arange(slots)[:, None], mx.arange(-context, slots)[None]
    seen = queries - keys < window
    return seen & ((keys <= queries) if causal else (keys - queries < window))
