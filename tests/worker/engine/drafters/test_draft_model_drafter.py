"""The external draft model: warm equals cold whatever was accepted, and drafts are those of one-token decoding."""

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from drafter_rig import DrafterCase, Rig, content_of
from mlx.utils import tree_map
from mlx_lm.models.cache import RotatingKVCache, make_prompt_cache
from reference_expansion import Path, assert_expected, expected_values

from bench.families import tiny_model, vocabulary
from worker.engine.drafters.draft_model.drafter import DraftModelDrafter
from worker.engine.drafters.expansion import Expansion
from worker.engine.drafters.guide import Guide
from worker.engine.drafters.protocol import DraftContext, DraftLimits
from worker.engine.draws import Draws
from worker.engine.sampling import History, Row, Sampling
from worker.engine.tree import TokenTree
from worker.engine.verify.caches import flat
from worker.engine.verify.copies import copied_all
from worker.engine.verify.verifier import Mode

VOCABULARY = vocabulary("llama")
LIMITS = DraftLimits(nodes=14, depth=6)
# Tiny random models are unsure of everything.
SHAPE = Expansion(depth=4, beam=3, children=3, min_value=1e-5)
CHAIN = Expansion(depth=4, beam=1, children=3, min_value=1e-5)
FAMILIES: list[tuple[str, Mode]] = [
    ("llama", "tree"),
    ("qwen3_5", "tree"),
    ("gemma3_text", "tree"),
    ("deepseek_v3", "tree"),
    ("baichuan_m1", "tree"),
    ("rwkv7", "tree"),
    ("llama", "chain"),
    ("qwen3_5", "chain"),
    ("gemma3_text", "chain"),
    ("qwen3_5", "plain"),
]


@cache
def target() -> Any:
    return tiny_model("llama")


def model_of(family: str) -> Any:
    """A draft model; no two tests share one, as a tree form stays with a model."""
    return tiny_model(family, seed=23)


def text(rng: random.Random, tokens: int) -> list[int]:
    return [rng.randrange(3, VOCABULARY) for _ in range(tokens)]


class Watched(DraftModelDrafter):
    """Counts the tokens that it had to run to follow the target."""

    ran = 0

    def _run(self, tokens: Sequence[int], layers: list[Any]) -> None:
        self.ran += len(tokens)
        super()._run(tokens, layers)


def case_of(model: Any, mode: Mode, shape: Expansion = SHAPE) -> DrafterCase:
    return DrafterCase(target(), lambda: Watched(model, mode, VOCABULARY, expansion=shape), VOCABULARY)


def following(rig: Rig, probe: int = 11) -> Row:
    """What the draft model's layers make of three more tokens: [3, vocabulary]."""
    drafter = rig.drafter
    assert isinstance(drafter, DraftModelDrafter)
    layers = copied_all(rig.session.drafter_layers)
    rows = [drafter._verifier.step(mx.array([probe + number]), layers)[0] for number in range(3)]
    return np.array(mx.stack(rows))


@pytest.mark.parametrize(("family", "mode"), FAMILIES)
def test_after_any_acceptance_all_is_as_after_a_cold_prefill(family: str, mode: Mode) -> None:
    rng = random.Random(family)
    case = case_of(model_of(family), mode)
    rig = Rig(case)
    rig.prompt(text(rng, 17), chunk=7)
    for _ in range(4):
        tree = rig.draft(LIMITS)
        assert len(tree) > 4
        cold = Rig(case)
        cold.prompt(rig.tokens)
        fresh = cold.draft(LIMITS)
        assert (tree.tokens, tree.parents) == (fresh.tokens, fresh.parents)
        np.testing.assert_allclose(tree.confidences, fresh.confidences, atol=2e-4)
        scale = np.abs(following(cold)).max()
        np.testing.assert_allclose(following(rig), following(cold), atol=1e-4 * scale)
        if not any(isinstance(layer, RotatingKVCache) for layer in flat(rig.session.drafter_layers)):
            # Of a window, the rows may stand in any order, and more of them than it needs.
            both = content_of(rig.session.drafter_layers), content_of(cold.session.drafter_layers)
            for now, then in zip(*both, strict=True):
                np.testing.assert_allclose(now, then, atol=2e-4 * np.abs(then).max(initial=0))
        deepest = max(range(len(tree)), key=lambda node: (tree.depths[node], rng.random()))
        rig.accept(tree, rng.choice([deepest, rng.randrange(len(tree))]), rng.randrange(3, VOCABULARY))


def one_token_rows(model: Any, tokens: Sequence[int], path: Path) -> Row:
    """Log-probabilities after `tokens` and `path`, with mlx-lm's own cache, one token at a time."""
    layers = make_prompt_cache(model)
    for token in (*tokens, *path):
        logits = model(mx.array([[token]]), cache=layers)[0, -1]
    row = np.array(logits).astype(np.float64)
    expected: Row = row - row.max() - np.log(np.exp(row - row.max()).sum())
    return expected


@pytest.mark.parametrize(("family", "mode"), FAMILIES)
def test_a_draft_is_the_expansion_by_one_token_decoding(family: str, mode: Mode) -> None:
    rng = random.Random(family)
    model = model_of(family)
    for length in (1, 21):
        rig = Rig(case_of(model, mode))
        rig.prompt(text(rng, length))
        shape = SHAPE if mode == "tree" else CHAIN
        limits = DraftLimits(nodes=rng.choice([6, 20]), depth=rng.choice([2, 8]))
        rows = cache(lambda path: one_token_rows(model, rig.tokens, path))  # noqa: B023 - used within the round
        assert_expected(rig.draft(limits), expected_values(rows, shape, limits), tolerance=2e-4)


@pytest.mark.parametrize(("family", "mode"), FAMILIES)
def test_a_draft_leaves_the_layers_as_they_were(family: str, mode: Mode) -> None:
    rng = random.Random(family)
    rig = Rig(case_of(model_of(family), mode))
    rig.prompt(text(rng, 15))
    for limits in (LIMITS, DraftLimits(2, 1), DraftLimits(30, 2)):
        layers, before = list(rig.layers), content_of(rig.layers)
        first = rig.draft(limits)
        assert all(now is then for now, then in zip(rig.session.drafter_layers, layers, strict=True))
        for now, then in zip(content_of(rig.session.drafter_layers), before, strict=True):
            np.testing.assert_array_equal(now, then)
        assert rig.draft(limits).tokens == first.tokens
        rig.accept(first, len(first) - 1, 9)


@pytest.mark.parametrize("family", ["llama", "qwen3_5", "gemma3_text"])
def test_what_a_draft_ran_is_not_run_again(family: str) -> None:
    rng = random.Random(1)
    rig = Rig(case_of(model_of(family), "tree"))
    rig.prompt(text(rng, 15))
    drafter = rig.drafter
    assert isinstance(drafter, Watched)
    for _ in range(6):
        tree = rig.draft(LIMITS)
        node = rng.choice([node for node in range(len(tree)) if tree.children(node)])
        drafter.ran = 0
        rig.accept(tree, node, 5)
        rig.session.catch_up()
        assert drafter.ran == 0, "the draft went on from this node, so its pass had it"
    tree = rig.draft(LIMITS)
    leaf = tree.depths.index(tree.max_depth)
    drafter.ran = 0
    rig.accept(tree, leaf, 5)
    rig.session.catch_up()
    assert drafter.ran == 1, "no pass had the last token of the deepest path"


@pytest.mark.parametrize("family", ["llama", "qwen3_5", "gemma3_text"])
def test_what_a_draft_ran_is_not_run_again_after_rounds_without_a_draft(family: str) -> None:
    rng = random.Random(4)
    rig = Rig(case_of(model_of(family), "tree"))
    rig.prompt(text(rng, 15))
    drafter = rig.drafter
    assert isinstance(drafter, Watched)
    for pause in (1, 4):
        tree = rig.draft(LIMITS)
        node = rng.choice([node for node in range(1, len(tree)) if tree.children(node)])
        other = next(token for token in range(3, VOCABULARY) if tree.child(node, token) is None)
        rig.accept(tree, node, other)
        for token in text(rng, pause):
            rig.pass_over(token)
        drafter.ran = 0
        rig.session.catch_up()
        assert drafter.ran == pause, "the draft had all up to the token that the target drew instead"


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_a_draft_is_not_taken_over_by_a_prompt_that_turns_off_before_it(family: str) -> None:
    rng = random.Random(5)
    case = case_of(model_of(family), "tree")
    rig = Rig(case)
    drafter = rig.drafter
    assert isinstance(drafter, Watched)
    prompt = text(rng, 15)
    rig.prompt(prompt)
    rig.draft(LIMITS)
    rig.pass_over(8)
    drafter.ran = 0
    # The token that was drafted after comes again, six places earlier.
    assert rig.prompt([*prompt[:8], prompt[-1], 9, 4]) == 8
    assert drafter.ran == 2
    cold = Rig(case)
    cold.prompt(rig.tokens)
    np.testing.assert_allclose(following(rig), following(cold), atol=1e-4 * np.abs(following(cold)).max())


@pytest.mark.parametrize("family", ["llama", "qwen3_5", "gemma3_text"])
def test_a_draft_over_other_layers_is_not_taken_over(family: str) -> None:
    rng = random.Random(2)
    model = model_of(family)
    rig = Rig(case_of(model, "tree"))
    drafter = rig.drafter
    assert isinstance(drafter, Watched)
    prompt = text(rng, 15)
    rig.prompt(prompt)
    rig.draft(LIMITS)
    # The same token comes again elsewhere: in fresh layers, and after a token that the draft did not know of.
    layers = drafter.new_cache()
    drafter.ran = 0
    drafter.absorb([prompt[-1]], None, layers)
    assert drafter.ran == 1
    rig.draft(LIMITS)
    drafter.absorb([77], None, rig.session.drafter_layers)
    assert drafter.ran == 2
    drafter.absorb([prompt[-1]], None, rig.session.drafter_layers)
    assert drafter.ran == 3
    rig.tokens = [*prompt[:-1], 77, prompt[-1], 4]
    cold = Rig(case_of(model, "tree"))
    cold.prompt(rig.tokens)
    np.testing.assert_allclose(following(rig), following(cold), atol=1e-4 * np.abs(following(cold)).max())


@pytest.mark.parametrize("family", ["llama", "rwkv7", "gemma3_text"])
def test_a_draft_is_not_taken_over_where_the_layers_have_changed_since(family: str) -> None:
    rng = random.Random(3)
    rig = Rig(case_of(model_of(family), "tree"))
    drafter = rig.drafter
    assert isinstance(drafter, Watched)
    rig.prompt(text(rng, 6))
    tree = rig.draft(LIMITS)
    mx.eval(drafter._verifier.step(mx.array([50]), rig.session.drafter_layers))
    drafter.ran = 0
    drafter.absorb(tree.tokens[:1], None, rig.session.drafter_layers)
    assert drafter.ran == 1


def test_tokens_that_only_the_target_has_are_neither_drafted_nor_looked_up() -> None:
    model = model_of("llama")
    drafter = DraftModelDrafter(model, "tree", VOCABULARY - 40, expansion=SHAPE)
    layers = drafter.new_cache()
    drafter.absorb([5, 2**20, 7], None, layers)
    tree = TokenTree(2**20)
    drafter.draft(tree, LIMITS, DraftContext(3, layers))
    assert tree.tokens[0] == 2**20
    assert len(tree) > 4
    assert max(tree.tokens[1:]) < VOCABULARY - 40
    drafter.absorb(tree.tokens[:2], None, layers)
    assert layers[0].offset == 5


def test_nothing_is_drafted_past_the_window_of_the_draft_model() -> None:
    chain = Expansion(depth=6, beam=1, children=1, min_value=1e-9)
    drafter = DraftModelDrafter(model_of("llama"), "tree", VOCABULARY, context=12, expansion=chain)
    depths = []
    for length in (8, 10, 11, 12, 20):
        layers = drafter.new_cache()
        drafter.absorb(list(range(3, 3 + length)), None, layers)
        tree = TokenTree(9)
        drafter.draft(tree, LIMITS, DraftContext(length, layers))
        depths.append(tree.max_depth)
    assert depths == [4, 2, 1, 0, 0]


def test_a_model_that_several_tokens_at_once_confuse_gets_them_one_by_one() -> None:
    """Beyond its original context a dynamic base depends on where a pass ends."""
    scaling = {"type": "dynamic", "factor": 4.0}
    model = tiny_model("llama", seed=23, max_position_embeddings=16, rope_scaling=scaling)
    case = case_of(model, "tree")
    rng = random.Random(5)
    rig = Rig(case)
    prompt = text(rng, 24)
    rig.prompt(prompt)
    tokens = prompt
    for _ in range(3):
        rows = cache(lambda path: one_token_rows(model, tokens, path))  # noqa: B023 - used within the round
        tree = rig.draft(LIMITS)
        assert_expected(tree, expected_values(rows, CHAIN, LIMITS), tolerance=2e-4)
        rig.accept(tree, 2, 8)
        tokens = rig.tokens


def test_a_sampled_draft_ranks_by_the_guide() -> None:
    model = model_of("llama")
    sampling = Sampling(temperature=1.0, seed=4)
    rig = Rig(case_of(model, "tree", Expansion(3, 1, 1, 1e-6)), sampling)
    rig.prompt(text(random.Random(6), 12))
    tree = rig.draft(LIMITS)
    guide, path = Guide(sampling, History(rig.tokens, ())), ()
    for depth in (1, 2, 3):
        row = one_token_rows(model, rig.tokens, path).astype(np.float32)
        [(token, _)] = guide.candidates(row, depth, 1)
        path = (*path, token)
    assert tuple(tree.tokens[1:]) == path


def test_the_target_itself_as_draft_model_guesses_the_draws_of_a_request_that_asks_for_much() -> None:
    """Penalties go by the guesses above a node as well."""
    model = model_of("llama")
    for seed in range(4):
        sampling = Sampling(
            temperature=1.0,
            top_p=0.95,
            seed=seed,
            repetition_penalty=1.3,
            frequency_penalty=1.5,
            penalty_context_size=100,
            logit_bias={4: -100.0, 5: 2.0},
            min_tokens=3,
            suppressed=frozenset(range(60, 75)),
        )
        rig = Rig(case_of(model, "tree", Expansion(5, 1, 1, 1e-9)), sampling)
        rig.prompt(text(random.Random(seed), 20))
        tree = rig.draft(LIMITS)
        guesses = tree.tokens[1:]
        assert len(guesses) == 5
        logits = model(mx.array([[*rig.tokens, *guesses]]), cache=make_prompt_cache(model))[0, -6:]
        draws = Draws(sampling, logits)
        assert guesses == [draws.draw(depth, History(rig.tokens, (), guesses[:depth])) for depth in range(5)]


def test_the_target_itself_as_draft_model_is_always_right() -> None:
    same = tiny_model("llama")
    same.update(tree_map(lambda parameter: parameter, target().parameters()))
    rig = Rig(case_of(same, "tree", Expansion(4, 1, 1, 1e-6)))
    rig.prompt(text(random.Random(7), 20))
    for _ in range(4):
        tree = rig.draft(LIMITS)
        cold = make_prompt_cache(target())
        logits = np.array(target()(mx.array([[*rig.tokens, *tree.tokens[1:]]]), cache=cold)[0])
        assert logits[len(rig.tokens) - 1 : -1].argmax(-1).tolist() == tree.tokens[1:]
        rig.accept(tree, len(tree) - 1, int(logits[-1].argmax()))
