"""Expansion: which nodes a tree of a drafter's own probabilities consists of, and how often the drafter is asked."""

import math
import random
from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest
from reference_expansion import Path, assert_expected, expected_values, values_of

from worker.engine.drafters.expansion import Expansion, expand
from worker.engine.drafters.guide import CONSIDERED, Guide
from worker.engine.drafters.next_tokens import NextTokens, shortlist
from worker.engine.drafters.protocol import DraftLimits
from worker.engine.sampling import History, Row, Sampling
from worker.engine.tree import TokenTree

WIDE = DraftLimits(nodes=64, depth=16)
VOCABULARY = 11


class Oracle:
    """Random but fixed probabilities after every path; `asked` are the levels that were followed."""

    def __init__(self, seed: int = 0, sharpness: float = 2.0) -> None:
        self.seed, self.sharpness = seed, sharpness
        self.asked: list[list[Path]] = []

    def logprobs(self, path: Path) -> Row:
        rng = np.random.default_rng([self.seed, *path])
        logits = rng.normal(size=VOCABULARY) * self.sharpness
        row: Row = (logits - np.log(np.exp(logits).sum())).astype(np.float32)
        return row

    def follow(self, tree: TokenTree, level: Sequence[int]) -> list[NextTokens]:
        paths = [tuple(tree.tokens[one] for one in tree.path(node)[1:]) for node in level]
        self.asked.append(paths)
        return [NextTokens(self.logprobs(path)) for path in paths]


def drafted(oracle: Oracle, shape: Expansion, limits: DraftLimits = WIDE, guide: Guide | None = None) -> TokenTree:
    tree = TokenTree(5)
    expand(tree, limits, shape, guide or Guide(), oracle.follow)
    return tree


@pytest.mark.parametrize("seed", range(30))
def test_a_draft_is_the_most_valuable_nodes_of_the_beam(seed: int) -> None:
    rng = random.Random(seed)
    shape = Expansion(rng.randint(1, 6), rng.randint(1, 5), rng.randint(1, 5), rng.choice([1e-4, 0.02, 0.2]))
    limits = DraftLimits(nodes=rng.randint(1, 40), depth=rng.randint(0, 7))
    oracle = Oracle(seed, sharpness=rng.choice([0.5, 2.0, 4.0]))
    tree = drafted(oracle, shape, limits)
    assert_expected(tree, expected_values(oracle.logprobs, shape, limits))


def test_values_by_hand() -> None:
    # After every path token 0 has 0.6, token 1 has 0.3 and token 2 has 0.1.
    row = np.log(np.array([0.6, 0.3, 0.1], dtype=np.float32))
    tree = TokenTree(5)
    expand(tree, WIDE, Expansion(3, 2, 2, 0.1), Guide(), lambda grown, level: [NextTokens(row) for _ in level])
    expected = {(0,): 0.6, (0, 0): 0.36, (1,): 0.3, (0, 0, 0): 0.216, (0, 1): 0.18, (0, 0, 1): 0.108, (0, 1, 0): 0.108}
    # (1, 0) has 0.18 too and is not followed: the beam is two wide, and (0, 1) came first.
    assert values_of(tree) == pytest.approx(expected | {(1, 0): 0.18})
    assert tree.tokens[1:4] == [0, 0, 1], "the most valuable come first"


def test_one_beam_is_a_chain_with_siblings() -> None:
    tree = drafted(Oracle(3), Expansion(depth=4, beam=1, children=3, min_value=1e-6))
    parents = {tree.parents[node] for node in range(1, len(tree))}
    assert sorted(tree.depths[parent] for parent in parents) == [0, 1, 2, 3]
    assert len(tree) == 1 + 4 * 3


def test_no_level_is_asked_for_what_cannot_be_kept() -> None:
    sure, unsure = Oracle(1, sharpness=20.0), Oracle(1, sharpness=0.1)
    shape = Expansion(depth=6, beam=4, children=4, min_value=0.3)
    drafted(sure, shape)
    assert len(sure.asked) == 6
    tree = drafted(unsure, shape)
    assert (len(unsure.asked), len(tree)) == (1, 1)


def test_a_tree_tells_how_many_passes_it_took() -> None:
    for seed in range(20):
        oracle = Oracle(seed, sharpness=2.0)
        tree = drafted(oracle, Expansion(depth=6, beam=2, children=3, min_value=0.1), DraftLimits(8, 1 + seed % 6))
        assert tree.passes == len(oracle.asked)
    assert drafted(Oracle(), Expansion(4, 2, 2, 0.01), DraftLimits(8, 0)).passes == 0


def test_nodes_that_others_have_crowded_out_are_not_followed() -> None:
    oracle = Oracle(4, sharpness=1.0)
    shape = Expansion(depth=6, beam=4, children=4, min_value=1e-6)
    limits = DraftLimits(nodes=4, depth=6)
    kept = values_of(drafted(oracle, shape, limits))
    assert len(kept) == 3
    every = Oracle(4, sharpness=1.0)
    drafted(every, shape)
    assert len(oracle.asked) < len(every.asked)
    for level in oracle.asked[1:]:
        for path in level:
            assert math.exp(sum(oracle.logprobs(path[:n])[path[n]] for n in range(len(path)))) > min(kept.values())


@pytest.mark.parametrize("limits", [DraftLimits(1, 5), DraftLimits(8, 0)])
def test_limits_that_leave_no_room_ask_for_nothing(limits: DraftLimits) -> None:
    oracle = Oracle()
    assert len(drafted(oracle, Expansion(4, 2, 2, 0.01), limits)) == 1
    assert oracle.asked == []


def test_a_sampled_draw_is_guessed_with_the_noise_of_its_depth() -> None:
    oracle = Oracle(6, sharpness=1.0)
    guide = Guide(Sampling(temperature=1.0, seed=9), History([3] * 41, ()))
    tree = drafted(oracle, Expansion(depth=3, beam=1, children=1, min_value=1e-9), guide=guide)
    path: Path = ()
    for depth in (1, 2, 3):
        [(token, _)] = guide.candidates(oracle.logprobs(path), depth, 1)
        path = (*path, token)
    assert tuple(tree.tokens[1:]) == path


@pytest.mark.parametrize("size", [7, CONSIDERED, CONSIDERED + 1, 900])
def test_a_shortlist_holds_the_likeliest_tokens(size: int) -> None:
    logits = np.random.default_rng(size).normal(size=(3, size)).astype(np.float32)
    for row, found in zip(logits.astype(np.float64), shortlist(mx.array(logits)), strict=True):
        logprobs = row - np.log(np.exp(row).sum())
        ids = np.arange(size) if found.ids is None else found.ids
        assert sorted(ids.tolist()) == ids.tolist() == sorted(np.argsort(-logprobs)[:CONSIDERED].tolist())
        np.testing.assert_allclose(found.logprobs, logprobs[ids], atol=1e-5)


def test_a_shortlist_of_chosen_tokens_names_those() -> None:
    logits = np.random.default_rng(0).normal(size=(2, 600)).astype(np.float32)
    tokens = np.stack([np.random.default_rng(seed).permutation(5000)[:600] for seed in (1, 2)])
    for row, own, found in zip(logits, tokens, shortlist(mx.array(logits), mx.array(tokens)), strict=True):
        assert found.ids is not None
        assert found.ids.tolist() == sorted(own[np.argsort(-row)[:CONSIDERED]].tolist())
        place = {token: number for number, token in enumerate(own.tolist())}
        chosen = row[[place[token] for token in found.ids.tolist()]]
        np.testing.assert_allclose(found.logprobs, chosen - np.log(np.exp(row).sum()), atol=1e-5)
