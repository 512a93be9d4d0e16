"""A state update of mlx-lm that has a tree form."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mlx.core as mx

from worker.engine.verify.tree_pass import TreePass

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Rule:
    """update(..., state, ...) -> (outputs [1, N, ...], state after the last token), by the name that mixers call.

    rows: the arguments with one row per token, [1, N, ...]. tree: outputs of all nodes of a pass, from the arguments.
    """

    name: str
    update: Callable[..., tuple[mx.array, mx.array]]
    rows: tuple[str, ...]
    tree: Callable[[Arguments, TreePass], mx.array]

    def arguments(self, args: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of one call by name, defaults included."""
        bound = self._signature.bind(*args, **options)
        bound.apply_defaults()
        return bound.arguments

    def state_after(self, arguments: Arguments, path: mx.array) -> mx.array:
        """The state after the nodes of `path`, by mlx-lm's own update of the state before the tree."""
        accepted = {name: mx.take(arguments[name], path, axis=1) for name in self.rows}
        return self.update(**{**arguments, **accepted})[1]

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.update)
