"""Attention of tree passes by a kernel: what it is told equals the mask, and where it does not fit MLX's own runs."""

import itertools
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from adapted_passes import chain_of, tree_of
from kernel_sets import ReferenceKernels

from kernels.tree_attention.reference import visible
from worker.engine.tree import TokenTree
from worker.engine.verify.attention import install_attention_hook
from worker.engine.verify.caches.rotating import TreeRotatingKVCache
from worker.engine.verify.caches.rows import TreeChunkedKVCache, TreeKVCache
from worker.engine.verify.tree_pass import TreePass, tree_pass

TREES = {
    "branches": tree_of(),
    "chain": chain_of(6),
    "star": tree_of([-1, 0, 0, 0, 0]),
    "32 nodes": tree_of([-1, *(node // 2 for node in range(31))]),
}
HEADS, KEY_HEADS, SIZE = 4, 2, 64


@pytest.fixture(autouse=True)
def hooked() -> None:
    install_attention_hook()


def seen_by_hand(tree: TokenTree, offset: int, rows: int, window: int | None, keep: int) -> np.ndarray:
    """[N, rows + N], node by node and row by row: what one-token decoding along the node's path would see."""
    kept = keep if rows < offset else 0
    before = [*range(kept), *range(offset - rows + kept, offset)]
    seen = np.zeros((len(tree), rows + len(tree)), dtype=bool)
    for node in range(len(tree)):
        place = offset + tree.depths[node]
        places = {**dict(enumerate(before)), **{rows + one: offset + tree.depths[one] for one in tree.path(node)}}
        for column, other in places.items():
            # The window holds `keep` places for the first positions, and the others for the latest.
            seen[node, column] = window is None or other < keep or place - other < window - keep
    return seen


COMBINATIONS = [
    (offset, rows, window, keep)
    for offset, dropped, window, keep in itertools.product((0, 3, 9, 40), (0, 1, 25), (None, 5, 9, 64), (0, 2, 4))
    if (rows := offset - dropped) >= keep * (dropped > 0) and (window is None or window > keep)
]


@pytest.mark.parametrize("shape", TREES)
def test_what_a_kernel_is_told_says_the_same_as_the_mask(shape: str) -> None:
    tree = TREES[shape]
    current = TreePass(tree)
    for offset, rows, window, keep in COMBINATIONS:
        case = (offset, rows, window, keep)
        mask = current.mask(offset, rows, window, keep)
        sight = current.sight(mask, rows + len(tree))
        assert sight is not None
        told = visible(current.ancestor_bits, rows + len(tree), sight.window, sight.keep)
        expected = seen_by_hand(tree, offset, rows, window, keep)
        np.testing.assert_array_equal(np.array(mask), expected, str(case))
        np.testing.assert_array_equal(np.array(told), expected, str(case))


@pytest.mark.parametrize("keep", [0, 2])
@pytest.mark.parametrize("shape", TREES)
def test_a_rotating_cache_shows_a_kernel_what_it_shows_a_mask(shape: str, keep: int) -> None:
    tree = TREES[shape]
    for prefilled, decoded in itertools.product((0, 1, 5, 8, 13, 20), (0, 1, 4, 11)):
        cache = TreeRotatingKVCache(max_size=8, keep=keep)
        for rows in [prefilled] * (prefilled > 0) + [1] * decoded:
            cache.update_and_fetch(mx.zeros((1, 1, rows, 4)), mx.zeros((1, 1, rows, 4)))
        offset = prefilled + decoded
        for window in (None, 5):
            with tree_pass(tree) as current:
                mask = cache.make_mask(len(tree), window_size=window)
                sight = current.sight(mask, mask.shape[1])
            assert sight is not None
            told = visible(current.ancestor_bits, mask.shape[1], sight.window, sight.keep)
            expected = seen_by_hand(tree, offset, mask.shape[1] - len(tree), window or 8, keep)
            np.testing.assert_array_equal(np.array(mask), expected)
            np.testing.assert_array_equal(np.array(told), expected)


def test_the_word_for_the_mask_of_a_chain_is_understood_on_a_chain_only() -> None:
    chain = TreePass(TREES["chain"])
    sight = chain.sight("causal", 16)
    assert sight is not None
    told = visible(chain.ancestor_bits, 16, sight.window, sight.keep)
    assert mx.array_equal(told, mx.arange(10, 16)[:, None] >= mx.arange(16))
    assert TreePass(TREES["star"]).sight("causal", 16) is None
    assert chain.sight(None, 16) is None


def test_the_mask_of_a_chain_within_a_window_is_one_that_a_kernel_knows() -> None:
    cache = TreeKVCache()
    cache.update_and_fetch(mx.zeros((1, 1, 20, 4)), mx.zeros((1, 1, 20, 4)))
    with tree_pass(TREES["chain"]) as current:
        mask = cache.make_mask(6, window_size=9)
        sight = current.sight(mask, 26)
        assert cache.make_mask(6) == "causal"
        assert current.sight(cache.make_mask(6, return_array=True), 26) is not None
    assert sight is not None
    assert sight.window == 9
    np.testing.assert_array_equal(np.array(mask), seen_by_hand(TREES["chain"], 20, 20, 9, 0))


def attend(mask: Any, **changes: Any) -> tuple[mx.array, dict[str, Any]]:
    """MLX's primitive over 10 rows and the tree in the middle of a larger buffer, as caches hand them out."""
    mx.random.seed(3)
    nodes = changes.pop("nodes", len(TREES["branches"]))
    columns = nodes + 10
    call = {
        "q": mx.random.normal((1, nodes, HEADS, SIZE)).swapaxes(1, 2),
        "k": mx.random.normal((1, KEY_HEADS, 64, SIZE))[..., :columns, :],
        "v": mx.random.normal((1, KEY_HEADS, 64, SIZE))[..., :columns, :],
        "scale": SIZE**-0.5,
        "mask": mask,
        **changes,
    }
    return mx.fast.scaled_dot_product_attention(**call), call


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("window", [None, 4])
def test_attention_under_a_mask_of_the_pass_is_left_to_the_kernel(window: int | None, sinks: bool) -> None:
    logits = mx.array([3.0, 1.0, 4.0, 1.5]) if sinks else None
    kernels = ReferenceKernels()
    with tree_pass(TREES["branches"], kernels) as current:
        mask = current.mask(10, window=window)
        found, call = attend(mask, sinks=logits)
    expected = mx.fast.scaled_dot_product_attention(**{**call, "mask": mx.array(np.array(mask))})
    assert mx.allclose(found, expected, atol=1e-6)
    assert kernels.calls["attention"] == 1


def test_attention_of_a_chain_is_left_to_the_kernel() -> None:
    kernels = ReferenceKernels()
    with tree_pass(TREES["chain"], kernels):
        found, call = attend("causal", nodes=6)
    assert mx.allclose(found, mx.fast.scaled_dot_product_attention(**call), atol=1e-6)
    assert kernels.calls["attention"] == 1


WIDE = mx.random.normal((1, KEY_HEADS, 22, 96), key=mx.random.key(1))
UNFIT: dict[str, dict[str, Any]] = {
    "a mask that the model made": {"mask": lambda mask: mask & mask},
    "a mask to add": {"mask": lambda mask: mx.where(mask, 0.0, -1e9)},
    "a mask by heads": {"mask": lambda mask: mask[None, None]},
    "no mask": {"mask": lambda _: None},
    "the word for a chain": {"mask": lambda _: "causal"},
    "wider values": {"v": WIDE},
    "two sequences": {
        name: mx.ones((2, heads, rows, SIZE)) for name, heads, rows in (("q", 4, 12), ("k", 2, 22), ("v", 2, 22))
    },
    "another head size": {
        name: mx.ones((1, heads, rows, 72)) for name, heads, rows in (("q", 4, 12), ("k", 2, 22), ("v", 2, 22))
    },
    "two types": {"q": mx.ones((1, HEADS, 12, SIZE), dtype=mx.float16)},
    "a stream": {"stream": mx.cpu},
}


@pytest.mark.parametrize("case", UNFIT)
def test_attention_that_does_not_fit_is_left_to_mlx(case: str) -> None:
    changes = dict(UNFIT[case])
    change = changes.pop("mask", lambda mask: mask)
    kernels = ReferenceKernels()
    with tree_pass(TREES["branches"], kernels) as current:
        mask = change(current.mask(10))
        found, call = attend(mask, **changes)
    assert mx.array_equal(found, mx.fast.scaled_dot_product_attention(**call))
    assert not kernels.calls


def test_attention_from_other_rows_than_the_nodes_is_left_to_mlx() -> None:
    """The word for the mask of a chain means as many rows as there are queries, which need not be the tree's."""
    kernels = ReferenceKernels()
    with tree_pass(TREES["chain"], kernels):
        found, call = attend("causal", nodes=3)
    assert mx.array_equal(found, mx.fast.scaled_dot_product_attention(**call))
    assert not kernels.calls


def test_the_mask_of_another_pass_is_left_to_mlx() -> None:
    earlier = TreePass(TREES["branches"])
    kernels = ReferenceKernels()
    with tree_pass(TREES["branches"], kernels):
        attend(earlier.mask(10))
    assert not kernels.calls


def test_the_chunks_of_a_chunked_cache_are_left_to_mlx() -> None:
    """Their mask says more than a window, and the rows are not those that a mask of the pass would speak of."""
    cache = TreeChunkedKVCache(chunk_size=8)
    keys = mx.zeros((1, KEY_HEADS, 20, SIZE))
    cache.update_and_fetch(keys, keys)
    cache.maybe_trim_front()
    with tree_pass(TREES["branches"]) as current:
        mask = cache.make_mask(12)
        rows = mx.zeros((1, KEY_HEADS, 12, SIZE))
        fetched, _ = cache.update_and_fetch(rows, rows)
        assert fetched.shape[2] < mask.shape[1]
        assert current.sight(mask, fetched.shape[2]) is None


def test_more_nodes_than_a_word_has_bits_are_left_to_mlx() -> None:
    tree = chain_of(33)
    kernels = ReferenceKernels()
    with tree_pass(tree, kernels) as current:
        attend(current.mask(10), nodes=33)
    assert not kernels.calls


def test_nothing_changes_outside_a_pass() -> None:
    mask = mx.ones((12, 22), dtype=mx.bool_)
    found, call = attend(mask)
    scores = (call["q"] * call["scale"]) @ mx.repeat(call["k"], 2, axis=1).swapaxes(-1, -2)
    expected = mx.softmax(scores, axis=-1) @ mx.repeat(call["v"], 2, axis=1)
    assert mx.allclose(found, expected, atol=1e-5)
