"""Best-first trees against all trees there are: no other of as many nodes has a larger sum of values."""

import itertools
import random
from collections.abc import Callable

import pytest

from worker.engine.drafters.dflash.best_first import Candidates, grow
from worker.engine.drafters.protocol import DraftLimits
from worker.engine.tree import TokenTree

ROOT = 50
Following = Callable[[int, int], Candidates]


def odds_of(rng: random.Random, tokens: range) -> Candidates:
    """Random odds of `tokens` that sum to less than one, best first."""
    weights = [rng.random() ** 2 for _ in tokens]
    total = sum(weights) + rng.random()
    return sorted(((token, w / total) for token, w in zip(tokens, weights, strict=True)), key=lambda pair: -pair[1])


def independent(seed: int) -> Following:
    rng = random.Random(seed)
    slots = [odds_of(rng, range(4)) for _ in range(4)]
    return lambda token, depth: slots[depth - 1]


def conditional(seed: int) -> Following:
    """Odds that depend on the token before."""
    return lambda token, depth: odds_of(random.Random(f"{seed} {token} {depth}"), range(4))


def all_values(following: Following, slots: int) -> dict[tuple[int, ...], float]:
    """The value of every path that there is."""
    values = {}
    for depth in range(1, slots + 1):
        for path in itertools.product(range(4), repeat=depth):
            value, before = 1.0, ROOT
            for place, token in enumerate(path, start=1):
                value *= dict(following(before, place))[token]
                before = token
            values[path] = value
    return values


def paths_of(tree: TokenTree) -> list[tuple[int, ...]]:
    return [tuple(tree.tokens[one] for one in tree.path(node)[1:]) for node in range(1, len(tree))]


@pytest.mark.parametrize("nodes", [2, 3, 9, 20, 60])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [independent, conditional])
def test_a_tree_holds_the_paths_of_largest_value(kind: Callable[[int], Following], seed: int, nodes: int) -> None:
    following = kind(seed)
    tree = TokenTree(ROOT)
    grow(tree, DraftLimits(nodes, 9), following, 4, 1e-12)
    values = all_values(following, 4)
    best = sorted(values, key=lambda path: -values[path])[: nodes - 1]
    assert sorted(paths_of(tree)) == sorted(best)
    for node in range(1, len(tree)):
        assert tree.values[node] == pytest.approx(values[paths_of(tree)[node - 1]])


def test_by_hand() -> None:
    slots = {1: [(7, 0.6), (8, 0.3)], 2: [(9, 0.5), (7, 0.4)]}
    tree = TokenTree(ROOT)
    grow(tree, DraftLimits(5, 5), lambda token, depth: slots[depth], 2, 0.01)
    # 0.6, then 0.6 x 0.5 = 0.3 and 0.3 in the order in which they came up, then 0.6 x 0.4 = 0.24.
    assert paths_of(tree) == [(7,), (8,), (7, 9), (7, 7)]


def test_no_guess_is_below_the_least_value() -> None:
    following = independent(1)
    tree = TokenTree(ROOT)
    grow(tree, DraftLimits(100, 9), following, 4, 0.05)
    values = all_values(following, 4)
    assert sorted(paths_of(tree)) == sorted(path for path, value in values.items() if value >= 0.05)
    assert len(tree) > 4


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_tree_is_no_deeper_than_its_limits(depth: int) -> None:
    tree = TokenTree(ROOT)
    grow(tree, DraftLimits(100, depth), independent(2), 4, 1e-12)
    assert tree.max_depth == depth
    assert len(tree) == [1, 5, 21][depth]


def test_odds_are_asked_for_no_more_often_than_there_are_nodes() -> None:
    asked: list[tuple[int, int]] = []
    following = conditional(3)

    def counted(token: int, depth: int) -> Candidates:
        asked.append((token, depth))
        return following(token, depth)

    grow(TokenTree(ROOT), DraftLimits(10, 9), counted, 4, 1e-12)
    assert len(asked) <= 10
