"""The bench of passes compares passes that do the same, and sees kernels that do not."""

from argparse import Namespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map

from bench import hybrid_passes, pass_profile
from bench.hybrid_passes import COST_HEADINGS, MEMORY_HEADINGS, PROFILE_HEADINGS, Measurement
from bench.pass_profile import PARTS
from bench.passes import Times, logits_of, timed, timed_in_decoding
from kernels.gated_delta_tree.problem import Configuration, Recurrence
from kernels.gated_delta_tree.reference import reference as recurrence
from kernels.qmm.reference import Product
from kernels.qmm.reference import reference as product
from kernels.tree_attention.problem import TreeAttention
from kernels.tree_attention.reference import reference as attention
from worker.engine.kernel_set import KernelSet
from worker.engine.linears import install_kernels
from worker.engine.verify.selfcheck import TOLERANCE_16_BIT
from worker.engine.verify.submission import MOST_BLOCKS

SHAPE = {**hybrid_passes.SHAPE, **hybrid_passes.SMALL}


class References(KernelSet):
    """In place of the kernels of a machine; counts what is asked for, and makes attention blind where told so."""

    def __init__(self, blind: bool = False) -> None:
        self.blind = blind
        self.asked = {"product": 0, "attention": 0, "recurrence": 0}

    def product(self, dtype: mx.Dtype, group_size: int, bits: int) -> Product:
        self.asked["product"] += 1
        return product

    def attention(self, dtype: mx.Dtype, head_size: int) -> TreeAttention:
        self.asked["attention"] += 1
        if not self.blind:
            return attention
        return lambda queries, *rest, **options: mx.zeros_like(queries)

    def recurrence(self, configuration: Configuration) -> Recurrence:
        self.asked["recurrence"] += 1
        return recurrence()


@pytest.fixture(scope="module")
def model() -> Any:
    return hybrid_passes.random_model(SHAPE)


def measurement(model: Any, kernels: KernelSet, most_blocks: int = MOST_BLOCKS) -> Measurement:
    faster = hybrid_passes.twin(model, SHAPE)
    install_kernels(faster, kernels)
    return Measurement(model, faster, kernels, SHAPE, 16, most_blocks)


def test_the_tables(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    kernels = References()
    faster = hybrid_passes.twin(model, SHAPE)
    install_kernels(faster, kernels)
    asked = dict(kernels.asked)
    options = Namespace(contexts=[16], nodes=[1, 5], rounds=1, memory=True, profile=[3], most_blocks=2)
    costs, memory, profiles = hybrid_passes.measure(model, faster, kernels, SHAPE, 10**9, options)

    assert [line[:2] for line in costs] == [[16, 1], [16, 5]]
    one, five = (dict(zip(COST_HEADINGS, line, strict=True)) for line in costs)
    for way in ("chain", "tree", "kernels"):
        assert one[f"{way} c(n)/c(1)"] == 1
        assert five[f"{way} c(n)/c(1)"] == five[f"{way} ms"] / one[f"{way} ms"]
    assert five["kernels / chain"] == five["kernels ms"] / five["chain ms"]
    assert one["rounding %"] == 0
    assert five["rounding %"] < 5
    assert five["median row %"] < 100 * TOLERANCE_16_BIT
    assert hybrid_passes.right(costs)
    assert kernels.asked["attention"] > asked["attention"]
    assert kernels.asked["recurrence"] > asked["recurrence"]

    [(_, nodes, plain, tree, *_)] = memory
    assert nodes == 5
    assert 1 < plain < tree < 1.1  # GB: the weights of this call are 1 GB, the rest is small
    assert [line[:3] for line in profiles] == [[16, 3, name] for name in ("mlx-lm chain", "tree", "tree with kernels")]
    assert all(len(line) == len(PROFILE_HEADINGS) for line in profiles)
    assert all(len(line) == len(MEMORY_HEADINGS) for line in memory)
    assert "| 16 | 5 |" in capsys.readouterr().out


def test_passes_with_kernels_are_no_farther_from_float32_than_those_without(model: Any) -> None:
    """They keep gates, queries and keys in float32, which mlx-lm rounds to the type of the model in between."""
    wide = hybrid_passes.twin(model, SHAPE)
    floats = tree_map(lambda a: a.astype(mx.float32) if mx.issubdtype(a.dtype, mx.floating) else a, wide.parameters())
    wide.update(floats)
    rounded, exact = (measurement(each, References()) for each in (model, wide))
    tree = rounded.random_tree(9)
    truth = logits_of(exact.tree, tree)
    without, with_kernels = (
        float(np.median(np.abs(logits_of(passes, tree) - truth).max(axis=-1)))
        for passes in (rounded.tree, rounded.kernels)
    )
    assert 0 < with_kernels < without


def test_kernels_that_do_something_else_are_not_right(model: Any) -> None:
    blind = measurement(model, References(blind=True))
    changed, median_row, rounding = blind.differences(5)
    assert changed >= median_row > 12
    line = [0.0] * len(COST_HEADINGS)
    for name, value in {"difference %": changed, "median row %": median_row, "rounding %": rounding}.items():
        line[COST_HEADINGS.index(name)] = value
    assert not hybrid_passes.right([line])
    line[COST_HEADINGS.index("rounding %")] = changed
    assert hybrid_passes.right([line])


def test_a_twin_has_the_same_arrays_and_modules_of_its_own(model: Any) -> None:
    other = hybrid_passes.twin(model, SHAPE)
    theirs = dict(tree_flatten(other.parameters()))
    for name, array in tree_flatten(model.parameters()):
        assert theirs[name] is array
    assert not {id(module) for module in model.modules()} & {id(module) for module in other.modules()}


def test_passes_are_taken_back(model: Any) -> None:
    passes = measurement(model, References())
    tree = passes.random_tree(6)
    for way in (passes.chain, passes.tree, passes.kernels):
        before = logits_of(way, tree)
        timed(way, tree, hybrid_passes._deepest(tree))
        timed(way, tree, None)
        assert np.array_equal(logits_of(way, tree), before)


@pytest.mark.parametrize(("most_blocks", "before_the_rest"), [(0, 0), (1, 3), (9, 2)])  # of four blocks
def test_passes_are_handed_over_in_such_pieces(
    model: Any, monkeypatch: pytest.MonkeyPatch, most_blocks: int, before_the_rest: int
) -> None:
    passes = measurement(hybrid_passes.twin(model, SHAPE), References(), most_blocks)
    submitted: list[mx.array] = []
    monkeypatch.setattr(mx, "async_eval", lambda *outputs: submitted.extend(outputs))
    tree = passes.random_tree(4)
    for way, expected in ((passes.chain, 0), (passes.tree, before_the_rest), (passes.kernels, before_the_rest)):
        submitted.clear()
        logits_of(way, tree)
        assert len(submitted) == expected


def test_pieces_are_as_asked_for(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Noted(Measurement):
        def __init__(self, *of: Any) -> None:
            made.append(of[-1])
            super().__init__(*of)

    monkeypatch.setattr(hybrid_passes, "Measurement", Noted)
    options = Namespace(contexts=[16], nodes=[1], rounds=1, memory=False, profile=[], most_blocks=3)
    hybrid_passes.measure(model, hybrid_passes.twin(model, SHAPE), References(), SHAPE, 10**9, options)
    assert made == [3]


def test_a_pass_is_timed_after_another_of_its_kind(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter(range(100))
    monkeypatch.setattr("bench.passes.timed", lambda *_: Times(0, 0, next(spent), 0))
    passes = measurement(model, References())
    assert timed_in_decoding(passes.chain, passes.random_tree(2), None).whole == 1
    assert passes.costs([2], rounds=1)[0, 0, :3].tolist() == [9, 11, 13]  # 2 to 7 were of a round that does not count


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_left_out_and_put_back(model: Any, part: str) -> None:
    passes = measurement(model, References())
    tree = passes.random_tree(4)
    for way in (passes.chain, passes.tree, passes.kernels):
        before = logits_of(way, tree)
        with PARTS[part](way.model):
            without = logits_of(way, tree)
        assert np.abs(without - before).max() > 0.01 * np.abs(before).max()
        assert np.array_equal(logits_of(way, tree), before)


def test_the_products_alone_are_all_products(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []

    def watched(module: Any, x: mx.array) -> mx.array:
        called.append(module)
        return mx.zeros((*x.shape[:-1], module.weight.shape[0]))

    monkeypatch.setattr(nn.QuantizedLinear, "__call__", watched)
    pass_profile.products_alone(model, 3)
    linears = [module for module in model.modules() if isinstance(module, nn.QuantizedLinear)]
    assert sorted(map(id, called)) == sorted(map(id, linears))
    assert len(linears) == 4 * 3 + 3 * 5 + 1 * 4 + 1  # MLPs, recurrent mixers, attention, head
