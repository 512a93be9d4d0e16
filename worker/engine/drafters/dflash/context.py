"""The context of a block drafter: keys and values of all committed tokens, in mlx-lm's cache objects.

A layer with full attention keeps them in a KVCache. One with a window keeps those that the next block can see, the last
window - 1, in temporal order; its offset counts all. Published drafters with windows belong to targets whose own layers
keep a window or a recurrent state, so forgetting costs no reuse of prefixes.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache

KeysValues = tuple[mx.array, mx.array]
"""[1, heads, rows, head_dim] each."""


def new_layer(window: int | None) -> Any:
    """An empty layer; window: of its attention, in tokens, None for full attention."""
    return KVCache() if window is None else RotatingKVCache(max_size=window - 1)


def append(layer: Any, rows: KeysValues) -> None:
    """Append the rows of tokens that were committed."""
    if isinstance(layer, RotatingKVCache):
        # mlx-lm's own update of one row overwrites the oldest one in place, and one of several leaves more than the
        # window. A text's layer should not depend on how its tokens came.
        count = int(rows[0].shape[2])
        kept = [row[..., -layer.max_size :, :] for row in _joined(layer, rows)]
        layer.keys, layer.values = kept
        layer.offset += count
        layer._idx = int(kept[0].shape[2])
    else:
        layer.update_and_fetch(*rows)


def with_block(layer: Any, block: KeysValues) -> KeysValues:
    """The context's rows and after them the block's, which do not stay."""
    if isinstance(layer, RotatingKVCache):
        return _joined(layer, block)
    # Written behind the offset, where rows are free: a copy of a long context would cost more than the block.
    keys, values = layer.update_and_fetch(*block)
    layer.trim(block[0].shape[2])
    return keys, values


def _joined(layer: Any, rows: KeysValues) -> KeysValues:
    if layer.offset == 0:
        return rows
    keys, values = (
        mx.concatenate([stored[..., : layer._idx, :], new], axis=2)
        for stored, new in zip((layer.keys, layer.values), rows, strict=True)
    )
    return keys, values
