"""Adapters: position or mask logic of single families that neither the rope hook nor the tree caches reach.

Each changes a model in place, by what its modules have and not by the model's name. Outside a tree pass an adapted
model runs as mlx-lm wrote it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from worker.engine.verify.adapters.chunked_mask import adapt_chunked_mask
from worker.engine.verify.adapters.convolved_rows import adapt_convolved_rows
from worker.engine.verify.adapters.fused_rope import adapt_fused_rope
from worker.engine.verify.adapters.latent_attention import adapt_latent_attention
from worker.engine.verify.adapters.learned_positions import adapt_learned_positions
from worker.engine.verify.adapters.limits import Limit, limits_of_model, reusable_positions
from worker.engine.verify.adapters.query_scale import adapt_query_scale

__all__ = ["Adapters", "Limit", "apply_adapters", "limits_of_model", "reusable_positions"]

ADAPTERS: dict[str, Callable[[Any], bool]] = {
    "learned positions": adapt_learned_positions,
    "position-scaled queries": adapt_query_scale,
    "chunked mask": adapt_chunked_mask,
    "convolved keys and values": adapt_convolved_rows,
    "fused rope": adapt_fused_rope,
    "latent attention": adapt_latent_attention,
}
"""Each adapts one module where it concerns that module, and says whether it does."""


@dataclass(frozen=True)
class Adapters:
    """names: the adapters that the model needed. limits, reusable: see `limits`."""

    names: tuple[str, ...]
    limits: tuple[Limit, ...]
    reusable: int | None


def apply_adapters(model: Any) -> Adapters:
    """Adapt `model` in place; once is enough, and a second call changes nothing and returns the same."""
    modules = model.modules()
    adapted = {name: [adapt(module) for module in modules] for name, adapt in ADAPTERS.items()}
    names = tuple(name for name, concerned in adapted.items() if any(concerned))
    limits = limits_of_model(model)
    return Adapters(names, limits, reusable_positions(limits))
