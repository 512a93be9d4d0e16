"""Query and key norms fused with rope in one Metal kernel (muse_spark), which the rope hook does not see.

Not run on Metal: the tests exchange the kernel for a function of the same contract.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from worker.engine.verify.adapters.in_place import hook, model_file
from worker.engine.verify.positions import node_positions
from worker.engine.verify.tree_pass import active_pass

KERNEL = "qk_norm_rope"


def adapt_fused_rope(module: Any) -> bool:
    """Let the model file's kernel see positions instead of slots."""
    namespace = model_file(module)
    if not hasattr(namespace, KERNEL):
        return False
    hook(namespace, KERNEL, _tree_norm_rope)
    return True


def _tree_norm_rope(stock: Callable[..., Any]) -> Callable[..., Any]:
    def norm_rope(qkvg: mx.array, *, offset: Any, **options: Any) -> Any:
        """qkvg: [1, N, features]; returns queries and keys, [1, N, heads, head size]."""
        current = active_pass()
        if current is None or current.is_chain or qkvg.shape[-2] != current.nodes:
            return stock(qkvg, offset=offset, **options)
        # Nodes become the batch axis, where the kernel takes one offset per row.
        nodes = stock(qkvg.swapaxes(0, 1), offset=node_positions(current, offset), **options)
        return [rows.swapaxes(0, 1) for rows in nodes]

    return norm_rope
