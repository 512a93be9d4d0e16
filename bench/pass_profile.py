"""Where the time of a pass goes, found without a profiler: by leaving parts out, and by its products alone.

What a part takes is what a pass takes longer with it than without. The gated delta rule, with what its q, k and gates
take, is part of the recurrent mixers, attention over the cache one of the attention mixers; products are part of
everything. Parts overlap on a device, so they need not add up. build and submit are the host's: see `Times`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import qwen3_5

from bench.passes import Times, TreePasses, timed
from bench.turns import median_seconds
from worker.engine.tree import TokenTree


class _Nothing(nn.Module):  # type: ignore[misc]
    """In place of a layer's mixer or MLP."""

    def __call__(self, x: mx.array, *args: Any, **options: Any) -> mx.array:
        return x


@contextmanager
def _without_modules(name: str, model: Any) -> Iterator[None]:
    owners = [(layer, layer[name]) for layer in model.layers if name in layer]
    for layer, _ in owners:
        setattr(layer, name, _Nothing())
    try:
        yield
    finally:
        for layer, module in owners:
            setattr(layer, name, module)


@contextmanager
def _replaced(owner: Any, name: str, stub: Callable[..., Any]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, stub)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _no_attention(queries: mx.array, keys: mx.array, values: mx.array, **_: Any) -> mx.array:
    """Keys and values are still needed."""
    return queries + (keys[:, :1, -1:, :1] + values[:, :1, -1:, :1])


def _no_gated_delta_rule(*rows_and_state: Any, **_: Any) -> tuple[mx.array, Any]:
    """The products behind a and b are still needed."""
    _q, _k, v, a, b, _log_a, _bias, state, *_mask = rows_and_state
    return v + (a + b)[..., None], state


Part = Callable[[Any], AbstractContextManager[None]]
PARTS: Mapping[str, Part] = {
    "MLPs": partial(_without_modules, "mlp"),
    "recurrent mixers": partial(_without_modules, "linear_attn"),
    "gated delta rule": lambda _: _replaced(qwen3_5, "gated_delta_update", _no_gated_delta_rule),
    "attention mixers": partial(_without_modules, "self_attn"),
    "attention itself": lambda _: _replaced(mx.fast, "scaled_dot_product_attention", _no_attention),
}
HEADINGS = ["nodes", "passes", "ms", "of it build", "of it submit", *PARTS, "products alone"]


def profile(named: Mapping[str, TreePasses], tree: TokenTree, rounds: int) -> list[list[Any]]:
    """Lines of the table, all in milliseconds: medians over rounds."""
    whole: dict[str, list[Times]] = {name: [] for name in named}
    rest: dict[tuple[str, str], list[Times]] = {(name, part): [] for name in named for part in PARTS}
    for _ in range(rounds + 1):
        for name, passes in named.items():
            whole[name].append(timed(passes, tree, None))
            for part, leaving_out in PARTS.items():
                with leaving_out(passes.model):
                    rest[name, part].append(timed(passes, tree, None))
    works = [partial(products_alone, passes.model, len(tree)) for passes in named.values()]
    alone = dict(zip(named, median_seconds(works, rounds), strict=True))
    lines: list[list[Any]] = []
    for name in named:
        everything, build, submit = _medians(whole[name])
        parts = [everything - _medians(rest[name, part])[0] for part in PARTS]
        lines.append([len(tree), name, everything, build, submit, *parts, alone[name] * 1e3])
    return lines


def _medians(times: Sequence[Times]) -> list[float]:
    counted = times[1:]
    return [statistics.median(getattr(one, name) for one in counted) for name in ("whole", "build", "submit")]


def products_alone(model: Any, rows: int) -> None:
    """All quantised products of a pass, one after the other as in the model: those of one x wait for nothing but it."""
    bases: dict[int, mx.array] = {}
    outputs: list[mx.array] = []
    for linears in _by_input(model):
        depth = _depth(linears[0])
        if depth not in bases:
            bases[depth] = mx.ones((1, rows, depth), dtype=linears[0]["scales"].dtype)
        x = bases[depth] + 1e-6 * outputs[-1][..., :1] if outputs else bases[depth]
        outputs += [linear(x) for linear in linears]
    mx.eval(outputs)


def _by_input(model: Any) -> list[list[Any]]:
    """Its quantised linears in the order of the layers, those of one parent and one depth together."""
    groups: dict[tuple[str, int], list[Any]] = {}
    for path, module in reversed(model.named_modules()):  # mlx names the last ones first
        if isinstance(module, nn.QuantizedLinear):
            groups.setdefault((path.rpartition(".")[0], _depth(module)), []).append(module)
    return list(groups.values())


def _depth(linear: Any) -> int:
    return int(linear["weight"].shape[1]) * 32 // int(linear.bits)
