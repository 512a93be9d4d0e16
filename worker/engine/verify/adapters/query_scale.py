"""Position-scaled queries (ministral3, mistral4): queries grow with the logarithm of their position."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from worker.engine.verify.adapters.in_place import hook, model_file
from worker.engine.verify.positions import node_positions
from worker.engine.verify.tree_pass import active_pass

SCALE = "_get_llama_4_attn_scale"


def adapt_query_scale(module: Any) -> bool:
    """Let the model file's scale function see positions instead of slots."""
    namespace = model_file(module)
    if not hasattr(namespace, SCALE):
        return False
    hook(namespace, SCALE, _tree_scale)
    return True


def _tree_scale(stock: Callable[..., mx.array]) -> Callable[..., mx.array]:
    def scale(size: int, offset: Any, beta: float, max_position_embeddings: int) -> mx.array:
        """[N, 1] factors of the queries."""
        current = active_pass()
        if current is None or current.is_chain or size != current.nodes:
            return stock(size, offset, beta, max_position_embeddings)
        positions = node_positions(current, offset)[:, None]
        # The formula is upstream's, for one row per node.
        return 1 + beta * mx.log(1 + mx.floor(positions / max_position_embeddings))

    return scale
