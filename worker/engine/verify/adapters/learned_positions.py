"""Learned positions (gpt2, gpt_bigcode): an embedding table that models look up by slot."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from worker.engine.verify.adapters.in_place import extend
from worker.engine.verify.positions import node_positions
from worker.engine.verify.tree_pass import active_pass


class _NodePositions:
    """An embedding of positions; the ids of a pass are [N] or [1, N], counted up from the first slot."""

    def __call__(self, ids: mx.array) -> mx.array:
        current = active_pass()
        if current is not None and not current.is_chain and ids.shape[-1] == current.nodes:
            ids = node_positions(current, ids[..., :1])
        embedded: mx.array = super().__call__(ids)  # type: ignore[misc]
        return embedded


def adapt_learned_positions(module: Any) -> bool:
    """Let the `wpe` table of `module` see positions instead of slots."""
    table = module.get("wpe")
    if not isinstance(table, nn.Embedding | nn.QuantizedEmbedding):
        return False
    extend(table, _NodePositions)
    return True
