"""One pass over a tree against one token at a time, on random models of five families; and what a commit leaves."""

import random
import threading
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache
from tiny_models import ATTENTION_FAMILIES, VOCABULARY, tiny_model

from worker.engine.tree import TokenTree
from worker.engine.verify import positions
from worker.engine.verify.caches.rows import TreeKVCache
from worker.engine.verify.selfcheck import (
    NODES,
    PREFIX_TOKENS,
    Comparison,
    Verdict,
    _row_differences,
    compare,
    decide_mode,
    random_tree,
)
from worker.engine.verify.tree_pass import TreePass, active_pass, tree_pass
from worker.engine.verify.verifier import Verifier

# Largest difference of two logits or cache rows, over the largest one. Float32 rounding stays below 1e-5.
TOLERANCE = 2e-5
PREFIX = [5, 17, 3, 88, 41, 41, 9, 23, 60, 2, 77]


@pytest.fixture(scope="module", params=ATTENTION_FAMILIES)
def model(request: pytest.FixtureRequest) -> Any:
    return tiny_model(request.param)


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_model("llama")


def branching(pending: int, seed: int, nodes: int = 14, max_depth: int = 6) -> TokenTree:
    tree = random_tree(pending, nodes, max_depth, VOCABULARY, random.Random(seed))
    assert not tree.is_chain
    return tree


def logits_one_by_one(model: Any, tokens: Sequence[int]) -> list[np.ndarray]:
    """The logits after each token, with an untouched cache of mlx-lm and passes of one token."""
    cache = make_prompt_cache(model)
    return [np.array(model(mx.array([[token]]), cache=cache)[0, -1]) for token in tokens]


def rows_of(cache: Sequence[Any]) -> list[np.ndarray]:
    return [np.array(rows[..., : layer.offset, :]) for layer in cache for rows in (layer.keys, layer.values)]


def rows_one_by_one(model: Any, tokens: Sequence[int]) -> list[np.ndarray]:
    cache = make_prompt_cache(model)
    for token in tokens:
        model(mx.array([[token]]), cache=cache)
    return rows_of(cache)


def relative_error(got: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    return max(float(np.abs(g - e).max() / np.abs(e).max()) for g, e in zip(got, expected, strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_every_node_gets_the_logits_of_its_own_path(model: Any, seed: int) -> None:
    verifier = Verifier(model)
    assert verifier.mode == "tree"
    cache = verifier.new_cache()
    verifier.prefill(PREFIX, cache)
    tree = branching(11, seed)
    logits = np.array(verifier.forward(tree, cache))
    for node in range(len(tree)):
        path = [tree.tokens[n] for n in tree.path(node)]
        expected = logits_one_by_one(model, [*PREFIX, *path])[-1]
        assert relative_error([logits[node]], [expected]) < TOLERANCE


def test_a_chain_gets_the_logits_of_plain_decoding(model: Any) -> None:
    verifier = Verifier(model)
    cache = verifier.new_cache()
    verifier.prefill(PREFIX, cache)
    chain = TokenTree(4)
    for node, token in enumerate([8, 15, 16, 23]):
        chain.add(node, token, 0.5)
    logits = np.array(verifier.forward(chain, cache))
    expected = logits_one_by_one(model, [*PREFIX, 4, 8, 15, 16, 23])[-5:]
    assert relative_error(list(logits), expected) < TOLERANCE


def test_the_cache_after_each_round_is_that_of_a_cold_pass_over_the_committed_tokens(model: Any) -> None:
    rng = random.Random(7)
    verifier = Verifier(model)
    cache = verifier.new_cache()
    committed = list(PREFIX)
    verifier.prefill(committed, cache)
    moved = 0
    for number in range(8):
        tree = branching(rng.randrange(VOCABULARY), number)
        mx.eval(verifier.forward(tree, cache))
        path = tree.path(rng.randrange(len(tree)))
        moved += path != list(range(len(path)))
        verifier.commit(tree, path, cache)
        committed += [tree.tokens[node] for node in path]
        assert [layer.offset for layer in cache] == [len(committed)] * len(cache)
        assert relative_error(rows_of(cache), rows_one_by_one(model, committed)) < TOLERANCE
    assert moved >= 4


def test_the_pass_after_a_moved_path_sees_what_was_committed(model: Any) -> None:
    verifier = Verifier(model)
    cache = verifier.new_cache()
    verifier.prefill(PREFIX, cache)
    tree = TokenTree(11)
    tree.add(0, 20, 0.5)
    second = tree.add(0, 30, 0.5)
    leaf = tree.add(second, 40, 0.5)
    verifier.forward(tree, cache)
    # The pass itself was never evaluated: the commit has to be right lazily, too.
    verifier.commit(tree, [0, second, leaf], cache)
    logits = np.array(verifier.step(mx.array([50]), cache))
    expected = logits_one_by_one(model, [*PREFIX, 11, 30, 40, 50])[-1]
    assert relative_error([logits[0]], [expected]) < TOLERANCE


@pytest.mark.parametrize("accepted", [0, 2, 4])
def test_the_root_and_the_accepted_rows_stay(llama: Any, accepted: int) -> None:
    verifier = Verifier(llama)
    cache = verifier.new_cache()
    verifier.prefill(PREFIX, cache)
    chain = TokenTree(4)
    for node, token in enumerate([8, 15, 16, 23]):
        chain.add(node, token, 0.5)
    verifier.forward(chain, cache)
    verifier.commit(chain, list(range(accepted + 1)), cache)
    expected = rows_one_by_one(llama, [*PREFIX, 4, 8, 15, 16, 23][: len(PREFIX) + accepted + 1])
    assert relative_error(rows_of(cache), expected) < TOLERANCE


def test_an_abandoned_pass_leaves_the_cache_as_it_was(llama: Any) -> None:
    verifier = Verifier(llama)
    cache = verifier.new_cache()
    verifier.prefill(PREFIX, cache)
    before = rows_of(cache)
    tree = branching(11, 0)
    verifier.forward(tree, cache)
    verifier.abandon(tree, cache)
    for now, then in zip(rows_of(cache), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_a_pass_is_active_in_its_own_thread_only() -> None:
    assert active_pass() is None
    tree = branching(11, 0)
    with tree_pass(tree) as current:
        assert active_pass() is current
        seen: list[TreePass | None] = []
        thread = threading.Thread(target=lambda: seen.append(active_pass()))
        thread.start()
        thread.join()
        assert seen == [None]
    assert active_pass() is None


def test_a_failed_pass_is_no_longer_active() -> None:
    class Broken:
        layers = (object(),)

        def modules(self) -> list[Any]:
            return []

        def __call__(self, *_: Any, **__: Any) -> mx.array:
            raise ZeroDivisionError

    verifier = Verifier(Broken())
    with pytest.raises(ZeroDivisionError):
        verifier.forward(branching(1, 0), verifier.new_cache())
    assert active_pass() is None


def long_cache(context: int) -> tuple[TreeKVCache, int]:
    """One layer's cache with `context` rows; and the bytes of its keys."""
    cache = TreeKVCache()
    rows = mx.zeros((1, 4, context, 64))
    cache.update_and_fetch(rows, rows)
    mx.eval(cache.keys, cache.values)
    return cache, rows.nbytes


def peak_of_a_commit(context: int) -> int:
    """Bytes that a pass's rows and their commit need above what the cache holds."""
    cache, _ = long_cache(context)
    tree = TokenTree(1)
    tree.add(0, 2, 0.5)
    second = tree.add(0, 3, 0.5)
    leaf = tree.add(second, 4, 0.5)
    fresh = mx.ones((1, 4, len(tree), 64))
    mx.eval(fresh)
    # Room for the rows, so that the buffer need not grow.
    cache.trim(200)
    with tree_pass(tree):
        cache.update_and_fetch(fresh, fresh)
    mx.eval(cache.keys, cache.values)
    mx.clear_cache()
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    cache.commit(len(tree), [0, second, leaf])
    mx.eval(cache.keys, cache.values)
    return mx.get_peak_memory() - held


def test_a_commit_costs_the_same_at_any_context_length() -> None:
    short, long = peak_of_a_commit(2048), peak_of_a_commit(32768)
    _, buffer = long_cache(32768)
    assert buffer == 32768 * 4 * 64 * 4
    assert short < 100_000
    assert long < 100_000


def test_the_measurement_above_sees_a_copied_buffer() -> None:
    cache, buffer = long_cache(32768)
    mx.reset_peak_memory()
    held = mx.get_active_memory()
    view = cache.keys[..., :4, :]
    cache.keys[..., 8:12, :] = view
    mx.eval(cache.keys)
    assert mx.get_peak_memory() - held > buffer / 2


def test_the_selfcheck_passes_on_every_attention_family(model: Any) -> None:
    assert decide_mode(model, VOCABULARY, mx.float32) == Verdict("tree")
    assert compare(Verifier(model), VOCABULARY).largest < TOLERANCE


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16], ids=str)
def test_the_selfcheck_passes_in_16_bit(dtype: mx.Dtype) -> None:
    assert decide_mode(tiny_model("llama", dtype=dtype), VOCABULARY, dtype) == Verdict("tree")


def without_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.fast, "rope", positions._rope)


def without_ancestors(monkeypatch: pytest.MonkeyPatch) -> None:
    def mask(current: TreePass, prefix: int, **_: Any) -> mx.array:
        return mx.tril(mx.ones((current.nodes, prefix + current.nodes), dtype=mx.bool_), prefix)

    monkeypatch.setattr(TreePass, "mask", mask)


@pytest.mark.parametrize("defect", [without_positions, without_ancestors])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_the_selfcheck_sees_missing_positions_and_a_missing_mask(
    monkeypatch: pytest.MonkeyPatch, dtype: mx.Dtype, defect: Any
) -> None:
    model = tiny_model("llama", dtype=dtype)
    verifier = Verifier(model)
    assert decide_mode(model, VOCABULARY, dtype) == Verdict("tree")
    defect(monkeypatch)
    assert compare(verifier, VOCABULARY).typical > 0.2
    verdict = decide_mode(model, VOCABULARY, dtype)
    assert verdict.mode == "chain"
    assert "differs from one-token decoding by" in verdict.refused["tree"]


class Defective:
    """A model with something planted in its passes of several tokens."""

    def __init__(self, model: Any, defect: Any) -> None:
        self.model, self.defect = model, defect
        self.layers = model.layers

    def modules(self) -> list[Any]:
        return list(self.model.modules())

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        logits = self.model(inputs, cache=cache)
        return self.defect(logits) if inputs.shape[1] > 1 else logits


def refuse(logits: mx.array) -> mx.array:
    raise ValueError("this kernel takes no array mask")


DEFECTS = {
    "one row off": lambda logits: mx.roll(logits, 1, axis=1),
    "a small bias": lambda logits: logits + 0.02 * mx.abs(logits).max() * mx.arange(logits.shape[1])[:, None],
    "not a number": lambda logits: logits * float("nan"),
    "an exception": refuse,
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found_and_leaves_plain_decoding(llama: Any, name: str) -> None:
    assert decide_mode(Defective(llama, lambda logits: logits), VOCABULARY, mx.float32) == Verdict("tree")
    verdict = decide_mode(Defective(llama, DEFECTS[name]), VOCABULARY, mx.float32)
    assert verdict.mode == "plain"
    assert set(verdict.refused) == {"tree", "chain"}


def test_a_plain_verifier_takes_no_tree(llama: Any) -> None:
    verifier = Verifier(llama, "plain")
    with pytest.raises(AssertionError):
        verifier.forward(branching(1, 0), verifier.new_cache())


def test_one_disagreement_is_overruled_by_two_agreements(llama: Any) -> None:
    class OnceWrong(Defective):
        passes = 0

        def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
            self.passes += inputs.shape[1] == NODES
            wrong = self.passes in self.defect and inputs.shape[1] == NODES
            return self.model(inputs, cache=cache) * (2 if wrong else 1)

    # The prefix is a pass of as many tokens as the tree: a chain is the second such pass, then every second is a tree.
    assert PREFIX_TOKENS == NODES
    assert decide_mode(OnceWrong(llama, {4}), VOCABULARY, mx.float32).mode == "tree"
    assert decide_mode(OnceWrong(llama, {4, 8}), VOCABULARY, mx.float32).mode == "chain"


def test_a_comparison_by_its_largest_and_its_typical_row() -> None:
    routed_elsewhere = Comparison(nodes=[0.01, 0.9, 0.02, 0.0], following=[0.03, 0.01])
    assert routed_elsewhere.largest == 0.9
    assert routed_elsewhere.typical == pytest.approx(0.02)
    badly_committed = Comparison(nodes=[0.01, 0.02, 0.03], following=[0.5, 0.7])
    assert badly_committed.typical == pytest.approx(0.6)


def test_banned_tokens_have_to_be_banned_in_both() -> None:
    infinity = float("inf")
    expected = np.array([[1.0, -4.0, -infinity], [2.0, 0.0, -infinity]], dtype=np.float32)
    got = np.array([[1.0, -3.0, -infinity], [2.0, 0.5, -infinity]], dtype=np.float32)
    assert _row_differences(got, expected) == [0.25, 0.125]
    got[1, 2] = 0.0
    assert _row_differences(got, expected) == [0.25, infinity]
