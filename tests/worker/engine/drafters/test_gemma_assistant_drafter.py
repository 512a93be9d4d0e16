"""The Gemma-4 assistant: its drafts are those of an independent forward, whatever the target's cache went through."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from drafter_rig import DrafterCase, Rig, content_of
from gemma_assistant_checkpoints import SETTINGS, WINDOW, Tensors, config_of, packed, tensors_of, write
from gemma_assistant_reference import ReferenceAssistant
from mlx.utils import tree_flatten
from reference_expansion import assert_expected, expected_values

from bench.families import tiny_model
from worker.engine.drafters.gemma_assistant import AssistantSettings, load_gemma_assistant
from worker.engine.drafters.protocol import DraftContext, DraftLimits
from worker.engine.tree import TokenTree
from worker.engine.verify.copies import copied_all

TOKENS = 96
LIMITS = DraftLimits(nodes=14, depth=6)
FAMILIES = ["gemma4_text", "gemma4", "gemma4_moe"]


@cache
def target(family: str) -> Any:
    return tiny_model(family, vocab_size=TOKENS, vocab_size_per_layer_input=TOKENS)


class Pair:
    """A checkpoint's drafter over a target, and the reference for both."""

    def __init__(
        self,
        directory: Path,
        family: str = "gemma4_text",
        *,
        config: dict[str, Any] | None = None,
        tensors: Tensors | None = None,
        dense: Tensors | None = None,
        settings: AssistantSettings = SETTINGS,
    ) -> None:
        config = config or config_of(TOKENS)
        tensors = tensors or tensors_of(config)
        path = write(directory, config, tensors, files=2)
        self.case = DrafterCase(target(family), lambda: load_gemma_assistant(path, target(family), settings), TOKENS)
        self.settings = settings
        self.reference = ReferenceAssistant(
            config, dense or tensors, target(family), advancing=settings.positions == "advancing"
        )

    def assert_drafts(self, rig: Rig, tree: TokenTree | None = None) -> TokenTree:
        """The rig's next draft is the reference's."""
        tree = tree or rig.draft(LIMITS)
        self.reference.see(rig.tokens)
        expected = expected_values(cache(self.reference.logprobs), self.settings.expansion, LIMITS)
        assert_expected(tree, expected, tolerance=1e-3)
        assert len(tree) > 8
        return tree


def text(rng: random.Random, tokens: int) -> list[int]:
    return [rng.randrange(TOKENS) for _ in range(tokens)]


@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_are_those_of_the_published_forward(family: str, tmp_path: Path) -> None:
    pair = Pair(tmp_path, family)
    # One and two tokens to look at, one less than the window and more, and far more.
    for length in (2, 3, WINDOW, WINDOW + 1, 3 * WINDOW + 2):
        rig = Rig(pair.case)
        rig.prompt(text(random.Random(length), length), chunk=5)
        pair.assert_drafts(rig)


@pytest.mark.parametrize("family", FAMILIES)
def test_after_any_acceptance_drafts_look_at_the_committed_tokens_alone(family: str, tmp_path: Path) -> None:
    rng = random.Random(family)
    pair = Pair(tmp_path, family)
    rig = Rig(pair.case)
    rig.prompt(text(rng, 6))
    for _ in range(7):
        tree = pair.assert_drafts(rig)
        rig.accept(tree, rng.randrange(len(tree)), rng.randrange(TOKENS))


def test_ordered_embeddings_score_the_best_clusters_only(tmp_path: Path) -> None:
    config = config_of(TOKENS, ordered=True)
    pair = Pair(tmp_path, config=config)
    rig = Rig(pair.case)
    rig.prompt(text(random.Random(1), 20))
    ordered = pair.assert_drafts(rig)
    (tmp_path / "plain").mkdir()
    tensors = {name: tensor for name, tensor in tensors_of(config).items() if "masked" not in name}
    plain = Rig(Pair(tmp_path / "plain", config=config | {"use_ordered_embeddings": False}, tensors=tensors).case)
    plain.prompt(rig.tokens)
    other = plain.draft(LIMITS)
    assert (ordered.tokens, ordered.confidences) != (other.tokens, other.confidences)


@pytest.mark.parametrize("ordered", [False, True])
def test_packed_weights_draft_as_what_they_stand_for(ordered: bool, tmp_path: Path) -> None:
    config = config_of(TOKENS, ordered=ordered)
    names = ("proj", "projection", "embed_tokens", "centroids")
    stored, dense = packed(tensors_of(config), names)
    assert sum(name.endswith(".scales") for name in stored) == 3 + 4 * 5 + ordered
    pair = Pair(tmp_path, config=config, tensors=stored, dense=dense)
    rig = Rig(pair.case)
    rig.prompt(text(random.Random(2), 20))
    pair.assert_drafts(rig)


def test_steps_may_advance_in_position(tmp_path: Path) -> None:
    advancing = AssistantSettings(SETTINGS.expansion, positions="advancing")
    pair = Pair(tmp_path, settings=advancing)
    rig = Rig(pair.case)
    rig.prompt(text(random.Random(3), 20))
    moved = pair.assert_drafts(rig)
    constant = Rig(Pair(tmp_path).case)
    constant.prompt(rig.tokens)
    assert moved.confidences != pytest.approx(constant.draft(LIMITS).confidences, abs=1e-3)


def test_a_pass_that_is_queued_already_changes_no_draft(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    for length in (5, WINDOW, WINDOW + 1, 30):
        rig = Rig(pair.case)
        rig.prompt(text(random.Random(length), length))
        for _ in range(3):  # the window's buffer turns into a ring of single tokens
            pending = TokenTree(rig.tokens[-1])
            rig.accept(pending, 0, 9)
        ahead = copied_all(rig.session.cache)
        rig.verifier.step(mx.array([rig.tokens[-1]]), ahead)
        context = DraftContext(len(rig.tokens) - 1, rig.layers, ahead)
        tree = TokenTree(rig.tokens[-1])
        rig.drafter.draft(tree, LIMITS, context)
        pair.assert_drafts(rig, tree)


def test_a_draft_leaves_all_layers_as_they_were(tmp_path: Path) -> None:
    rig = Rig(Pair(tmp_path).case)
    rig.prompt(text(random.Random(4), 20))
    layers = [*rig.session.cache, *rig.session.drafter_layers]
    before = content_of(layers)
    first = rig.draft(LIMITS)
    for now, then in zip(content_of(layers), before, strict=True):
        np.testing.assert_array_equal(now, then)
    assert rig.draft(LIMITS).confidences == first.confidences


def test_without_a_committed_token_nothing_is_drafted(tmp_path: Path) -> None:
    rig = Rig(Pair(tmp_path).case)
    rig.prompt([7])
    assert len(rig.draft(LIMITS)) == 1


def test_one_state_is_kept_per_committed_token(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    rig = Rig(pair.case)
    rig.prompt(text(random.Random(5), 12), chunk=4)
    rig.accept(rig.draft(LIMITS), 1, 5)
    [states] = rig.layers
    assert states.offset == len(rig.tokens) - 1 == 13
    inner = target("gemma4_text").model
    hidden = np.array(inner(mx.array([rig.tokens[:-1]]))[0])
    np.testing.assert_allclose(np.array(states.keys[0, 0, :13]), hidden, atol=1e-4)
    assert states.values.shape[-1] == 0


def test_a_target_of_half_precision_lends_to_an_assistant_of_its_type(tmp_path: Path) -> None:
    model = tiny_model("gemma4_text", dtype=mx.bfloat16, vocab_size=TOKENS, vocab_size_per_layer_input=TOKENS)
    config = config_of(TOKENS, ordered=True)
    path = write(tmp_path, config, tensors_of(config))
    drafter = load_gemma_assistant(path, model, SETTINGS)
    types = {name: parameter.dtype for name, parameter in tree_flatten(drafter._network.parameters())}
    assert types.pop("masked_embedding.token_ordering") == mx.int64
    assert set(types.values()) == {mx.bfloat16}
    rig = Rig(DrafterCase(model, lambda: drafter, TOKENS))
    rig.prompt(text(random.Random(6), 12))
    assert rig.session.drafter_layers[0].keys.dtype == mx.bfloat16
    assert len(rig.draft(LIMITS)) > 1
