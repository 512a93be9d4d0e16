"""Causal convolutions over trees against the same layer on each path as a sequence."""

import mlx.core as mx
import mlx.nn as nn
import pytest
from kernel_sets import CountingKernels, ReferenceKernels
from recurrent_passes import chain_of, deep_tree, leaves

from worker.engine.tree import TokenTree
from worker.engine.verify.recurrent.convolution import is_causal, rows_kept, tree_convolution
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


def by_kernel(conv: nn.Conv1d, x: mx.array) -> tuple[mx.array, CountingKernels]:
    """What a mixer's hooked layer gives over the tree with kernels, and their calls."""
    kernels = ReferenceKernels()
    hook_convolutions(conv)
    y = tree_convolution(conv, lambda rows: nn.Conv1d.__call__(conv, rows), x, TreePass(TREES["tree"], kernels))
    return y, kernels


@pytest.mark.parametrize("bias", [True, False])
def test_a_kernel_of_the_pass_convolves_as_the_layer_does(bias: bool) -> None:
    conv = nn.Conv1d(CHANNELS, CHANNELS, 4, groups=CHANNELS, bias=bias)
    x = inputs(4, TREES["tree"])
    y, kernels = by_kernel(conv, x)
    assert kernels.calls == {"convolution": 1}
    assert mx.allclose(y, tree_convolution(conv, conv, x, TreePass(TREES["tree"])), rtol=1e-6, atol=1e-6)


class Doubled(nn.Conv1d):  # type: ignore[misc]
    def __call__(self, x: mx.array) -> mx.array:
        doubled: mx.array = 2 * super().__call__(x)
        return doubled


def of_other_types() -> nn.Conv1d:
    conv = layer(4)
    conv.weight = conv.weight.astype(mx.bfloat16)
    return conv


@pytest.mark.parametrize(
    "conv",
    [layer(4, groups=1), layer(4, groups=3), Doubled(CHANNELS, CHANNELS, 4, groups=CHANNELS), of_other_types()],
    ids=["channels together", "in groups", "with a call of its own", "weights of another type"],
)
def test_what_is_no_plain_kernel_for_each_channel_stays_with_mlx(conv: nn.Conv1d) -> None:
    assert by_kernel(conv, inputs(4, TREES["tree"]))[1].calls == {}
