"""The CUDA variant, for Hopper GPUs: how `cuda.cu` is planned and called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle
from typing import Any

import mlx.core as mx

from kernels.qmm.reference import Product
from kernels.texts import text_beside

DTYPES = (mx.bfloat16, mx.float16)
COMPUTE_CAPABILITY = "sm_90"  # of mx.device_info()["architecture"]
MULTIPROCESSORS = 132
SHARED_BYTES = 226 * 1024  # of one block; the last of 227 KiB is for what is not counted here
HALF_OF_SHARED_BYTES = 113 * 1024  # leaves as much for the L1 cache
MOST_PHASES = 16
LEAST_ELEMENTS = 8
CALLS_APART = 512
"""Calls of one shape until counters are used again: more than MLX ever has under way side by side."""
SPLITS = range(1, 13)
# Of one multiprocessor, in bytes per microsecond: from memory, and from the L2 cache. Measured on an H200.
MEMORY_RATE, CACHE_RATE = 32_000, 45_000
# Instructions of warps that a multiprocessor issues in a microsecond when it has 20 warps.
ISSUE_RATE = 4300
# What a launch costs besides: from its start, for each further phase, and where blocks wait for one another.
START_US, PHASE_US, SPLIT_US = 5.0, 5.0, 1.5


@dataclass(frozen=True)
class Tiling:
    """What a warp has at a time: of a tile of 16 * tall weight rows `bytes` of each row.

    stages: of its ring of tiles. round: tiles between two barriers of a block. most_warps: of a block, for the
    registers that a thread needs.
    """

    bytes: int
    tall: int
    stages: int
    round: int
    most_warps: int


# By rows of x, of which a thread keeps its part in up to 64 registers.
TILINGS = {
    8: (Tiling(128, 1, 3, 4, 20),),
    16: (Tiling(128, 1, 3, 4, 12), Tiling(64, 2, 3, 1, 20)),
    32: (Tiling(64, 1, 3, 2, 12),),
}


@dataclass(frozen=True)
class Plan:
    """How one product is spread over the GPU.

    rows: of x, padded to 8, 16 or 32. span: groups of K that a warp has at a time. warps: of a block. split: blocks of
    a team, which share its weight rows and divide K. phases: parts of K that a block goes over one by one.
    shared_bytes: of a block.
    """

    rows: int
    tiling: Tiling
    span: int
    warps: int
    split: int
    phases: int
    teams: int = 1
    shared_bytes: int = 0

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.warps * 32

    @property
    def grid(self) -> int:
        """In threads."""
        return self.teams * self.split * self.threads


@dataclass(frozen=True)
class Launch:
    """What calls with an x of one shape have in common.

    arrivals: counters for the teams of a call, in turn; None without a split. arguments: keyword arguments of `kernel`.
    """

    kernel: Any
    arrivals: Iterator[mx.array] | None
    arguments: dict[str, Any]


Planner = Callable[[int, int, int, int, int], Plan]
"""(rows of x, K, N, group_size, bits) -> Plan."""


@cache
def plan(rows: int, depth: int, columns: int, group_size: int, bits: int) -> Plan:
    """The plan that should take the least time. rows: 1 to 32. depth: K. columns: N.

    ValueError when there is none: K is too large.
    """
    found = min(plans(rows, depth, columns, group_size, bits), key=lambda one: one[0], default=None)
    if found is None:
        raise ValueError(f"no plan for {rows} rows of a {depth} x {columns} product fits a block")
    return found[1]


def plans(rows: int, depth: int, columns: int, group_size: int, bits: int) -> Iterator[tuple[float, Plan]]:
    """All plans, each with the microseconds that it should take."""
    padded = next(most for most in TILINGS if rows <= most)
    for tiling in TILINGS[padded]:
        span = max(1, tiling.bytes * 8 // bits // group_size)
        slices = _ceiling(depth // group_size, span)
        for split in SPLITS:
            for phases in range(1, MOST_PHASES + 1):
                warps = _ceiling(slices, split * phases)
                if warps <= tiling.most_warps and split * phases <= slices:
                    how = Plan(padded, tiling, span, warps, split, phases)
                    yield from _placed(how, rows, depth, columns, group_size, bits)


def _placed(how: Plan, rows: int, depth: int, columns: int, group_size: int, bits: int) -> Iterator[tuple[float, Plan]]:
    """`how` with its teams, and the microseconds that it should take, if it fits."""
    tile = 16 * how.tiling.tall
    tiles = _ceiling(columns, tile)
    sums = tile * how.rows * 4  # bytes of a tile's
    stage = tile * how.span * (group_size * bits // 8 + 4)
    of_warp = 2 * how.tiling.round * sums + how.span * how.rows * 4 + how.tiling.stages * stage
    waves = 0
    while True:
        waves += 1
        teams = min(tiles, MULTIPROCESSORS // how.split * waves)
        own = _ceiling(tiles, teams)
        shared = how.warps * of_warp + (own * sums if how.phases > 1 else 0)
        if shared <= SHARED_BYTES:
            break
        if teams == tiles:
            return
    visits = own * waves * how.phases * how.warps
    us = max(
        visits * stage / MEMORY_RATE,
        (visits * stage + rows * depth * 2 / how.split * waves) / CACHE_RATE,
        visits * (40 + stage * (4 / bits) * (0.08 + 0.0035 * how.rows)) / ISSUE_RATE / min(1, 0.4 + how.warps * 0.03),
    )
    us += START_US + (how.phases * waves - 1) * PHASE_US
    if how.split > 1:
        us += SPLIT_US + own * sums * how.split / CACHE_RATE
    room = HALF_OF_SHARED_BYTES if shared <= HALF_OF_SHARED_BYTES else SHARED_BYTES
    yield us, replace(how, teams=teams, shared_bytes=room)


def product(factory: Callable[..., Any], planner: Planner = plan) -> Product:
    """The variant as a function of 1 to 32 rows of x in bfloat16 or float16, with scales and biases as x.

    factory: `kernels.specialised.cuda_kernel`, or what takes its place. Every weight is read once and multiplied
    exactly (w is not rounded to x's type).
    """

    @cache
    def kernel(split: int, warps: int, shared_bytes: int) -> Any:
        source, header = text_beside(__file__, "cuda.cu"), text_beside(__file__, "cuda_header.cu")
        # MLX raises the limit of shared memory once per name: other sizes need other names.
        return factory(
            name=f"qmm_{split}_{warps}_{shared_bytes}",
            input_names=["x", "w", "scales", "biases", *(["arrivals"] if split > 1 else [])],
            output_names=["y", *(["parts"] if split > 1 else [])],
            source=source,
            header=f"#define QMM_SPLIT {split}\n#define QMM_WARPS {warps}\n" + header,
            shared_memory=shared_bytes,
        )

    @cache
    def launch(shape: tuple[int, ...], dtype: mx.Dtype, columns: int, group_size: int, bits: int) -> Launch:
        """shape: of x."""
        how = planner(shape[-2], shape[-1], columns, group_size, bits)
        shapes, dtypes = [(*shape[:-1], columns)], [dtype]
        if how.split > 1:
            tile = 16 * how.tiling.tall
            shapes.append((how.split * _ceiling(columns, tile) * tile * how.rows,))
            dtypes.append(mx.float32)
        template = [
            ("T", dtype),
            ("ROWS", how.rows),
            ("BITS", bits),
            ("GROUP", group_size),
            ("SPAN", how.span),
            ("TALL", how.tiling.tall),
            ("STAGES", how.tiling.stages),
            ("ROUND", how.tiling.round),
            ("PHASES", how.phases),
        ]
        return Launch(
            kernel(how.split, how.warps, how.shared_bytes),
            _counters(how.teams) if how.split > 1 else None,
            {
                "template": template,
                "grid": (how.grid, 1, 1),
                "threadgroup": (how.threads, 1, 1),
                "output_shapes": shapes,
                "output_dtypes": dtypes,
            },
        )

    def run(x: mx.array, w: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int) -> mx.array:
        called = launch(x.shape, x.dtype, w.shape[0], group_size, bits)
        inputs = [x, w, scales, biases]
        if called.arrivals is not None:
            inputs.append(next(called.arrivals))
        out: list[mx.array] = called.kernel(inputs=inputs, **called.arguments)
        return out[0]

    return run


def _counters(teams: int) -> Iterator[mx.array]:
    """Zeros in which the blocks of a call count their arrivals, over and over: the last of a team leaves a zero again.

    MLX sees no dependency between two calls with the same counters. It runs few operations side by side, those of one
    CUDA graph, and what it has to zero anew for each call costs a launch.
    """
    zeros = mx.zeros((CALLS_APART, max(teams, LEAST_ELEMENTS)), mx.uint32)
    rows = [zeros[row] for row in range(CALLS_APART)]
    mx.eval(rows)
    return cycle(rows)


def _ceiling(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
