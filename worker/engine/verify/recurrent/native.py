"""Mixers whose state has a tree form: one pass over all nodes, nothing of the size of a state per node.

The mixer's own code runs, with its convolutions and its state update replaced by their tree forms. What it writes into
the cache is dropped; the accepted path is replayed from the state before the tree, by mlx-lm's own update or a kernel
on the rows that the pass computed. The replay is lazy: it becomes a part of the next evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import mlx.core as mx

from worker.engine.verify.caches.arrays import TreeArraysCache
from worker.engine.verify.recurrent.convolution import kernel_size, rows_kept, tree_convolution
from worker.engine.verify.recurrent.discovery import Plan, Source, SourceKind, numbered
from worker.engine.verify.recurrent.hooks import Convolve, Listening
from worker.engine.verify.recurrent.mixer import Call
from worker.engine.verify.recurrent.rule import Arguments, KernelCall, Rule
from worker.engine.verify.tree_pass import TreePass


class _Convolved(NamedTuple):
    """The input of a convolution: rows of the prefix, then one per node."""

    x: mx.array
    size: int

    def after(self, path: Sequence[int]) -> mx.array:
        return rows_kept(self.x, self.size, path)


class _Updated(NamedTuple):
    """The arguments of a state update: the state before the tree, and rows of all nodes."""

    rule: Rule
    arguments: Arguments

    def after(self, path: Sequence[int]) -> mx.array:
        return self.rule.state_after(self.arguments, path)


@cache
def _nothing() -> mx.array:
    """In place of a state. A mixer that changed it in place would change it for all; mlx-lm's only keep it."""
    return mx.array(0.0)


class _Recording:
    """What the accepted path of one call needs; a Listener."""

    def __init__(self, current: TreePass, plan: Plan) -> None:
        self.kernels = current.kernels
        self._current = current
        self._plan = plan
        self._sources: dict[Source, _Convolved | _Updated | KernelCall] = {}

    def convolution(self, conv: Any, convolve: Convolve, x: mx.array) -> mx.array:
        self._note("convolution", _Convolved(x, kernel_size(conv)))
        return tree_convolution(conv, convolve, x, self._current)

    def update(self, rule: Rule, arguments: Arguments) -> tuple[mx.array, mx.array]:
        return self._outputs(rule, arguments), _nothing()  # written into the cache, which drops it

    def _outputs(self, rule: Rule, arguments: Arguments) -> mx.array:
        current = self._current
        call = rule.kernel(arguments, current.kernels, is_chain=current.is_chain)
        self._note("update", call or _Updated(rule, arguments))
        return call.outputs(current.tree.parents) if call else rule.tree(arguments, current)

    def replay(self, cache: TreeArraysCache, path: Sequence[int]) -> None:
        for slot, source in self._plan:
            cache[slot] = self._sources[source].after(path)

    def _note(self, kind: SourceKind, found: _Convolved | _Updated | KernelCall) -> None:
        self._sources[numbered(kind, self._sources)] = found


def follow_by_tree_form(plan: Plan, call: Call) -> Any:
    """All nodes at once, by the tree forms of what `plan` names."""
    recording = _Recording(call.current, plan)
    with Listening(recording):
        outputs = call.run(*call.args, **call.options)
    call.cache.record(recording.replay)
    return outputs
