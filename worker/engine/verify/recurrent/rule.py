"""A state update of mlx-lm that has a tree form."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import mlx.core as mx

from worker.engine.kernel_set import KernelSet
from worker.engine.verify.accepted import index_of
from worker.engine.verify.tree_pass import TreePass

Arguments = Mapping[str, Any]


class KernelCall(Protocol):
    """One call of an update whose work kernels do, in place of both forms of the rule."""

    def outputs(self, parents: Sequence[int]) -> mx.array:
        """[1, N, ...] of the nodes of a tree, by their parents."""

    def after(self, path: Sequence[int]) -> mx.array:
        """The state after the nodes of `path`."""

    def advanced(self) -> tuple[mx.array, mx.array]:
        """What the update returns, of rows that follow one another."""


@dataclass(frozen=True)
class Rule:
    """update(..., state, ...) -> (outputs [1, N, ...], state after the last token), by the name that mixers call.

    rows: the arguments with one row per token, [1, N, ...]. tree: outputs of all nodes of a pass, from the arguments.
    by_kernel: what `kernel` asks.
    """

    name: str
    update: Callable[..., tuple[mx.array, mx.array]]
    rows: tuple[str, ...]
    tree: Callable[[Arguments, TreePass], mx.array]
    by_kernel: Callable[[Arguments, KernelSet, bool], KernelCall | None] | None = None

    def arguments(self, args: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of one call by name, defaults included."""
        # Every layer of every pass comes by here: a tenth of the time of `Signature.bind`.
        return {**self._defaults, **dict(zip(self._names, args, strict=False)), **options}

    def kernel(self, arguments: Arguments, kernels: KernelSet, *, is_chain: bool) -> KernelCall | None:
        """The call by what `kernels` has for it; None where that is nothing, or no better."""
        return self.by_kernel(arguments, kernels, is_chain) if self.by_kernel else None

    def state_after(self, arguments: Arguments, path: Sequence[int]) -> mx.array:
        """The state after the nodes of `path`, by mlx-lm's own update of the state before the tree."""
        index = index_of(path)
        accepted = {name: mx.take(arguments[name], index, axis=1) for name in self.rows}
        return self.update(**{**arguments, **accepted})[1]

    @cached_property
    def _names(self) -> list[str]:
        return list(inspect.signature(self.update).parameters)

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        parameters = inspect.signature(self.update).parameters.values()
        return {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}
