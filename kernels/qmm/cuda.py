"""The CUDA variant, for Hopper GPUs: how `cuda.cu` is planned and called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx

from kernels.naming import named
from kernels.qmm.reference import Product

DTYPES = (mx.bfloat16, mx.float16)
COMPUTE_CAPABILITY = "sm_90"  # of mx.device_info()["architecture"]
MULTIPROCESSORS = 132
SHARED_BYTES = 226 * 1024  # of one block; the last of 227 KiB is for what is not counted here
HALF_OF_SHARED_BYTES = 113 * 1024  # leaves as much for the L1 cache
TILE = 16  # weight rows
ROUND = 2  # tiles between two barriers of a block
STAGES = 4  # of a warp's ring of tiles
MOST_WARPS = {8: 20, 16: 16, 32: 14}  # of a block by rows of x, for the registers that a thread needs
MOST_PHASES = 16
LEAST_ELEMENTS = 8
SPLITS = (1, 2, 3, 4, 6, 11, 12)
# Of one multiprocessor, in bytes per microsecond: from memory, and from the L2 cache. Measured on an H200.
MEMORY_RATE, CACHE_RATE = 32_000, 45_000
# What a launch costs beyond its bytes: for each phase, and where blocks wait for one another.
PHASE_US, SPLIT_US = 0.8, 1.5


@dataclass(frozen=True)
class Plan:
    """How one product is spread over the GPU.

    rows: of x, padded to 8, 16 or 32. span: groups of K that a warp has at a time. warps: of a block. split: blocks of
    a team, which share its weight rows and divide K. phases: parts of K that a block goes over one by one.
    stages: of a warp's ring of tiles. shared_bytes: of a block.
    """

    rows: int
    span: int
    warps: int
    split: int
    phases: int
    teams: int
    shared_bytes: int
    stages: int = STAGES

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.warps * 32

    @property
    def grid(self) -> int:
        """In threads."""
        return self.teams * self.split * self.threads


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
    padded = next(most for most in (8, 16, 32) if rows <= most)
    # A thread keeps its part of a span of x in up to 64 registers.
    span = max(1, (128 if bits == 8 or padded == 32 else 256) // group_size)
    slices = _ceiling(depth // group_size, span)
    tiles = _ceiling(columns, TILE)
    fragments = padded // 8 * 512  # bytes of a tile's sums
    stage = TILE * span * (group_size * bits // 8 + 4)
    of_warp = 2 * ROUND * fragments + span * padded * 4 + STAGES * stage
    for split in SPLITS:
        for phases in range(1, MOST_PHASES + 1):
            warps = _ceiling(slices, split * phases)
            if warps > MOST_WARPS[padded] or (warps == 1 and split * phases > slices):
                continue
            resident = MULTIPROCESSORS // split
            waves = 1
            while True:
                teams = min(tiles, resident * waves)
                own = _ceiling(tiles, teams)
                shared = warps * of_warp + (own * fragments if phases > 1 else 0)
                if shared <= SHARED_BYTES or teams == tiles:
                    break
                waves += 1
            if shared > SHARED_BYTES:
                continue
            weights = own * TILE * (depth * bits // 8 + 4 * (depth // group_size)) / split * waves
            x = rows * depth * 2 / split * waves
            us = max(weights / MEMORY_RATE, (weights + x) / CACHE_RATE) + phases * waves * PHASE_US
            if split > 1:
                us += SPLIT_US + own * fragments * split / CACHE_RATE
            us *= max(1.0, 8 / warps)  # fewer warps do not ask for enough at a time
            room = HALF_OF_SHARED_BYTES if shared <= HALF_OF_SHARED_BYTES else SHARED_BYTES
            yield us, Plan(padded, span, warps, split, phases, teams, room)


def product(factory: Callable[..., Any], planner: Planner = plan) -> Product:
    """The variant as a function of 1 to 32 rows of x in bfloat16 or float16, with scales and biases as x.

    factory: `mx.fast.cuda_kernel`. Every weight is read once and multiplied exactly (w is not rounded to x's type).
    """

    @cache
    def kernel(split: int, warps: int, shared_bytes: int) -> Any:
        source, header = _text("cuda.cu"), _text("cuda_header.cu")
        # MLX raises the limit of shared memory once per name: other sizes need other names.
        return factory(
            name=named(f"qmm_{split}_{warps}_{shared_bytes}", header, source),
            input_names=["x", "w", "scales", "biases", *(["arrivals"] if split > 1 else [])],
            output_names=["y", *(["parts"] if split > 1 else [])],
            source=source,
            header=f"#define QMM_SPLIT {split}\n#define QMM_WARPS {warps}\n" + header,
            shared_memory=shared_bytes,
        )

    def run(x: mx.array, w: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int) -> mx.array:
        rows, columns = x.shape[0], w.shape[0]
        how = planner(rows, x.shape[1], columns, group_size, bits)
        inputs, dtypes = [x, w, scales, biases], [x.dtype]
        shapes: list[tuple[int, ...]] = [(rows, columns)]
        if how.split > 1:
            # Blocks count their arrivals where they find zeros: an array of its own for each call.
            inputs.append(mx.zeros((max(how.teams, LEAST_ELEMENTS),), mx.uint32))
            shapes.append((how.split * _ceiling(columns, TILE) * TILE * how.rows,))
            dtypes.append(mx.float32)
        out: list[mx.array] = kernel(how.split, how.warps, how.shared_bytes)(
            inputs=inputs,
            template=[
                ("T", x.dtype),
                ("ROWS", how.rows),
                ("BITS", bits),
                ("GROUP", group_size),
                ("SPAN", how.span),
                ("STAGES", how.stages),
                ("ROUND", ROUND),
                ("PHASES", how.phases),
            ],
            grid=(how.grid, 1, 1),
            threadgroup=(how.threads, 1, 1),
            output_shapes=shapes,
            output_dtypes=dtypes,
        )
        return out[0]

    return run


def _ceiling(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _text(file: str) -> str:
    return Path(__file__).with_name(file).read_text(encoding="ascii")
