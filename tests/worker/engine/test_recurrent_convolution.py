"""Causal convolutions over trees against the same layer on each path as a sequence."""

import mlx.core as mx
import mlx.nn as nn
import pytest
from kernel_sets import CountingKernels, ReferenceKernels
from recurrent_passes import chain_of, deep_tree, leaves

from worker.engine.tree import TokenTree
from worker.engine.verify.recurrent.convolution import (
    is_causal,
    rows_kept,
    sequence_convolution,
    tree_convolution,
)
from worker.engine.verify.recurrent.hooks import hook_convolutions
from worker.engine.verify.tree_pass import TreePass

CHANNELS = 6
TREES = {"tree": deep_tree(24, 9, 1000, seed=4), "chain": chain_of(list(range(7)))}


def layer(size: int, groups: int = CHANNELS) -> nn.Conv1d:
    mx.random.seed(size)
    return nn.Conv1d(CHANNELS, CHANNELS, size, groups=groups)


def inputs(size: int, tree: TokenTree) -> mx.array:
    return mx.random.normal((1, size - 1 + len(tree), CHANNELS))


@pytest.mark.parametrize("groups", [1, CHANNELS])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("shape", TREES)
def test_every_node_is_convolved_with_the_rows_of_its_own_path(shape: str, size: int, groups: int) -> None:
    tree = TREES[shape]
    conv, x = layer(size, groups), inputs(size, tree)
    y = tree_convolution(conv, conv, x, TreePass(tree))
    assert y.shape == (1, len(tree), CHANNELS)
    for leaf in leaves(tree):
        path = tree.path(leaf)
        sequence = mx.concatenate([x[:, : size - 1], x[:, mx.array([size - 1 + node for node in path])]], axis=1)
        assert mx.allclose(y[:, mx.array(path)], conv(sequence), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("path", "kept"),
    [([0], [1, 2, 3]), ([0, 2], [2, 3, 5]), ([0, 1, 4, 6], [4, 7, 9])],
    ids=["one accepted", "fewer than the kernel reaches", "more"],
)
def test_the_cache_keeps_the_last_rows_before_the_next_token(path: list[int], kept: list[int]) -> None:
    # With a kernel of 4, rows 0 to 2 are of the prefix and row 3 + n is node n.
    x = mx.arange(10.0).reshape(1, 10, 1)
    assert rows_kept(x, 4, path).flatten().tolist() == kept


@pytest.mark.parametrize("options", [{"padding": 3}, {"stride": 2}, {"dilation": 2}])
def test_a_layer_that_does_more_than_look_back_is_not_taken_for_causal(options: dict[str, int]) -> None:
    assert is_causal(layer(4), mx.zeros((1, 5, CHANNELS)), tokens=2)
    assert not is_causal(nn.Conv1d(CHANNELS, CHANNELS, 4, **options), mx.zeros((1, 5, CHANNELS)), tokens=2)
    assert not is_causal(layer(4), mx.zeros((1, 2, CHANNELS)), tokens=2)


def by_kernel(conv: nn.Conv1d, x: mx.array, shape: str = "tree") -> tuple[mx.array, CountingKernels]:
    """What a mixer's hooked layer gives over a tree with kernels, and their calls."""
    kernels = ReferenceKernels()
    hook_convolutions(conv)
    y = tree_convolution(conv, lambda rows: nn.Conv1d.__call__(conv, rows), x, TreePass(TREES[shape], kernels))
    return y, kernels


@pytest.mark.parametrize("shape", TREES)
@pytest.mark.parametrize("bias", [True, False])
def test_a_kernel_of_the_pass_convolves_as_the_layer_does(bias: bool, shape: str) -> None:
    conv = nn.Conv1d(CHANNELS, CHANNELS, 4, groups=CHANNELS, bias=bias)
    x = inputs(4, TREES[shape])
    y, kernels = by_kernel(conv, x, shape)
    assert kernels.calls == {"convolution": 1}
    assert mx.allclose(y, tree_convolution(conv, conv, x, TreePass(TREES[shape])), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("tokens", "calls"), [(1, 1), (32, 1), (33, 0)])
def test_few_rows_that_follow_one_another_go_to_the_kernel(tokens: int, calls: int) -> None:
    conv, kernels = layer(4), ReferenceKernels()
    hook_convolutions(conv)
    x = mx.random.normal((1, 3 + tokens, CHANNELS))
    y = sequence_convolution(conv, conv, x, kernels)
    assert kernels.calls["convolution"] == calls
    assert mx.allclose(y, conv(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("x", [mx.zeros((1, 3, CHANNELS)), mx.zeros((2, 4, CHANNELS))], ids=["too short", "a batch"])
def test_what_is_no_sequence_with_its_past_stays_with_mlx(x: mx.array) -> None:
    conv, kernels = layer(4), ReferenceKernels()
    hook_convolutions(conv)
    sequence_convolution(conv, lambda rows: rows, x, kernels)
    assert kernels.calls["convolution"] == 0


class Doubled(nn.Conv1d):  # type: ignore[misc]
    def __call__(self, x: mx.array) -> mx.array:
        doubled: mx.array = 2 * super().__call__(x)
        return doubled


def of_other_types() -> nn.Conv1d:
    conv = layer(4)
    conv.weight = conv.weight.astype(mx.bfloat16)
    return conv


def with_a_wide_bias() -> nn.Conv1d:
    conv = layer(4)
    conv.weight = conv.weight.astype(mx.float16)
    return conv


def with_two_outputs_of_each_channel() -> nn.Conv1d:
    return nn.Conv1d(CHANNELS, 2 * CHANNELS, 4, groups=CHANNELS)


@pytest.mark.parametrize(
    "conv",
    [
        layer(4, groups=1),
        layer(4, groups=3),
        Doubled(CHANNELS, CHANNELS, 4, groups=CHANNELS),
        of_other_types(),
        with_two_outputs_of_each_channel(),
    ],
    ids=["channels together", "in groups", "with a call of its own", "weights of another type", "two of each channel"],
)
def test_what_is_no_plain_kernel_for_each_channel_stays_with_mlx(conv: nn.Conv1d) -> None:
    assert by_kernel(conv, inputs(4, TREES["tree"]))[1].calls == {}


def test_a_bias_of_another_type_stays_with_mlx() -> None:
    conv = with_a_wide_bias()
    assert by_kernel(conv, inputs(4, TREES["tree"]).astype(mx.float16))[1].calls == {}
