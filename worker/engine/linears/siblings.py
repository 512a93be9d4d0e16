"""Siblings: linears of one parent that are given the same x, such as q, k and v, found by watching a pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from worker.engine.linears.packed import Kind


class Calls:
    """What each watched linear was given in a pass, call by call."""

    def __init__(self) -> None:
        self._given: dict[int, list[tuple[mx.array, mx.array]]] = {}

    def note(self, module: Any, x: mx.array) -> None:
        """The copy tells when x has been changed in place from one sibling to the next."""
        self._given.setdefault(id(module), []).append((x, x[...]))

    def agree(self, one: Any, other: Any) -> bool:
        """Whether both were called, and each time with the same array of the same content."""
        ours, theirs = self._given.get(id(one), []), self._given.get(id(other), [])
        return (
            0 < len(ours) == len(theirs)
            and all(mine[0] is yours[0] for mine, yours in zip(ours, theirs, strict=True))
            and all(bool(mx.array_equal(mine[1], yours[1])) for mine, yours in zip(ours, theirs, strict=True))
        )


class _WatchedLinear(nn.QuantizedLinear):  # type: ignore[misc]
    _calls: Calls

    def __call__(self, x: mx.array) -> mx.array:
        self._calls.note(self, x)
        out: mx.array = super().__call__(x)
        return out


def siblings(model: Any, linears: Mapping[str, Any]) -> list[list[str]]:
    """Groups of two or more of `linears`, by path, that are given the same x and have weights of one kind.

    linears: of class `nn.QuantizedLinear`. The pass is over two tokens; a model that fails in it has no siblings.
    """
    calls = Calls()
    try:
        with _watched(linears, calls):
            mx.eval(model(mx.array([[0, 1]]), cache=make_prompt_cache(model)))
    except Exception:  # noqa: BLE001 - whatever it is, the self-check meets it too, and says so
        return []
    groups: dict[tuple[str, Kind | None], list[list[str]]] = {}
    for path, linear in linears.items():
        kin = groups.setdefault((path.rpartition(".")[0], Kind.of(linear)), [])
        group = next((group for group in kin if calls.agree(linears[group[0]], linear)), None)
        if group is None:
            kin.append([path])
        else:
            group.append(path)
    return [group for kin in groups.values() for group in kin if len(group) > 1]


@contextmanager
def _watched(linears: Mapping[str, Any], calls: Calls) -> Iterator[None]:
    for linear in linears.values():
        linear._calls, linear.__class__ = calls, _WatchedLinear
    try:
        yield
    finally:
        for linear in linears.values():
            linear.__class__ = nn.QuantizedLinear
            del linear._calls
