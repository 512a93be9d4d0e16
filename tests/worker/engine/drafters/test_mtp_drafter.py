"""The MTP drafter drafts what its head says of the true hidden states, level by level, and keeps nothing of it."""

import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from drafter_rig import DrafterCase, Rig, content_of
from mtp_checkpoints import FAMILIES, PACKED_LAYOUTS, head_for, raw_tensors, target, unpacked
from mtp_reference import numbers, reference
from reference_expansion import LogProbs, Path, assert_expected, expected_values, values_of

from bench.families import configuration, vocabulary
from worker.engine.drafters.expansion import Expansion
from worker.engine.drafters.mtp import HiddenState, MtpDrafter
from worker.engine.drafters.protocol import DraftLimits

SHAPE = Expansion(depth=3, beam=3, children=3, min_value=1e-4)
LIMITS = DraftLimits(nodes=24, depth=8)


def case(family: str, layout: str = "raw", hidden: HiddenState = "normed", ids: int | None = None) -> DrafterCase:
    head, model = head_for(family, layout), target(family)
    return DrafterCase(
        model, lambda: MtpDrafter(head, model, hidden=hidden, vocabulary=ids, expansion=SHAPE), vocabulary(family)
    )


def states_of(model: Any, tokens: Sequence[int], hidden: HiddenState) -> tuple[mx.array, mx.array]:
    """The target's embeddings and hidden states of `tokens`, [L, H] each, without cache."""
    inner = model.language_model.model
    embedded = x = inner.embed_tokens(mx.array([list(tokens)]))
    for layer in inner.layers:
        x = layer(x, mask=None if layer.is_linear else "causal")
    return embedded[0], (inner.norm(x) if hidden == "normed" else x)[0]


def definition(family: str, raw: dict[str, mx.array], tokens: Sequence[int], hidden: HiddenState) -> LogProbs:
    """The head's log-probabilities after every path below the last of `tokens`: whole sequences, without cache."""
    model, config = target(family), configuration(family)["text_config"]
    inner = model.language_model.model
    table = numbers(inner.embed_tokens.weight)
    projection = table if config["tie_word_embeddings"] else numbers(model.language_model.lm_head.weight)
    true = numbers(states_of(model, tokens[:-1], hidden)[1])

    def logprobs(path: Path) -> npt.NDArray[np.floating]:
        earlier = true
        for step in range(len(path) + 1):
            later = [*tokens[1:], *path[:step]]
            places, seen = np.arange(len(later)), np.tri(len(later), dtype=np.bool_)
            outputs = reference(raw, config, table[later], earlier, places, seen)
            earlier = np.concatenate([earlier, outputs[-1:]])
        logits = outputs[-1] @ projection.T
        return logits - np.log(np.exp(logits).sum())

    return logprobs


@pytest.mark.parametrize("hidden", ["normed", "residual"])
@pytest.mark.parametrize("layout", ["raw", "stand-alone"])
@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_are_the_heads_own_probabilities_recomputed(family: str, layout: str, hidden: HiddenState) -> None:
    raw = dict(raw_tensors(family))
    raw = unpacked(raw) if layout in PACKED_LAYOUTS else raw
    rig, rng = Rig(case(family, layout, hidden)), random.Random(1)
    rig.prompt([rng.randrange(97) for _ in range(9)], chunk=4)
    for _ in range(2):
        tree = rig.draft(LIMITS)
        assert tree.max_depth > 1
        logprobs = definition(family, raw, rig.tokens, hidden)
        assert_expected(tree, expected_values(logprobs, SHAPE, LIMITS), tolerance=2e-3)
        rig.accept(tree, rng.randrange(len(tree)), rng.randrange(97))


def test_two_committed_tokens_are_enough_for_a_draft() -> None:
    rig = Rig(case("qwen3_5"))
    rig.prompt([5])
    assert len(rig.draft(LIMITS)) == 1
    rig.accept(rig.draft(LIMITS), 0, 17)
    logprobs = definition("qwen3_5", dict(raw_tensors("qwen3_5")), [5, 17], "normed")
    assert_expected(rig.draft(LIMITS), expected_values(logprobs, SHAPE, LIMITS), tolerance=2e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_layers_do_not_depend_on_how_tokens_came(family: str) -> None:
    drafter_case, rng = case(family), random.Random(2)
    tokens = [rng.randrange(97) for _ in range(23)]
    whole = Rig(drafter_case)
    whole.prompt(tokens)
    for chunk in (1, 2, 5, 22):
        rig = Rig(drafter_case)
        rig.prompt(tokens, chunk=chunk)
        for got, expected in zip(
            content_of(rig.session.drafter_layers), content_of(whole.session.drafter_layers), strict=True
        ):
            np.testing.assert_allclose(got, expected, atol=1e-4)
        assert_expected(rig.draft(LIMITS), values_of(whole.draft(LIMITS)), tolerance=1e-3)


def test_the_layers_hold_true_pairs_and_the_targets_states() -> None:
    rig = Rig(case("qwen3_5"))
    rig.prompt([5, 17, 3, 88, 40])
    for _ in range(3):
        tree = rig.draft(LIMITS)
        deepest = tree.depths.index(tree.max_depth)
        rig.accept(tree, deepest, 11)
    rows, states = rig.layers
    committed = rig.tokens[:-1]
    assert rows.offset == states.offset == len(committed)
    _, hidden = states_of(target("qwen3_5"), committed, "normed")
    np.testing.assert_allclose(numbers(states.keys[0, 0, : states.offset]), numbers(hidden), atol=1e-4)


def test_a_draft_leaves_the_committed_rows_alone_and_does_not_copy_them() -> None:
    rig = Rig(case("qwen3_5"))
    rig.prompt([token % 90 + 3 for token in range(4000)])
    rows, states = rig.layers
    before = [(layer.offset, numbers(layer.keys[..., : layer.offset, :])) for layer in (rows, states)]
    rig.draft(LIMITS)  # makes room behind the rows
    mx.clear_cache()
    mx.reset_peak_memory()
    held = mx.get_active_memory()
    assert len(rig.draft(LIMITS)) > 8
    assert mx.get_peak_memory() - held < rows.keys.nbytes
    for layer, (offset, keys) in zip((rows, states), before, strict=True):
        assert layer.offset == offset
        np.testing.assert_array_equal(numbers(layer.keys[..., :offset, :]), keys)


def test_ids_beyond_the_vocabulary_are_not_guessed() -> None:
    limited, free = Rig(case("qwen3_5", ids=40)), Rig(case("qwen3_5"))
    for rig in (limited, free):
        rig.prompt([5, 17, 3, 88, 40])
    assert max(free.draft(LIMITS).tokens[1:]) >= 40
    guessed = limited.draft(LIMITS).tokens[1:]
    assert guessed
    assert max(guessed) < 40
