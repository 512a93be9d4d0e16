"""The cost curve and the choice of nodes, against brute force and by hand."""

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from worker.engine.budget import MARGIN, Budget, CostCurve
from worker.engine.tree import TokenTree


def random_draft(rng: random.Random, nodes: int) -> TokenTree:
    tree = TokenTree(0)
    while len(tree) < nodes:
        tree.add(rng.randrange(len(tree)), rng.randrange(20), rng.choice([rng.random(), 0.5, 1.0]))
    return tree


def subtrees(tree: TokenTree) -> list[set[int]]:
    """Every set of nodes that holds the root and the parent of each of its nodes."""
    others = range(1, len(tree))
    sets = [{0, *chosen} for size in range(len(tree)) for chosen in itertools.combinations(others, size)]
    return [chosen for chosen in sets if all(tree.parents[node] in chosen for node in chosen if node)]


def rate(values: Sequence[float], curve: CostCurve, draft_ms: float) -> float:
    """Expected tokens per millisecond; plain decoding is preferred to a tree that promises as little more."""
    preference = MARGIN if len(values) == 1 else 1.0
    return preference * sum(values) / (curve.cost(len(values)) + draft_ms)


@pytest.mark.parametrize("seed", range(60))
def test_choose_is_the_best_of_all_subtrees(seed: int) -> None:
    rng = random.Random(seed)
    tree = random_draft(rng, rng.randint(1, 8))
    costs = list(itertools.accumulate(rng.choice([0.0, 0.1, rng.random(), 3.0]) for _ in range(8)))
    curve = CostCurve(tuple(range(1, 9)), tuple(1 + cost for cost in costs))
    draft_ms = rng.choice([0.0, 0.3, 5.0])
    best = max(rate([tree.values[node] for node in chosen], curve, draft_ms) for chosen in subtrees(tree))
    chosen = Budget(curve).choose(tree, draft_ms)
    assert rate(chosen.values, curve, draft_ms) == pytest.approx(best)
    for node in range(1, len(chosen)):
        assert chosen.values[node] <= chosen.values[chosen.parents[node]]


@pytest.mark.parametrize("seed", range(40))
def test_where_only_chains_can_be_verified_the_best_of_all_paths_is_chosen(seed: int) -> None:
    rng = random.Random(seed)
    tree = random_draft(rng, rng.randint(1, 12))
    costs = list(itertools.accumulate(rng.choice([0.0, 0.1, rng.random(), 3.0]) for _ in range(5)))
    curve = CostCurve(tuple(range(1, 6)), tuple(1 + cost for cost in costs))
    draft_ms = rng.choice([0.0, 0.3, 5.0])
    paths = [tree.path(node) for node in range(len(tree)) if tree.depths[node] < 5]
    best = max(rate([tree.values[node] for node in path], curve, draft_ms) for path in paths)
    chosen = Budget(curve).choose_chain(tree, draft_ms)
    assert chosen.is_chain
    assert rate(chosen.values, curve, draft_ms) == pytest.approx(best)


def test_a_long_chain_beats_a_likelier_token_with_nothing_below_it() -> None:
    tree = TokenTree(0)
    tree.add(0, 1, 0.6)
    node = 0
    for token in (2, 3, 4):
        node = tree.add(node, token, 0.4 if token == 2 else 1.0)
    flat = Budget(CostCurve((1, 4), (10.0, 11.0)))
    assert flat.choose_chain(tree).tokens == [0, 2, 3, 4]
    # Two nodes cost half as much again, more than that nothing pays.
    assert Budget(CostCurve((1, 2, 3, 4), (10.0, 15.0, 80.0, 90.0))).choose_chain(tree).tokens == [0, 1]
    assert Budget(None, fixed_nodes=2).choose_chain(tree).tokens == [0, 1]
    assert Budget(None, fixed_nodes=16).choose_chain(tree).tokens == [0, 2, 3, 4]
    assert Budget(CostCurve((1,), (10.0,))).choose_chain(tree).tokens == [0]


def test_a_step_in_the_curve_is_climbed_when_what_is_beyond_pays() -> None:
    # Four nodes cost three passes and eight cost no more: nothing pays before the step.
    tree = TokenTree(0)
    node = 0
    for token in range(1, 8):
        node = tree.add(node, token, 0.95)
    budget = Budget(CostCurve((1, 2, 3, 4, 8), (10.0, 30.0, 30.0, 30.0, 30.5)))
    assert len(budget.choose(tree)) == 8
    assert len(Budget(CostCurve((1, 2, 3, 4), (10.0, 39.0, 39.0, 39.0))).choose(tree)) == 1


def test_equal_values_still_make_a_tree() -> None:
    tree = TokenTree(0)
    for token in range(4):
        tree.add(tree.add(0, token, 1.0), 9, 1.0)
    tree.values = [1.0] * 9
    for nodes in range(1, 10):
        assert len(Budget(None, fixed_nodes=nodes).choose(tree)) == nodes


def test_choose_never_exceeds_the_measured_nodes() -> None:
    tree = random_draft(random.Random(1), 12)
    tree.values = [1.0] * 12
    assert len(Budget(CostCurve((1, 4), (1.0, 1.0))).choose(tree)) == 4


def test_a_limit_below_the_curve_holds() -> None:
    tree = random_draft(random.Random(1), 12)
    tree.values = [1.0] * 12
    budget = Budget(CostCurve((1, 8), (1.0, 1.0)), limit=3)
    assert budget.max_nodes == 3
    assert len(budget.choose(tree)) == 3
    assert Budget(CostCurve((1, 8), (1.0, 1.0)), limit=32).max_nodes == 8


def test_a_round_costs_plain_passes() -> None:
    budget = Budget(CostCurve((1, 3), (10.0, 14.0)))
    assert budget.plain_passes(1, 0.0) == 1.0
    assert budget.plain_passes(2, 3.0) == pytest.approx((12.0 + 3.0) / 10.0)


def test_a_costly_second_node_means_plain_decoding() -> None:
    tree = TokenTree(0)
    tree.add(0, 1, 0.9)
    assert len(Budget(CostCurve((1, 2), (10.0, 20.0))).choose(tree)) == 1
    assert len(Budget(CostCurve((1, 2), (10.0, 18.0))).choose(tree)) == 2


def test_a_slow_draft_makes_the_pass_beside_it_cheaper() -> None:
    # 1.5 tokens in 10 + 10 ms lose to one in 10 ms; but once 40 ms went into the draft, they win.
    tree = TokenTree(0)
    tree.add(0, 1, 0.5)
    budget = Budget(CostCurve((1, 2), (10.0, 20.0)))
    assert len(budget.choose(tree, draft_ms=0.0)) == 1
    assert len(budget.choose(tree, draft_ms=40.0)) == 2


def test_one_node_is_a_legal_answer() -> None:
    budget = Budget(CostCurve((1,), (5.0,)))
    assert budget.max_nodes == 1
    tree = random_draft(random.Random(0), 5)
    chosen = budget.choose(tree)
    assert chosen.tokens == [0]
    alone = TokenTree(3)
    assert budget.choose(alone) is alone


def test_fixed_nodes_take_the_likeliest_whatever_they_cost() -> None:
    tree = TokenTree(0)
    left = tree.add(0, 1, 0.9)
    tree.add(0, 2, 0.5)
    tree.add(left, 3, 0.8)
    tree.add(left, 4, 0.1)
    budget = Budget(CostCurve((1, 2), (1.0, 1000.0)), fixed_nodes=3)
    assert budget.max_nodes == 3
    assert sorted(budget.choose(tree).tokens) == [0, 1, 3]
    assert len(Budget(None, fixed_nodes=16).choose(tree)) == 5
    assert len(Budget(None, fixed_nodes=1).choose(tree)) == 1


def test_fit_takes_medians_and_pools_what_falls() -> None:
    curve = CostCurve.fit({1: [9, 11, 10], 4: [30, 500, 20], 2: [14, 14, 14], 8: [20, 20, 20]})
    assert curve.nodes == (1, 2, 4, 8)
    # Medians 10, 14, 30, 20: the last two break the order and become their mean.
    assert curve.milliseconds == pytest.approx((10, 14, 25, 25))


def test_cost_is_linear_between_measured_counts() -> None:
    curve = CostCurve((1, 2, 4), (10.0, 20.0, 60.0))
    assert [curve.cost(n) for n in (1, 2, 3, 4)] == pytest.approx([10, 20, 40, 60])
    assert curve.max_nodes == 4


GOOD = {"nodes": [1, 2, 4], "milliseconds": [10.0, 12.0, 12.0]}


def test_a_curve_survives_a_file() -> None:
    assert CostCurve.of(GOOD) == CostCurve((1, 2, 4), (10.0, 12.0, 12.0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": []},
        {"nodes": [], "milliseconds": []},
        {"nodes": [1, 2]},
        {"nodes": [2, 3, 4]},
        {"nodes": [1, 4, 2]},
        {"nodes": [1, 2, 2]},
        {"nodes": ["one", 2, 4]},
        {"nodes": 3},
        {"milliseconds": [10.0, 9.0, 12.0]},
        {"milliseconds": [0.0, 9.0, 12.0]},
        {"milliseconds": [-1.0, 9.0, 12.0]},
        {"milliseconds": [10.0, float("nan"), 12.0]},
        {"milliseconds": [10.0, 12.0, float("inf")]},
        {"milliseconds": [10.0, None, 12.0]},
    ],
    ids=str,
)
def test_a_curve_that_nobody_measured_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        CostCurve.of(GOOD | wrong)
