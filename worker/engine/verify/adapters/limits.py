"""Limits: where a model's pass over a tree, or over several tokens at all, differs from one-token decoding."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

Shape = Literal["tree", "chain", "plain"]
Limit = Callable[[int, int], Shape]
"""limit(offset, nodes): of which shape a pass over `nodes` nodes may be after `offset` tokens."""


@dataclass(frozen=True)
class TemperatureLimit:
    """Queries whose temperature steps up every `floor_scale` slots (llama4): a chain's slots are its positions."""

    floor_scale: int

    def __str__(self) -> str:
        return "by chain where the queries' temperature steps up"

    def __call__(self, offset: int, nodes: int) -> Shape:
        first, last = offset + 1, offset + nodes  # upstream counts the token itself
        return "tree" if first // self.floor_scale == last // self.floor_scale else "chain"


@dataclass(frozen=True)
class BlockSelectionLimit:
    """Attention to the best `selected` blocks of `block_size` slots (minimax_m3): all of them as long as they fit."""

    block_size: int
    selected: int

    def __str__(self) -> str:
        return "by chain once blocks are selected"

    def __call__(self, offset: int, nodes: int) -> Shape:
        return "tree" if offset + nodes <= self.block_size * self.selected else "chain"


@dataclass(frozen=True)
class DynamicBaseLimit:
    """Rope whose base grows with the end of the pass past `context` tokens (dynamic NTK): rows of one pass share it."""

    context: int

    def __str__(self) -> str:
        return "one token at a time past the original context"

    def __call__(self, offset: int, nodes: int) -> Shape:
        return "tree" if offset + nodes <= self.context else "plain"


def limits_of_model(model: Any) -> tuple[Limit, ...]:
    """The limits of all modules of `model`, each once."""
    return tuple(dict.fromkeys(limit for module in model.modules() for limit in _limits_of_module(module)))


def reusable_positions(limits: Iterable[Limit]) -> int | None:
    """Leading positions whose cache rows are the same however passes were split; None = all.

    Beyond, rows depend on the whole pass that made them, those of its tokens that lie before this position included.
    """
    return min((limit.context for limit in limits if isinstance(limit, DynamicBaseLimit)), default=None)


def _limits_of_module(module: Any) -> list[Limit]:
    """The limits that come from `module` itself, not from its children."""
    limits: list[Limit] = []
    if getattr(module, "attn_temperature_tuning", 0) and not getattr(module, "use_rope", True):
        limits.append(TemperatureLimit(module.floor_scale))
    if getattr(module, "is_sparse_attn", False) and hasattr(module, "index_topk_blocks"):
        limits.append(BlockSelectionLimit(module.index_block_size, module.index_topk_blocks))
    if "DynamicNTK" in type(module).__name__ and hasattr(module, "max_position_embeddings"):
        limits.append(DynamicBaseLimit(module.max_position_embeddings))
    return limits
