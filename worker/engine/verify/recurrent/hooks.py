"""Where a mixer's code is intercepted: its convolutions, and the state updates and norm that it calls by name.

Hooks are put in once and stay. They act only in a thread that listens, so an instrumented model runs as mlx-lm wrote
it everywhere else.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.gated_delta import normalize_qk

from worker.engine.kernel_set import STOCK, KernelSet
from worker.engine.verify.recurrent.gated_delta import GATED_DELTA
from worker.engine.verify.recurrent.mamba2 import MAMBA2
from worker.engine.verify.recurrent.normalisation import NAME, forget_norm, normalised
from worker.engine.verify.recurrent.rule import Arguments, Rule

RULES = (GATED_DELTA, MAMBA2)

Convolve = Callable[[mx.array], mx.array]


class Listener(Protocol):
    """What the calls of a mixer go to, instead of mlx-lm's own code. kernels: what computes."""

    kernels: KernelSet

    def convolution(self, conv: Any, convolve: Convolve, x: mx.array) -> mx.array:
        """A call of the nn.Conv1d `conv`; convolve(x) is the call itself."""

    def update(self, rule: Rule, arguments: Arguments) -> tuple[mx.array, mx.array]:
        """A call of a state update."""


_thread = threading.local()


class Listening:
    """Within it, what the mixers of this thread call goes to a listener.

    No generator, which would be shorter and take longer: every recurrent layer of a tree pass comes by here.
    """

    __slots__ = ("_listener",)

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def __enter__(self) -> None:
        assert _listener() is None
        _thread.listener = self._listener

    def __exit__(self, *_: object) -> None:
        _thread.listener = None
        forget_norm()


def _listener() -> Listener | None:
    return getattr(_thread, "listener", None)


def hook_updates(model: Any) -> None:
    """Hook the names of the state updates, and of the norm, where the code of `model` looks them up."""
    classes = {base for module in model.modules() for base in type(module).__mro__}
    for defining in classes:
        for function in filter(inspect.isfunction, vars(defining).values()):
            namespace = inspect.unwrap(function).__globals__
            for rule in RULES:
                if namespace.get(rule.name) is rule.update:
                    namespace[rule.name] = _hooked(rule)
            if namespace.get(NAME) is normalize_qk:
                namespace[NAME] = _normalise


def hook_convolutions(module: Any) -> None:
    """Exchange the classes of the nn.Conv1d layers within `module`."""
    for part in module.modules():
        if isinstance(part, nn.Conv1d) and not hasattr(type(part), "listens"):
            stock: Any = type(part)
            part.__class__ = _listening_class(stock)


@cache
def _hooked(rule: Rule) -> Callable[..., tuple[mx.array, mx.array]]:
    @wraps(rule.update)
    def call(*args: Any, **options: Any) -> tuple[mx.array, mx.array]:
        listener = _listener()
        if listener is None:
            return rule.update(*args, **options)
        return listener.update(rule, rule.arguments(args, options))

    return call


@wraps(normalize_qk)
def _normalise(q: mx.array, k: mx.array, **options: float) -> tuple[mx.array, mx.array]:
    listener = _listener()
    by_kernels = listener is not None and listener.kernels is not STOCK
    return (normalised if by_kernels else normalize_qk)(q, k, **options)  # type: ignore[no-any-return, unused-ignore]


@cache
def _listening_class(stock: type[Any]) -> type[Any]:
    """A subclass of a convolution's class; `__module__` stays, as names are looked up there."""

    def call(conv: Any, x: mx.array) -> mx.array:
        listener = _listener()
        convolve = partial(stock.__call__, conv)
        return convolve(x) if listener is None else listener.convolution(conv, convolve, x)

    return type(stock.__name__, (stock,), {"__call__": call, "__module__": stock.__module__, "listens": True})
