"""What every drafter owes to the protocol, whatever its guesses are worth."""

import random
from typing import Any

import numpy as np
import pytest
from drafter_cases import ALL, CASES
from drafter_rig import DrafterCase, Rig, content_of
from engine_maker import EngineFor
from family_exactness import Case

from worker.engine.drafters.protocol import DraftLimits
from worker.engine.sampling import Sampling
from worker.engine.tree import TokenTree

LIMITS = DraftLimits(nodes=12, depth=5)
SAMPLED = Sampling(temperature=0.9, top_k=30, seed=5)


@pytest.fixture(scope="module", params=ALL)
def case(request: pytest.FixtureRequest) -> DrafterCase:
    return ALL[request.param]()


def repetitive(rng: random.Random, vocabulary: int, length: int) -> list[int]:
    """Tokens with passages that come again, so that drafters of every kind have something to say."""
    phrases = [[rng.randrange(3, vocabulary) for _ in range(rng.randint(3, 6))] for _ in range(3)]
    tokens: list[int] = []
    while len(tokens) < length:
        tokens += rng.choice(phrases)
    return tokens[:length]


def cold(case: DrafterCase, tokens: list[int], sampling: Sampling | None) -> Rig:
    """A new drafter whose one prompt is the whole text."""
    rig = Rig(case, sampling)
    rig.prompt(tokens)
    return rig


def assert_same_drafts(got: TokenTree, expected: TokenTree) -> None:
    assert (got.tokens, got.parents) == (expected.tokens, expected.parents)
    np.testing.assert_allclose(got.confidences, expected.confidences, atol=2e-4)


def round_of(rig: Rig, tree: TokenTree, rng: random.Random, vocabulary: int) -> None:
    """Accept some node of the draft, or none, and emit any token after it."""
    rig.accept(tree, rng.randrange(len(tree)), rng.randrange(3, vocabulary))


@pytest.mark.parametrize("sampling", [None, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("seed", range(2))
def test_warm_state_equals_cold_state(case: DrafterCase, seed: int, sampling: Sampling | None) -> None:
    rng = random.Random(seed)
    rig = Rig(case, sampling)
    rig.prompt(repetitive(rng, case.vocabulary, 30), chunk=rng.choice([4, 7, 2048]))
    for _ in range(8):
        tree = rig.draft(LIMITS)
        fresh = cold(case, rig.tokens, sampling)
        assert_same_drafts(tree, fresh.draft(LIMITS))
        for warm, other in zip(
            content_of(rig.session.drafter_layers), content_of(fresh.session.drafter_layers), strict=True
        ):
            np.testing.assert_allclose(warm, other, atol=2e-4)
        round_of(rig, tree, rng, case.vocabulary)


def test_drafting_leaves_the_layers_as_they_were(case: DrafterCase) -> None:
    rng = random.Random(3)
    rig = Rig(case)
    rig.prompt(repetitive(rng, case.vocabulary, 24))
    for limits in (LIMITS, DraftLimits(2, 1), DraftLimits(32, 16), LIMITS):
        before = content_of(rig.layers)
        tree = rig.draft(limits)
        for now, then in zip(content_of(rig.session.drafter_layers), before, strict=True):
            np.testing.assert_array_equal(now, then)
        assert_same_drafts(rig.draft(limits), tree)
        round_of(rig, tree, rng, case.vocabulary)


@pytest.mark.parametrize("limits", [DraftLimits(1, 5), DraftLimits(2, 1), DraftLimits(3, 2), DraftLimits(32, 1)])
def test_a_draft_stays_within_its_limits(case: DrafterCase, limits: DraftLimits) -> None:
    rng = random.Random(4)
    rig = Rig(case)
    rig.prompt(repetitive(rng, case.vocabulary, 40))
    tree = rig.draft(limits)
    # Of a mixture, each drafter by itself.
    proposed = [sum(bool(source & 1 << number) for source in tree.sources) for number in range(4)]
    assert 1 + max(proposed) <= limits.nodes
    assert tree.max_depth <= limits.depth
    assert all(0 <= token < case.vocabulary for token in tree.tokens)
    assert all(0 <= confidence <= 1 for confidence in tree.confidences)


def test_drafts_come(case: DrafterCase) -> None:
    rig = Rig(case)
    rig.prompt(repetitive(random.Random(6), case.vocabulary, 40))
    assert len(rig.draft(LIMITS)) > 1


def test_a_prompt_of_one_token_and_a_text_of_few(case: DrafterCase) -> None:
    rng = random.Random(7)
    rig = Rig(case)
    rig.prompt([9])
    for _ in range(4):
        tree = rig.draft(LIMITS)
        assert_same_drafts(tree, cold(case, rig.tokens, None).draft(LIMITS))
        round_of(rig, tree, rng, case.vocabulary)


def test_the_context_of_a_prefix_comes_back_with_it(case: DrafterCase) -> None:
    rng = random.Random(8)
    rig = Rig(case, prefix_bytes=2**26)
    system = repetitive(rng, case.vocabulary, 48)
    cached = []
    for _ in range(5):
        prompt = [*system, *repetitive(rng, case.vocabulary, 40)]
        cached.append(rig.prompt(prompt))
        tree = rig.draft(LIMITS)
        assert_same_drafts(tree, cold(case, prompt, None).draft(LIMITS))
        round_of(rig, tree, rng, case.vocabulary)
    assert cached[2:] == [48, 48, 48]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_p": 0.95, "seed": 3}], ids=["greedy", "sampled"])
def test_the_text_is_that_of_plain_decoding(case: DrafterCase, engine_for: EngineFor, sampling: dict[str, Any]) -> None:
    asked = Case(prompt="ab-cd-ab-cd-ab", tokens=60, sampling=sampling)
    expected = asked.plain(case.target)
    for nodes in (2, 12):
        engine = engine_for(case.target, nodes=nodes, drafter=case.make())
        for _ in ("cold", "warm"):
            result, stats = engine.generate(asked.request)
            assert result.token_ids == expected
            assert stats.drafter == engine.drafter.name


@pytest.mark.parametrize("how", ["bias", "no end yet", "penalties"])
@pytest.mark.parametrize("name", [name for name in CASES if name != "suffix"])
def test_what_the_request_keeps_from_being_drawn_is_not_guessed(name: str, how: str) -> None:
    """But by the suffix drafter, whose guesses were drawn before."""
    case = CASES[name]()
    text = repetitive(random.Random(10), case.vocabulary, 40)
    guessed = cold(case, text, None).draft(LIMITS).tokens[1:]
    if how == "penalties":
        text, guessed = [*text, *guessed, text[-1]], [*text, *guessed]
        sampling = Sampling(presence_penalty=1e4, penalty_context_size=1000)
    elif how == "bias":
        sampling = Sampling(logit_bias=dict.fromkeys(guessed, -1e9))
    else:
        sampling = Sampling(min_tokens=100, suppressed=frozenset(guessed))
    tree = cold(case, text, sampling).draft(LIMITS)
    assert len(tree) > 1
    assert not set(tree.tokens[1:]) & set(guessed)
