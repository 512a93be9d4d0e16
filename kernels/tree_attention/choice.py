"""Which variant this machine runs for a dtype and a head size."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import mlx.core as mx

from kernels import probing
from kernels.probing import Choice, Kernel, UnavailableError
from kernels.tree_attention.cuda import cuda
from kernels.tree_attention.metal import metal
from kernels.tree_attention.plan import SIMDGROUPS, most_rows_per_simdgroup
from kernels.tree_attention.problem import TreeAttention
from kernels.tree_attention.reference import reference

NODES = 5
COLUMNS = 150  # two spans, the second one ragged
KEY_HEADS = 2
TOLERANCES = {mx.float32: 5e-3, mx.float16: 5e-3, mx.bfloat16: 1e-2}
"""Against the reference, which may round its weights to the dtype, or products to TF32. Results are 0.1 to 0.5."""


class Configuration(NamedTuple):
    """dtype: of queries, keys and values."""

    dtype: mx.Dtype
    head_size: int


def chosen(dtype: mx.Dtype, head_size: int, folder: Path | None = None) -> Choice[TreeAttention]:
    """Found out at the first call in a process. folder: keeps verdicts from one process to the next."""
    return probing.chosen(KERNEL, Configuration(dtype, head_size), folder)


def complaint(run: TreeAttention, dtype: mx.Dtype, head_size: int) -> str | None:
    """What is wrong with a variant's results: one small problem for each kernel that trees of this size use."""
    for heads in (KEY_HEADS * number for number in _numbers_of_heads(head_size)):
        queries, keys, values = (
            mx.random.normal((1, count, rows, head_size), key=mx.random.key(seed)).astype(dtype)
            for seed, (count, rows) in enumerate([(heads, NODES), (KEY_HEADS, COLUMNS), (KEY_HEADS, COLUMNS)])
        )
        # As in a cache: rows behind the last column are there, and nothing may come of them.
        room = mx.full((1, KEY_HEADS, COLUMNS, head_size), mx.nan, dtype=dtype)
        keys, values = (mx.concatenate([rows, room], axis=2)[..., :COLUMNS, :] for rows in (keys, values))
        ancestors = mx.array([0b1, 0b11, 0b101, 0b1011, 0b10101], dtype=mx.uint32)
        sinks = mx.linspace(3, 5, heads).astype(dtype)  # as much as 20 to 150 columns
        found, expected = (
            attend(queries, keys, values, ancestors, scale=head_size**-0.5, window=COLUMNS - 20, keep=2, sinks=sinks)
            for attend in (run, reference)
        )
        error = float(mx.abs(found.astype(mx.float32) - expected.astype(mx.float32)).max())
        if not error <= TOLERANCES[dtype]:
            return f"differs from the reference by {error:.2g} with {heads} heads of size {head_size} in {dtype}"
    return None


def _numbers_of_heads(head_size: int) -> list[int]:
    """Query heads for which the rows of one key head need 1, 2, 4... rows a simdgroup, up to the most."""
    most = most_rows_per_simdgroup(head_size)
    return [count * SIMDGROUPS // NODES for count in (1, 2, 4, 8) if count <= most]


def _metal(_: Configuration) -> TreeAttention:
    if not (mx.metal.is_available() and mx.default_device() == mx.gpu):
        raise UnavailableError("Metal is not the default device here")
    return metal(mx.fast.metal_kernel)


def _cuda(_: Configuration) -> TreeAttention:
    if not (mx.cuda.is_available() and mx.default_device() == mx.gpu):
        raise UnavailableError("CUDA is not the default device here")
    return cuda(mx.fast.cuda_kernel)


KERNEL: Kernel[Configuration, TreeAttention] = Kernel(
    name="tree_attention",
    home=__name__,
    variants={"metal": _metal, "cuda": _cuda},
    check=lambda run, configuration: complaint(run, *configuration),
    reference=reference,
)
