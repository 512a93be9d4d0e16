"""The relaxed acceptance rule: walks by hand, and the rule's own definition on random trees."""

import random
from collections.abc import Mapping, Sequence

import mlx.core as mx
import numpy as np
import pytest

from worker.engine.acceptance import Walk, relaxed_walk, walk
from worker.engine.draws import Draws
from worker.engine.sampling import NOTHING, History, NoTokenLeft, Sampling, odds
from worker.engine.tree import TokenTree

PROMPT = [2, 0]
MISS = 9


def tree() -> TokenTree:
    """Node 0(1); its children 1(5) and 2(6); below node 2: 3(5) and 4(7); below node 4: 5(8)."""
    drafted = TokenTree(1)
    drafted.add(0, 5, 0.5)
    six = drafted.add(0, 6, 0.5)
    drafted.add(six, 5, 0.5)
    seven = drafted.add(six, 7, 0.5)
    drafted.add(seven, 8, 0.5)
    return drafted


def walked(
    draws: Mapping[int, int],
    chances: Mapping[int, Mapping[int, float]],
    theta: float,
    ends: Sequence[int] = (),
) -> Walk:
    """The relaxed walk down `tree()`. draws: node -> drawn token, else MISS. chances: node -> token -> probability."""

    def draw(node: int, emitted: Sequence[int]) -> int:
        assert list(emitted) == [tree().tokens[place] for place in tree().path(node)[1:]]
        if draws.get(node) == NOTHING:
            raise NoTokenLeft(0)
        return draws.get(node, MISS)

    def chances_of(node: int, emitted: Sequence[int], tokens: Sequence[int]) -> tuple[list[float], float]:
        assert list(emitted) == [tree().tokens[place] for place in tree().path(node)[1:]]
        named = [chances[node][token] for token in tokens]
        return named, 1 - sum(named)

    return relaxed_walk(tree(), draw, lambda token: token in ends, chances_of, theta)


# All others together have 0.25 after the root; node 2 has the longer continuation, of three tokens.
ROOT = {0: {5: 0.5, 6: 0.25}}
LONG = {0: MISS, 1: 4, 2: 7, 4: 8, 5: 3}


def test_a_miss_takes_the_child_with_the_longest_lossless_continuation() -> None:
    assert walked(LONG, ROOT, theta=0.3) == Walk([0, 2, 4, 5], [6, 7, 8, 3], forced=[2])


@pytest.mark.parametrize(("theta", "forced"), [(0.25 / 3 + 1e-9, [2]), (0.25 / 3 - 1e-9, [])])
def test_the_mass_of_a_miss_may_be_theta_for_each_token_gained(theta: float, forced: list[int]) -> None:
    found = walked(LONG, ROOT, theta)
    assert found.forced == forced
    assert found.tokens == ([6, 7, 8, 3] if forced else [MISS])


def test_of_equal_gains_the_likelier_child_is_taken() -> None:
    assert walked({**LONG, 2: MISS}, ROOT, theta=0.25) == Walk([0, 1], [5, 4], forced=[1])


def test_a_child_that_cannot_be_drawn_is_not_taken() -> None:
    chances = {0: {5: 0.5, 6: 0.0}}
    assert walked(LONG, chances, theta=0.3) == Walk([0], [MISS])
    assert walked(LONG, chances, theta=0.5) == Walk([0, 1], [5, 4], forced=[1])


def test_a_draw_that_hits_is_never_overruled() -> None:
    assert walked({**LONG, 0: 5}, ROOT, theta=1.0) == Walk([0, 1], [5, 4])


def test_a_walk_may_force_again_where_the_continuation_misses() -> None:
    chances = {0: {5: 0.25, 6: 0.5}, 2: {5: 0.1, 7: 0.4}}
    assert walked({**LONG, 2: MISS}, chances, theta=0.25) == Walk([0, 2, 4, 5], [6, 7, 8, 3], forced=[2, 4])
    assert walked({**LONG, 2: MISS}, chances, theta=0.25 - 1e-9) == Walk([0], [MISS])


def test_a_draw_that_ends_the_text_is_never_overruled() -> None:
    assert walked(LONG, ROOT, theta=1.0, ends=[MISS]) == Walk([0], [MISS])
    assert walked(LONG, ROOT, theta=1.0, ends=[3]) == Walk([0, 2, 4, 5], [6, 7, 8, 3], forced=[2])


def test_no_end_is_forced() -> None:
    assert walked(LONG, ROOT, theta=1.0, ends=[6]) == Walk([0, 1], [5, 4], forced=[1])
    assert walked(LONG, ROOT, theta=1.0, ends=[5, 6]) == Walk([0], [MISS])


def test_nothing_is_accepted_past_an_end_that_is_drawn_after_a_forced_token() -> None:
    # The continuation is node 2 alone: its draw, 7, ends the text.
    assert walked(LONG, ROOT, theta=0.25, ends=[7]) == Walk([0, 1], [5, 4], forced=[1])
    assert walked(LONG, {0: {5: 0.25, 6: 0.5}}, theta=0.25, ends=[7]) == Walk([0, 2], [6, 7], forced=[2])


def test_a_branch_after_which_nothing_can_be_drawn_is_not_taken() -> None:
    assert walked({**LONG, 4: NOTHING}, ROOT, theta=1.0) == Walk([0, 1], [5, 4], forced=[1])


def test_a_miss_at_a_leaf_stands() -> None:
    assert walked({0: 5, 1: MISS}, {}, theta=1.0) == Walk([0, 1], [5, MISS])


# The probabilities are those of the draw.


@pytest.mark.parametrize(
    ("values", "expected", "rest"),
    [
        ({"temperature": 1.0}, [0.3, 0.1], 0.6),
        ({"temperature": 1.0, "top_k": 3}, [3 / 9, 0], 6 / 9),
        ({"temperature": 0.5}, [9 / 30, 1 / 30], 20 / 30),
        ({"temperature": 1.0, "top_p": 0.6}, [3 / 7, 0], 4 / 7),
        ({"temperature": 1.0, "min_p": 0.5}, [3 / 9, 0], 6 / 9),
    ],
)
def test_odds_are_of_what_filters_and_temperature_leave(
    values: dict[str, float], expected: list[float], rest: float
) -> None:
    logprobs = np.log(np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32))
    named, others = odds(logprobs, Sampling(**values), [1, 3])  # type: ignore[arg-type]
    assert named == pytest.approx(expected, abs=1e-6)
    assert others == pytest.approx(rest, abs=1e-6)


def test_penalties_go_by_the_forced_path() -> None:
    # Two tokens with logits 1 and 0: the other one has 0.27, which theta 0.3 lets pass. Each token 0 costs its next
    # one half a logit, and then the other one has 0.38.
    chain = TokenTree(1)
    for node in range(3):
        chain.add(node, 0, 0.9)
    logits = mx.array([[1.0, 0.0]] * 4)
    for penalty, forced in ((0.0, [1, 2, 3]), (0.5, [1])):
        draws = Draws(Sampling(temperature=1.0, frequency_penalty=penalty), logits)
        found = relaxed_walk(
            chain,
            lambda node, emitted: 1,
            lambda _: False,
            lambda node, emitted, tokens: draws.odds(node, History([], [], emitted), tokens),  # noqa: B023
            theta=0.3,
        )
        assert found.forced == forced


# The rule by its definition, on random trees with the engine's draws.

VOCABULARY, NODES = 6, 12
VALUES = [
    {"temperature": 1.0},
    {"temperature": 1.6, "top_k": 4},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.2, "frequency_penalty": 0.7, "repetition_penalty": 1.3},
]


def random_tree(rng: random.Random) -> TokenTree:
    drafted = TokenTree(rng.randrange(VOCABULARY))
    for _ in range(NODES):
        drafted.add(rng.randrange(len(drafted)), rng.randrange(VOCABULARY), 0.5)
    return drafted


class Verified:
    """A random tree with random logits, its draws, and the distribution that they are of."""

    def __init__(self, seed: int, sampling: Sampling) -> None:
        self.tree = random_tree(random.Random(seed))
        logits = np.random.default_rng(seed).normal(0, 1.5, (len(self.tree), VOCABULARY)).astype(np.float32)
        self._draws = Draws(sampling, mx.array(logits))

    def draw(self, node: int, emitted: Sequence[int]) -> int:
        return self._draws.draw(node, History(PROMPT, [], emitted))

    def odds(self, node: int, emitted: Sequence[int], tokens: Sequence[int]) -> tuple[list[float], float]:
        return self._draws.odds(node, History(PROMPT, [], emitted), tokens)

    def drawn(self, node: int) -> int:
        return self.draw(node, [self.tree.tokens[place] for place in self.tree.path(node)[1:]])

    def miss(self, node: int) -> tuple[dict[int, float], float]:
        """child -> its probability, and the probability of a miss."""
        emitted = [self.tree.tokens[place] for place in self.tree.path(node)[1:]]
        children = self.tree.children(node)
        named, _ = self.odds(node, emitted, [self.tree.tokens[child] for child in children])
        return dict(zip(children, named, strict=True)), 1 - sum(named)

    def gain(self, child: int) -> int:
        following = self.tree.child(child, self.drawn(child))
        return 1 if following is None else 1 + self.gain(following)

    def relaxed(self, theta: float) -> Walk:
        return relaxed_walk(self.tree, self.draw, lambda _: False, self.odds, theta)


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_every_forced_token_pays_and_every_draw_that_stands_would_not(values: dict[str, float]) -> None:
    forced = stood = 0
    for seed in range(150):
        theta = random.Random(seed).choice([0.05, 0.15, 0.3, 0.6])
        verified = Verified(seed, Sampling(**values, seed=seed))  # type: ignore[arg-type]
        found = verified.relaxed(theta)
        for node, following in zip(found.path, [*found.path[1:], None], strict=True):
            hit = verified.tree.child(node, verified.drawn(node))
            if hit is not None:
                assert following == hit
                continue
            chances, missed = verified.miss(node)
            gains = {child: (verified.gain(child), chances[child]) for child in chances if chances[child] > 0}
            if following is not None:
                assert following in found.forced
                assert gains[following] == max(gains.values())
                assert missed / gains[following][0] <= theta
                forced += 1
            else:
                assert not gains or missed / max(gains.values())[0] > theta
                stood += bool(gains)
    assert forced > 10
    assert stood > 20


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_theta_zero_is_lossless(values: dict[str, float]) -> None:
    for seed in range(60):
        verified = Verified(seed, Sampling(**values, seed=seed))  # type: ignore[arg-type]
        assert verified.relaxed(0.0) == walk(verified.tree, verified.draw, lambda _: False)


def test_the_text_of_a_walk_is_its_path_and_one_more_draw() -> None:
    for seed in range(60):
        verified = Verified(seed, Sampling(temperature=1.3, seed=seed))
        found = verified.relaxed(0.5)
        assert found.tokens[:-1] == [verified.tree.tokens[node] for node in found.path[1:]]
        assert found.tokens[-1] == verified.drawn(found.path[-1])
        assert all(verified.tree.parents[b] == a for a, b in zip(found.path, found.path[1:], strict=False))
