"""Which variant this machine runs for a dtype and a head size."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

from kernels import probing
from kernels.devices import need
from kernels.probing import Choice, Kernel, UnavailableError
from kernels.specialised import cuda_kernel, metal_kernel
from kernels.tree_attention import cuda
from kernels.tree_attention.metal import metal
from kernels.tree_attention.problem import TreeAttention
from kernels.tree_attention.reference import reference

TOLERANCES = {mx.float32: 5e-3, mx.float16: 5e-3, mx.bfloat16: 2e-2}
"""Against the reference in float32, whose products a GPU may round to TF32. Results are 0.1 to 1."""


class Problem(NamedTuple):
    """heads: query heads of each key head. committed: columns before the tree."""

    heads: int
    nodes: int
    committed: int
    window: int | None = None
    keep: int = 0
    sinks: bool = False
    key_heads: int = 2


# On Metal 145 columns are walked in two spans, the second one ragged, and merged; 40 in one. heads * nodes rows need
# one kernel up to 8 rows, others up to 16, 32 and 64, and two threadgroups above that (half of it with heads of 256).
LONG = [Problem(heads, 5, 145, window=130, keep=2, sinks=True) for heads in (1, 3, 6, 12)]
SHORT = [Problem(*rows, 40) for rows in ((1, 8), (1, 9), (1, 16), (1, 17), (1, 32), (3, 11), (2, 32), (5, 13))]
PROBLEMS = [*LONG, *SHORT, Problem(2, 6, 145), Problem(2, 6, 40, window=30, keep=2, sinks=True)]
# With these the CUDA variant has each of its blocks over spans.
ON_GPU = [
    Problem(1, 5, 500),
    Problem(5, 16, 500, window=510, keep=3, sinks=True),
    Problem(4, 16, 8000, key_heads=8),
    Problem(5, 16, 1000, key_heads=16),
    Problem(6, 16, 9000, window=8500, keep=3, key_heads=8),
]


class Configuration(NamedTuple):
    """dtype: of queries, keys and values."""

    dtype: mx.Dtype
    head_size: int


def chosen(dtype: mx.Dtype, head_size: int, folder: Path | None = None) -> Choice[TreeAttention]:
    """Found out at the first call in a process. folder: keeps verdicts from one process to the next."""
    return probing.chosen(KERNEL, Configuration(dtype, head_size), folder)


def probed(on_gpu: bool) -> list[Problem]:
    """Each kernel of each variant; those that take long contexts on a GPU only."""
    return [*PROBLEMS, *(ON_GPU if on_gpu else [])]


def complaint(run: TreeAttention, dtype: mx.Dtype, head_size: int) -> str | None:
    """What is wrong with a variant's results, of small problems for all kernels that trees of up to 32 nodes use."""
    for problem in probed(on_gpu=mx.default_device() == mx.gpu):
        groups, nodes, columns = problem.key_heads, problem.nodes, problem.committed + problem.nodes
        heads = groups * problem.heads
        queries, keys, values = (
            mx.random.normal((1, count, rows, head_size), key=mx.random.key(seed)).astype(dtype)
            for seed, (count, rows) in enumerate([(heads, nodes), (groups, columns), (groups, columns)])
        )
        # As in a cache: rows behind the last column are there, and nothing may come of them.
        room = mx.full((1, groups, columns, head_size), mx.nan, dtype=dtype)
        keys, values = (mx.concatenate([rows, room], axis=2)[..., :columns, :] for rows in (keys, values))
        sinks = mx.linspace(3, 5, heads).astype(dtype) if problem.sinks else None  # as much as 20 to 150 columns
        tree = two_branches(nodes)
        options: dict[str, Any] = {
            "scale": head_size**-0.5,
            "window": problem.window,
            "keep": problem.keep,
            "sinks": sinks,
        }
        found = run(queries, keys, values, tree, **options)
        wide_queries, wide_keys, wide_values = (array.astype(mx.float32) for array in (queries, keys, values))
        expected = reference(wide_queries, wide_keys, wide_values, tree, **options)
        error = float(mx.abs(found.astype(mx.float32) - expected).max())
        if not error <= TOLERANCES[dtype]:
            return f"differs from the reference by {error:.2g} in {dtype} with heads of {head_size} and {problem}"
    return None


def two_branches(nodes: int) -> mx.array:
    """[N] uint32, the ancestor bits of a tree whose nodes go by turns to one of two branches below the root."""
    bits = [0b1, 0b11]
    for node in range(2, nodes):
        bits.append(bits[node - 2] | 1 << node)
    return mx.array(bits[:nodes], dtype=mx.uint32)


def _metal(_: Configuration) -> TreeAttention:
    need("Metal")
    return metal(metal_kernel)


def _cuda(configuration: Configuration) -> TreeAttention:
    need("CUDA", cuda.COMPUTE_CAPABILITY)
    if configuration.dtype not in cuda.DTYPES:
        raise UnavailableError(f"queries are {configuration.dtype}; the kernel is for bfloat16 and float16")
    return cuda.cuda(cuda_kernel)


KERNEL: Kernel[Configuration, TreeAttention] = Kernel(
    name="tree_attention",
    home=__name__,
    variants={"metal": _metal, "cuda": _cuda},
    check=lambda run, configuration: complaint(run, *configuration),
    reference=reference,
)
