"""Chunked attention (llama4): layers that see their own chunk of positions only, through a mask the model makes."""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ChunkedKVCache

from worker.engine.verify.adapters.in_place import extend, model_file
from worker.engine.verify.tree_pass import TreePass, active_pass


class _ChunkedAttention:
    """Attention whose mask was made from slots; inside a tree pass it is made from positions."""

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        current = active_pass()
        if current is not None and not current.is_chain and isinstance(cache, ChunkedKVCache):
            mask = _noted_mask(current, cache)
        output: mx.array = super().__call__(x, mask, cache)  # type: ignore[misc]
        return output


def adapt_chunked_mask(module: Any) -> bool:
    """Give every attention module of a model file that uses chunked caches the mask of the tree."""
    if not hasattr(model_file(module), "ChunkedKVCache") or "q_proj" not in module:
        return False
    extend(module, _ChunkedAttention)
    return True


def chunked_mask(current: TreePass, start: int, offset: int, chunk: int) -> mx.array:
    """[N, offset - start + N] booleans: what each node sees of the rows from position `start` on, and of the tree."""
    own = current.depths + offset
    before = mx.arange(start, offset)
    visible = own[:, None] // chunk == before[None] // chunk
    together = own[:, None] // chunk == own[None] // chunk
    return mx.concatenate([visible, together & current.ancestors], axis=1)


def _noted_mask(current: TreePass, cache: Any) -> mx.array:
    """The mask, made once for all layers of a pass: their caches advance together."""
    key = f"chunked mask {cache.start_position} {cache.offset} {cache.chunk_size}"
    if key not in current.notes:
        current.notes[key] = chunked_mask(current, cache.start_position, cache.offset, cache.chunk_size)
    mask: mx.array = current.notes[key]
    return mask
