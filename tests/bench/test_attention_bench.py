"""The attention bench measures what it says, and sees wrong results."""

import math
from argparse import Namespace

import mlx.core as mx
import numpy as np
import pytest

from bench import attention
from bench.attention import HEADINGS, Caches, Heads, ancestor_bits
from kernels.tree_attention.reference import reference
from worker.engine.tree import TokenTree


def exact(queries: mx.array, keys: mx.array, values: mx.array, ancestors: mx.array, *, scale: float) -> mx.array:
    """In float32 to the end, as our kernels compute."""
    q, k, v = (array.astype(mx.float32) for array in (queries, keys, values))
    return reference(q, k, v, ancestors, scale=scale).astype(queries.dtype)


def blind(queries: mx.array, keys: mx.array, values: mx.array, ancestors: mx.array, *, scale: float) -> mx.array:
    """Lets each node see all others."""
    everything = mx.full(ancestors.shape, 2**ancestors.size - 1, dtype=mx.uint32)
    return exact(queries, keys, values, everything, scale=scale)


def test_a_line_for_each_context_and_number_of_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = attention.compared(Namespace(**attention.SMALL), mx.bfloat16, exact)
    assert [row[:3] for row in rows] == [["4/2 x 64", context, nodes] for context in (40, 300) for nodes in (1, 5)]
    for row in rows:
        assert len(row) == len(HEADINGS)
        by_name = dict(zip(HEADINGS, row, strict=True))
        assert by_name["error"] <= 1  # it rounds once
        assert by_name["error"] < by_name["mask error"] < attention.MOST_ROUNDINGS_OF_MLX
        bytes_read = 2 * 2 * 2 * (row[1] + row[2]) * 64  # K and V, 16 bits, 2 heads
        assert by_name["GB/s"] == pytest.approx(bytes_read / by_name["us"] / 1e3)
        assert (by_name["causal us"] == "-") == (by_name["causal us in turn"] == "-") == (row[2] == 1)
    assert attention.right(rows, attention.MOST_ROUNDINGS)
    assert len(capsys.readouterr().out.splitlines()) == len(rows)


def test_a_wrong_mask_is_an_error_however_long_the_context() -> None:
    mx.random.seed(0)
    for context in (40, 4000):
        caches = Caches(Heads(4, 2, 64), context, mx.bfloat16, 1)
        row = attention.measured(blind, caches, 5, 1)
        assert not attention.right([row], 2 * attention.MOST_ROUNDINGS)


def test_what_is_not_a_number_is_not_right() -> None:
    assert not attention.right([["", 1, 1, *[1.0] * 7, math.nan, 1.0]], attention.MOST_ROUNDINGS)


def test_the_bytes_of_a_cache_are_those_of_its_arrays() -> None:
    heads = Heads(6, 3, 32)
    keys, values = Caches(heads, 50, mx.bfloat16, 1).rows(7)[0]
    assert heads.bytes(57) == keys.nbytes + values.nbytes


def test_ancestor_bits_are_the_rows_of_the_matrix() -> None:
    tree = TokenTree(0)
    tree.add(0, 1, 1.0)
    tree.add(0, 2, 1.0)
    tree.add(2, 3, 1.0)
    assert np.array(ancestor_bits(tree)).tolist() == [0b1, 0b11, 0b101, 0b1101]
