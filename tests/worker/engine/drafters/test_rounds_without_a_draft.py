"""Rounds that pass without a draft: every drafter catches up with them, and is then as after a cold prefill."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from drafter_cases import ALL
from drafter_rig import DrafterCase, Rig, content_of
from engine_maker import EngineFor
from family_exactness import Case
from test_drafter_conformance import LIMITS, assert_same_drafts, cold, repetitive, round_of


@pytest.fixture(scope="module", params=ALL)
def case(request: pytest.FixtureRequest) -> DrafterCase:
    return ALL[request.param]()


def some_rounds(rig: Rig, rng: random.Random, vocabulary: int, rounds: int) -> None:
    """Rounds of which some draft, and then look as cold ones do; there are pauses of all lengths between them."""
    while rounds > 0:
        pause = rng.choice([0, 1, 2, 9])
        for _ in range(pause):
            rig.pass_over(rng.choice([rng.choice(rig.tokens), rng.randrange(3, vocabulary)]))
        tree = rig.draft(LIMITS)
        assert_same_drafts(tree, cold_of(rig).draft(LIMITS))
        round_of(rig, tree, rng, vocabulary)
        rounds -= pause + 1


def cold_of(rig: Rig) -> Rig:
    return cold(rig.case, rig.tokens, None)


@pytest.mark.parametrize("seed", range(2))
def test_after_a_pause_all_is_as_after_a_cold_prefill(case: DrafterCase, seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(case)
    rig.prompt(repetitive(rng, case.vocabulary, 20), chunk=7)
    some_rounds(rig, rng, case.vocabulary, 16)
    for now, then in zip(content_of(rig.layers), content_of(cold_of(rig).layers), strict=True):
        np.testing.assert_allclose(now, then, atol=2e-4)


@pytest.mark.parametrize(("seed", "prefix_bytes"), [(0, 0), (1, 2**26)])
def test_what_waits_when_a_text_ends_is_right_for_the_next(case: DrafterCase, seed: int, prefix_bytes: int) -> None:
    """Prompts go on from anywhere in the text before: from its prompt, from what waits, or from its end."""
    rng = random.Random(seed)
    rig = Rig(case, prefix_bytes=prefix_bytes)
    rig.tokens = repetitive(rng, case.vocabulary, 20)
    for _ in range(5):
        shared = rng.choice([0, 15, len(rig.tokens) // 2, len(rig.tokens) - 4, len(rig.tokens)])
        rig.prompt([*rig.tokens[:shared], *repetitive(rng, case.vocabulary, rng.choice([1, 3, 40]))], chunk=50)
        some_rounds(rig, rng, case.vocabulary, 3)
        for _ in range(rng.choice([0, 2, 12])):
            rig.pass_over(rng.randrange(3, case.vocabulary))
        # Some of the last tokens may be taken back, as a stop string does.
        rig.session.settle(len(rig.tokens) - rng.choice([0, 1, 3]))


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_p": 0.95, "seed": 3}], ids=["greedy", "sampled"])
def test_the_text_is_that_of_plain_decoding_while_the_gate_opens_and_closes(
    case: DrafterCase, engine_for: EngineFor, sampling: dict[str, Any]
) -> None:
    asked = Case(prompt="ab-cd-ab-cd-ab", tokens=60, sampling=sampling)
    expected = asked.plain(case.target)
    engine = engine_for(case.target, nodes=8, drafter=case.make())
    rounds = opening_and_closing(random.Random(4))
    engine.speculation.drafts = lambda **_: next(rounds)  # type: ignore[method-assign]
    for _ in ("cold", "warm"):
        result, stats = engine.generate(asked.request)
        assert result.token_ids == expected
        assert stats.budgets[1] > 5
        assert sum(count for nodes, count in stats.budgets.items() if nodes > 1) > 2


def opening_and_closing(rng: random.Random) -> Iterator[bool]:
    while True:
        yield from [False] * rng.randrange(1, 6)
        yield from [True] * rng.randrange(1, 4)
