"""Passes that are handed to the device piece by piece: which pieces, and that not a bit changes."""

import random
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from bench.families import tiny_model
from worker.engine.tree import TokenTree
from worker.engine.verify.caches import adopt
from worker.engine.verify.copies import mapped
from worker.engine.verify.selfcheck import random_tree
from worker.engine.verify.submission import divide, pieces_of_prefill, submitting
from worker.engine.verify.taps import Taps
from worker.engine.verify.tree_pass import tree_pass
from worker.engine.verify.verifier import Verifier

PROMPT = [5, 17, 3, 88, 41]
# Plain, recurrent, windows, blocks that return tuples, and blocks with several streams.
FAMILIES = ["llama", "qwen3_5", "gemma2", "gemma4_text", "gemma3n", "mamba2"]


class Submissions:
    """The shapes of what was handed over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shapes: list[tuple[int, ...]] = []
        submit = mx.async_eval

        def noted(*outputs: mx.array) -> None:
            self.shapes += [output.shape for output in outputs]
            submit(*outputs)  # type: ignore[no-untyped-call]

        monkeypatch.setattr(mx, "async_eval", noted)


def arrays_of(cache: list[Any]) -> list[mx.array]:
    found: list[mx.array] = []
    mapped(cache, found.append)
    return found


def layers(count: int) -> Any:
    """A model with so many decoder blocks."""
    model = tiny_model("llama")
    model.model.layers = model.model.layers[:1] * count
    return model


@pytest.mark.parametrize(
    ("blocks", "ends"),
    [
        (1, []),
        (2, [0]),
        (3, [0, 1]),
        (4, [0, 2]),
        (30, [0, 8, 16, 23, 26, 28]),
        (64, [0, 8, 16, 24, 32, 40, 48, 56, 60, 62]),
    ],
)
def test_pieces_are_one_block_then_eight_each_then_halves_of_what_is_left(blocks: int, ends: list[int]) -> None:
    assert divide(layers(blocks)) == ends


@pytest.mark.parametrize(
    ("most_blocks", "ends"),
    [(-1, []), (0, []), (1, [*range(29)]), (3, [*range(0, 25, 3), 27, 28]), (100, [0, 15, 22, 26, 28])],
)
def test_pieces_have_at_most_as_many_blocks_as_are_asked_for(most_blocks: int, ends: list[int]) -> None:
    assert divide(layers(30), most_blocks) == ends


def test_models_built_otherwise_stay_in_one_piece() -> None:
    model = tiny_model("gpt2")
    assert divide(model) == []
    assert Verifier(model).forward(TokenTree(5), make_prompt_cache(model)).shape[0] == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_passes_in_pieces_give_the_same_bits(family: str) -> None:
    whole, model = tiny_model(family), tiny_model(family)
    verifier = Verifier(model)
    tree = random_tree(11, 9, 4, 90, random.Random(1))
    cache = verifier.new_cache()
    verifier.prefill(PROMPT, cache)
    logits = [verifier.forward(tree, cache)]
    verifier.commit(tree, tree.path(8), cache)
    logits += [verifier.step(mx.array([7]), cache), verifier.forward(TokenTree(8), cache)]

    # The same without pieces: `whole` is instrumented for trees, and never within `submitting`.
    Verifier(whole)
    expected_cache = adopt(make_prompt_cache(whole))
    whole(mx.array([PROMPT]), cache=expected_cache)
    with tree_pass(tree):
        expected = [whole(mx.array([tree.tokens]), cache=expected_cache)[0]]
    for layer in expected_cache:
        layer.commit(len(tree), tree.path(8))
    expected += [whole(mx.array([[token]]), cache=expected_cache)[0] for token in (7, 8)]

    assert all(mx.array_equal(*pair) for pair in zip(logits, expected, strict=True))
    pairs = list(zip(arrays_of(cache), arrays_of(expected_cache), strict=True))
    assert pairs
    assert all(mx.array_equal(*pair) for pair in pairs)


def test_a_model_that_verifies_no_trees_stays_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("qwen3_5")
    verifier = Verifier(model, "chain")
    cache = verifier.new_cache()
    tree = TokenTree(11)
    tree.add(0, 12, 1.0)
    submissions = Submissions(monkeypatch)
    verifier.forward(tree, cache)
    verifier.commit(tree, [0], cache)
    verifier.step(mx.array([7]), cache)
    assert submissions.shapes == []


def test_blocks_are_handed_over_while_the_pass_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    verifier = Verifier(model)
    verifier.taps = Taps(model, blocks=(0, 2), normed=True)
    cache = verifier.new_cache()
    width = model.model.embed_tokens.weight.shape[1]
    submissions = Submissions(monkeypatch)

    verifier.prefill([*PROMPT, 9], cache)
    assert submissions.shapes == [(1, 6, width)] * 2
    submissions.shapes.clear()
    tree = random_tree(11, 5, 3, 90, random.Random(1))
    verifier.forward(tree, cache)
    assert submissions.shapes == [(1, 5, width)] * 2
    assert verifier.hidden is not None
    assert verifier.hidden.shape == (5, 3 * width)
    verifier.abandon(tree, cache)
    verifier.step(mx.array([7]), cache)
    assert submissions.shapes[2:] == [(1, 1, width)] * 2
    model(mx.array([[8]]), cache=cache)
    assert len(submissions.shapes) == 4


def test_a_prefill_computes_no_blocks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gemma3n")  # its last blocks have no caches of their own
    verifier = Verifier(model, most_blocks=1)
    cache = verifier.new_cache()
    with_caches, blocks = len(cache), len(Taps(model)._inner.layers)
    assert 1 < with_caches < blocks
    submissions = Submissions(monkeypatch)
    verifier.prefill(PROMPT, cache)
    assert len(submissions.shapes) == with_caches - 1
    submissions.shapes.clear()
    verifier.step(mx.array([7]), cache)
    assert len(submissions.shapes) == blocks - 1


@pytest.mark.parametrize(("caches", "pieces"), [(0, 0), (1, 0), (2, 1), (9, 1), (10, 2), (24, 3), (25, 3)])
def test_the_last_block_with_a_cache_needs_those_before_it(caches: int, pieces: int) -> None:
    assert pieces_of_prefill([0, 8, 16], caches) == pieces


def test_after_a_pass_that_failed_nothing_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    ends = divide(model)
    submissions = Submissions(monkeypatch)
    with pytest.raises(KeyboardInterrupt), submitting(len(ends)):
        raise KeyboardInterrupt
    model(mx.array([PROMPT]))
    assert submissions.shapes == []


def test_a_model_that_compiles_its_blocks_stays_in_one_piece() -> None:
    model = tiny_model("llama")
    tokens = mx.array([PROMPT])
    expected = model(tokens)
    with submitting(len(divide(model))):
        logits = mx.compile(lambda prompt: model(prompt))(tokens)
    assert mx.allclose(logits, expected, rtol=1e-5, atol=1e-6)
