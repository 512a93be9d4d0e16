"""What a drafter knows is a function of the committed text: whatever came before, it drafts as from a cold start."""

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from drafter_cases import ALL
from drafter_rig import DrafterCase, Rig, content_of
from test_drafter_conformance import LIMITS, assert_same_drafts, cold, repetitive, round_of

from worker.engine.drafters.protocol import DraftLimits
from worker.engine.tree import TokenTree

WIDE = DraftLimits(nodes=32, depth=8)


@pytest.fixture(scope="module", params=ALL)
def case(request: pytest.FixtureRequest) -> DrafterCase:
    return ALL[request.param]()


def assert_same_content(rig: Rig, expected: Sequence[npt.NDArray[np.float32]]) -> None:
    for now, then in zip(content_of(rig.layers), expected, strict=True):
        np.testing.assert_allclose(now, then, atol=2e-4)


def test_a_prompt_that_comes_again_is_drafted_as_the_first_time(case: DrafterCase) -> None:
    """Between its snapshot and its return other prompts use the drafter, and what was restored goes on to change."""
    rng = random.Random(1)
    rig = Rig(case, prefix_bytes=2**26)
    prompts = [repetitive(rng, case.vocabulary, 45) for _ in range(2)]
    first: list[TokenTree] = []
    for turn in range(3):
        for number, prompt in enumerate(prompts):
            assert rig.prompt(prompt) == (44 if turn else 0)
            assert_same_content(rig, content_of(cold(case, prompt, None).layers))
            tree = rig.draft(LIMITS)
            if turn:
                assert_same_drafts(tree, first[number])
            else:
                first.append(tree)
            round_of(rig, tree, rng, case.vocabulary)
            round_of(rig, rig.draft(LIMITS), rng, case.vocabulary)


def test_after_drafts_that_were_rejected_all_is_as_if_there_had_been_none(case: DrafterCase) -> None:
    rng = random.Random(2)
    prompt = repetitive(rng, case.vocabulary, 30)
    rejecting, plain = Rig(case), Rig(case)
    for rig in (rejecting, plain):
        rig.prompt(prompt)
    guessed = 0
    for _ in range(6):
        tree = rejecting.draft(WIDE)
        guessed += len(tree) - 1
        drafted = {tree.tokens[node] for node in tree.children(0)}
        token = rng.choice([token for token in prompt if token not in drafted])
        rejecting.accept(tree, 0, token)
        plain.pass_over(token)
    assert guessed > 6
    assert_same_content(rejecting, content_of(plain.layers))
    assert_same_content(rejecting, content_of(cold(case, rejecting.tokens, None).layers))
    assert_same_drafts(rejecting.draft(LIMITS), plain.draft(LIMITS))


@pytest.mark.parametrize("limits", [DraftLimits(1, 5), DraftLimits(12, 0), DraftLimits(1, 0)], ids=str)
def test_without_room_nothing_is_drafted_and_nothing_forgotten(case: DrafterCase, limits: DraftLimits) -> None:
    rng = random.Random(3)
    rig = Rig(case)
    rig.prompt(repetitive(rng, case.vocabulary, 30))
    for _ in range(2):
        before = content_of(rig.layers)
        tree = rig.draft(limits)
        assert tree.tokens == [rig.tokens[-1]]
        for now, then in zip(content_of(rig.session.drafter_layers), before, strict=True):
            np.testing.assert_array_equal(now, then)
        rig.accept(tree, 0, rng.randrange(3, case.vocabulary))
        tree = rig.draft(LIMITS)
        assert_same_drafts(tree, cold(case, rig.tokens, None).draft(LIMITS))
        round_of(rig, tree, rng, case.vocabulary)


def test_prompts_back_to_back_know_nothing_of_one_another(case: DrafterCase) -> None:
    rng = random.Random(4)
    rig = Rig(case)
    long, other = (repetitive(rng, case.vocabulary, 34) for _ in range(2))
    for prompt in (long, other, [9], [*long, *other], long, long[:20], [*other[:15], *long[:3]]):
        rig.prompt(prompt)
        tree = rig.draft(LIMITS)
        assert_same_drafts(tree, cold(case, prompt, None).draft(LIMITS))
        round_of(rig, tree, rng, case.vocabulary)
