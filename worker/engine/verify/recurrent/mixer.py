"""A mixer that follows trees: its own class within a pass, mlx-lm's everywhere else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

from worker.engine.verify.caches.arrays import TreeArraysCache
from worker.engine.verify.recurrent.discovery import state_cache
from worker.engine.verify.tree_pass import TreePass, active_pass

Form = Literal["tree form", "path unroll"]


class Call(NamedTuple):
    """One call of a mixer within a pass: run(*args, **options) is mlx-lm's own code."""

    run: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    cache: TreeArraysCache
    current: TreePass


Follow = Callable[[Call], Any]
"""The mixer's outputs for all nodes. Records in the cache how the accepted path is replayed."""


def tree_mixer_class(stock: type, form: Form, follow: Follow) -> type:
    """A subclass of a mixer's class; `__module__` stays, as adapters look names up there.

    Exchanging the class of a module leaves its parameters and names as they are.
    """

    def call(module: Any, *args: Any, **options: Any) -> Any:
        run = partial(stock.__call__, module)
        current = active_pass()
        cache = state_cache(args, options)
        if current is None or not isinstance(cache, TreeArraysCache):
            return run(*args, **options)
        return follow(Call(run, args, options, cache, current))

    members = {"__call__": call, "__module__": stock.__module__, "tree_form": form}
    return type(stock.__name__, (stock,), members)


def form_of(module: Any) -> Form | None:
    """How a module follows trees; None: it is no mixer, or not instrumented."""
    return getattr(type(module), "tree_form", None)
