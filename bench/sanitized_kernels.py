"""Runs every CUDA kernel on small problems, ragged ones among them, and compares with plain MLX; for a sanitizer.

    compute-sanitizer --tool memcheck --kernel-name kernel_substring=custom_kernel python -m bench.sanitized_kernels

finds reads and writes out of bounds; `--tool racecheck` finds races in shared memory, `--tool initcheck` reads of what
nobody wrote. Exits with 1 when a result is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import mlx.core as mx

from bench.passes import UntriedKernels
from kernels import gated_delta_tree, sample, tree_attention, tree_convolution
from kernels.qmm.cuda import CALLS_APART
from kernels.tree_convolution.choice import arguments

PRODUCTS = ((3, 640, 200, 64, 4), (16, 5120, 1000, 64, 4), (21, 1024, 72, 32, 8), (11, 2304, 520, 128, 4))
"""rows, K, N, group size, bits."""
ATTENTION = ((16, 8, 2, 80, 128), (5, 6, 2, 300, 256), (32, 4, 4, 1100, 64))
"""nodes, query heads, key heads, columns, head size."""
TOLERANCE = 0.02


def products(kernels: UntriedKernels) -> Iterator[tuple[str, float]]:
    for rows, depth, columns, group_size, bits in PRODUCTS:
        x = mx.random.normal((rows, depth)).astype(mx.bfloat16)
        weight = mx.random.normal((columns, depth)).astype(mx.bfloat16)
        operands = mx.quantize(weight, group_size=group_size, bits=bits)
        run = kernels.product(mx.bfloat16, group_size, bits)
        if run is not None:
            # MLX's own product would be compiled first, for longer than ours.
            wide = mx.dequantize(*operands, group_size=group_size, bits=bits).astype(mx.float32)
            expected = x.astype(mx.float32) @ wide.T
            got = run(x, *operands, group_size, bits)
            yield f"qmm {rows} x {depth} x {columns}", off(got, expected)


def products_again(kernels: UntriedKernels) -> Iterator[tuple[str, float]]:
    """Until each call has counters that another one had before it."""
    x = mx.random.normal((16, 5120)).astype(mx.bfloat16)
    operands = mx.quantize(mx.random.normal((1000, 5120)).astype(mx.bfloat16), group_size=64, bits=4)
    run = kernels.product(mx.bfloat16, 64, 4)
    if run is not None:
        calls = [run(x, *operands, 64, 4) for _ in range(CALLS_APART + 2)]
        yield "qmm again", off(calls[-1], calls[0])


def attention(kernels: UntriedKernels) -> Iterator[tuple[str, float]]:
    for nodes, heads, groups, columns, size in ATTENTION:
        queries, keys, values = (
            mx.random.normal((1, count, rows, size)).astype(mx.bfloat16)
            for count, rows in ((heads, nodes), (groups, columns), (groups, columns))
        )
        ancestors = mx.array([(1 << node + 1) - 1 for node in range(nodes)], dtype=mx.uint32)
        run = kernels.attention(mx.bfloat16, size)
        if run is not None:
            got, expected = (
                attend(queries, keys, values, ancestors, scale=size**-0.5, window=columns - 9, keep=2)
                for attend in (run, tree_attention.reference)
            )
            yield f"tree_attention over {columns}", off(got, expected)


def recurrence(kernels: UntriedKernels) -> Iterator[tuple[str, float]]:
    nodes, key_heads, heads, width = 11, 2, 4, 128
    q, k, v = (
        mx.random.normal((1, nodes, count, width)).astype(mx.bfloat16) / width**0.5
        for count in (key_heads, key_heads, heads)
    )
    g, beta = (mx.sigmoid(mx.random.normal((1, nodes, heads))).astype(mx.bfloat16) for _ in range(2))
    state = mx.random.normal((1, heads, width, width))
    tree = gated_delta_tree.Tree([-1, 0, 0, 1, 1, 2, 3, 3, 6, 8, 4])
    parameters = mx.random.normal((heads,)), mx.random.normal((heads,)).astype(mx.bfloat16)
    rows = gated_delta_tree.Rows(q, k, v, g, beta, parameters, normed=False)
    run, stock = kernels.recurrence(gated_delta_tree.configuration(rows)), gated_delta_tree.reference()
    if run is None:
        return
    path = mx.array([0, 1, 3, 6, 8, 9])
    yield "gated_delta_tree outputs", off(*(one.outputs(rows, state, tree) for one in (run, stock)))
    yield "gated_delta_tree commit", off(*(one.commit(rows, state, path) for one in (run, stock)))
    for got, expected in zip(*(one.advance(rows, state) for one in (run, stock)), strict=True):
        yield "gated_delta_tree advance", off(got, expected)


def convolution(kernels: UntriedKernels) -> Iterator[tuple[str, float]]:
    configuration = tree_convolution.Configuration(mx.bfloat16, tree_convolution.USUAL_SIZE)
    x, weight, windows, bias = arguments(configuration, 16, 300)
    run = kernels.convolution(*configuration)
    if run is not None:
        got, expected = (convolve(x, weight, windows, bias) for convolve in (run, tree_convolution.reference))
        yield "tree_convolution", off(got, expected)


def draws(kernels: UntriedKernels) -> Iterator[tuple[str, float]]:
    logits = (mx.random.normal((5, 9001)) * 3).astype(mx.bfloat16)
    wanted = [sample.Draw(temperature=0.8, top_p=0.9, top_k=50 * (row % 2), seed=3, position=row) for row in range(5)]
    run = kernels.sampler(logits.dtype)
    if run is not None:
        got, expected = run(logits, wanted, 5), sample.reference_sample(logits, wanted, 5)
        wrong = (got.tokens != expected.tokens) & ~got.needs_host
        yield "sample", float(wrong.sum() + (got.top_tokens != expected.top_tokens).sum())


def off(got: mx.array, expected: mx.array) -> float:
    """The largest difference, as a share of the largest value."""
    wide = expected.astype(mx.float32)
    return float(mx.abs(got.astype(mx.float32) - wide).max() / mx.abs(wide).max())


def main() -> None:
    kernels = UntriedKernels()
    mx.random.seed(0)
    found: list[Any] = []
    for problems in (products, attention, recurrence, convolution, draws, products_again):
        for name, error in problems(kernels):
            found.append((name, error))
            print(f"{name}: off by {error:.2g}", flush=True)
    if not found:
        print("MLX computes on no GPU here that kernels are written for: nothing to run")
    sys.exit(not all(error <= TOLERANCE for _, error in found))


if __name__ == "__main__":
    main()
