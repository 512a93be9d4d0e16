"""Which modules of a model own recurrent state, and what each does with it, found by watching two tokens pass.

A mixer is a module that is handed an ArraysCache and hands it on to nobody (or writes into it itself). Where everything
that it writes is the last rows of a convolution's input or the result of a known state update, there is a plan that
says which slot gets what; no list of class names is needed, and none would hold for models to come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache

from worker.engine.kernel_set import STOCK
from worker.engine.verify.caches import flat
from worker.engine.verify.recurrent.convolution import is_causal, kernel_size
from worker.engine.verify.recurrent.hooks import Convolve, Listening, hook_updates
from worker.engine.verify.recurrent.rule import Arguments, Rule

TOKENS = [0, 1]


SourceKind = Literal["convolution", "update"]


class Source(NamedTuple):
    """Where a slot's content comes from: the mixer's `number`-th convolution, or its `number`-th state update."""

    kind: SourceKind
    number: int


def numbered(kind: SourceKind, before: Iterable[Source]) -> Source:
    """The next source of its kind in a call of a mixer that had the sources `before`."""
    return Source(kind, [source.kind for source in before].count(kind))


Plan = tuple[tuple[int, Source], ...]
"""(slot, source) of everything that a mixer writes."""


@dataclass(frozen=True)
class Mixer:
    """A module that owns recurrent state; plan: None if it does anything with it that has no tree form."""

    module: Any
    plan: Plan | None


@dataclass
class _Visit:
    """One call of a module that was handed an ArraysCache, and what happened in it."""

    module: Any
    caller: _Visit | None
    handed_on: bool = False
    causal: bool = True
    sources: dict[Source, mx.array] = field(default_factory=dict)
    writes: list[tuple[int, mx.array]] = field(default_factory=list)

    @property
    def owns(self) -> bool:
        return bool(self.writes) or not self.handed_on

    def note(self, kind: SourceKind, result: mx.array) -> None:
        """Note what a state update returned, or the rows that a convolution's next call needs."""
        self.sources[numbered(kind, self.sources)] = result

    def within(self) -> Iterator[_Visit]:
        visit = self.caller
        while visit is not None:
            yield visit
            visit = visit.caller


class _Watch:
    """Follows the model's calls; a Listener."""

    kernels = STOCK

    def __init__(self) -> None:
        self.visits: list[_Visit] = []
        self._current: _Visit | None = None

    @contextmanager
    def visit(self, module: Any) -> Iterator[None]:
        caller = self._current
        if caller is not None:
            caller.handed_on = True
        self._current = _Visit(module, caller)
        self.visits.append(self._current)
        try:
            yield
        finally:
            self._current = caller

    def convolution(self, conv: Any, convolve: Convolve, x: mx.array) -> mx.array:
        if self._current is not None:
            self._current.causal &= is_causal(conv, x, len(TOKENS))
            self._current.note("convolution", x[:, x.shape[1] - kernel_size(conv) + 1 :])
        return convolve(x)

    def update(self, rule: Rule, arguments: Arguments) -> tuple[mx.array, mx.array]:
        outputs, state = rule.update(**arguments)
        if self._current is not None:
            self._current.note("update", state)
        return outputs, state

    def write(self, slot: int, value: mx.array) -> None:
        if self._current is not None:
            self._current.writes.append((slot, value))


def find_mixers(model: Any, make_cache: Callable[[], Sequence[Any]]) -> list[Mixer]:
    """The mixers of `model`. Runs it on a new cache."""
    hook_updates(model)
    watch = _Watch()
    with _watched(model, watch), Listening(watch):
        model(mx.array([TOKENS]), cache=_watched_cache(make_cache(), watch))
    owners = [visit for visit in watch.visits if visit.owns]
    owners = [visit for visit in owners if not any(outer.owns for outer in visit.within())]
    plans: dict[int, set[Plan | None]] = {}
    for visit in owners:
        plans.setdefault(id(visit.module), set()).add(_plan(visit))
    modules = {id(visit.module): visit.module for visit in owners}
    return [Mixer(module, _only(plans[number])) for number, module in modules.items()]


def _only(plans: set[Plan | None]) -> Plan | None:
    """The plan that all calls of one module agree on."""
    return plans.pop() if len(plans) == 1 else None


def _plan(visit: _Visit) -> Plan | None:
    """What explains each write; a plan must use every convolution and update once, or a state would be missed."""
    if visit.handed_on or not visit.causal or not visit.writes:
        return None
    unused = dict(visit.sources)
    plan = []
    for slot, value in visit.writes:
        source = next((source for source, result in unused.items() if _same(value, result)), None)
        if source is None:
            return None
        del unused[source]
        plan.append((slot, source))
    return None if unused else tuple(plan)


def _same(value: mx.array, result: mx.array) -> bool:
    if value is result:
        return True
    return value.shape == result.shape and value.dtype == result.dtype and bool(mx.array_equal(value, result))


@contextmanager
def _watched(model: Any, watch: _Watch) -> Iterator[None]:
    """Exchange the class of every module of `model`, and give it back."""
    stock = [(module, type(module)) for module in model.modules()]
    watched = {cls: _watched_class(cls, watch) for _, cls in stock}
    try:
        for module, cls in stock:
            module.__class__ = watched[cls]
        yield
    finally:
        for module, cls in stock:
            module.__class__ = cls


def _watched_class(stock: type, watch: _Watch) -> type:
    def call(module: Any, *args: Any, **options: Any) -> Any:
        run = partial(stock.__call__, module)
        if isinstance(module, nn.Conv1d):
            return watch.convolution(module, run, *args, **options)
        if state_cache(args, options) is None:
            return run(*args, **options)
        with watch.visit(module):
            return run(*args, **options)

    return type(stock.__name__, (stock,), {"__call__": call, "__module__": stock.__module__})


def _watched_cache(cache: Sequence[Any], watch: _Watch) -> Sequence[Any]:
    class Watched(ArraysCache):  # type: ignore[misc]
        def __setitem__(self, slot: int, value: mx.array) -> None:
            watch.write(slot, value)
            super().__setitem__(slot, value)

    for layer in flat(cache):
        if isinstance(layer, ArraysCache):
            layer.__class__ = Watched
    return cache


def state_cache(args: Sequence[Any], options: dict[str, Any]) -> Any | None:
    """The ArraysCache among the arguments of a call."""
    return next((value for value in [*args, *options.values()] if isinstance(value, ArraysCache)), None)
