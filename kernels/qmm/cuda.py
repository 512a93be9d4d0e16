"""The CUDA variant, for Hopper GPUs: how `cuda.cu` is planned and called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import mlx.core as mx

from kernels.naming import named
from kernels.qmm.reference import Product

DTYPES = (mx.bfloat16, mx.float16)
COMPUTE_CAPABILITY = "sm_90"  # of mx.device_info()["architecture"]: clusters and their shared memory
SHARED_BYTES = 227 * 1024  # of one block
HALF_OF_SHARED_BYTES = 113 * 1024  # two blocks of a multiprocessor have this each
# Clusters of 1, 2, 4, 8 blocks that run at once, one block on a multiprocessor (cuOccupancyMaxActiveClusters, H200).
RESIDENT_CLUSTERS = {1: 132, 2: 66, 4: 30, 8: 15}
BYTES_OF_A_STEP = 128  # of each weight row


@dataclass(frozen=True)
class Tiling:
    """warps: of a block. tall: 16-row pieces of a tile of weights. stages: steps of weights in a warp's ring."""

    warps: int
    tall: int
    stages: int


# Warps read x from shared memory once per tile: with more rows of x a taller tile saves more than it costs.
TILINGS = {8: Tiling(8, 1, 4), 16: Tiling(8, 2, 2), 32: Tiling(8, 1, 2)}
SPLITS = (4, 2, 8, 1)  # blocks of a cluster, in the order of preference


@dataclass(frozen=True)
class Plan:
    """How one product is spread over the GPU.

    rows: of x, padded to 8, 16 or 32. split: blocks of a cluster, each with its slices of K, one in each phase.
    shared_bytes: of a block.
    """

    rows: int
    tiling: Tiling
    split: int
    phases: int
    clusters: int
    shared_bytes: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.tiling.warps * 32

    @property
    def grid(self) -> int:
        """In threads."""
        return self.clusters * self.split * self.threads


Planner = Callable[[int, int, int, int, int], Plan]
"""(rows of x, K, N, group_size, bits) -> Plan."""


@cache
def plan(
    rows: int,
    depth: int,
    columns: int,
    group_size: int,
    bits: int,
    tilings: tuple[tuple[int, Tiling], ...] = tuple(TILINGS.items()),
    splits: tuple[int, ...] = SPLITS,
) -> Plan:
    """The plan with the fewest phases and waves of blocks whose shared memory suffices.

    rows: 1 to 32. depth: K. columns: N. tilings: by padded rows. ValueError when no plan is small enough.
    """
    padded, tiling = next((most, tiling) for most, tiling in tilings if rows <= most)
    steps = _ceiling(depth * bits // 8, BYTES_OF_A_STEP)
    tiles = _ceiling(columns, 16 * tiling.tall)
    for phases, waves in _by_product(steps * tiles):
        for split in splits:
            if split * phases > steps:
                continue
            clusters = RESIDENT_CLUSTERS[split] * waves
            shared = _shared_bytes(padded, steps, tiles, group_size, bits, tiling, split * phases, clusters)
            if shared <= SHARED_BYTES:
                room = HALF_OF_SHARED_BYTES if shared <= HALF_OF_SHARED_BYTES else SHARED_BYTES
                return Plan(padded, tiling, split, phases, clusters, room)
    raise ValueError(f"no plan for {rows} rows of a {depth} x {columns} product fits a block's shared memory")


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
            input_names=["x", "w", "scales", "biases"],
            output_names=["y"],
            source=source,
            header=f"#define QMM_SPLIT {split}\n#define QMM_WARPS {warps}\n" + header,
            shared_memory=shared_bytes,
        )

    def run(x: mx.array, w: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int) -> mx.array:
        rows, columns = x.shape[0], w.shape[0]
        how = planner(rows, x.shape[1], columns, group_size, bits)
        out: list[mx.array] = kernel(how.split, how.tiling.warps, how.shared_bytes)(
            inputs=[x, w, scales, biases],
            template=[
                ("T", x.dtype),
                ("ROWS", how.rows),
                ("BITS", bits),
                ("GROUP", group_size),
                ("TALL", how.tiling.tall),
                ("STAGES", how.tiling.stages),
                ("WARPS", how.tiling.warps),
                ("SPLIT", how.split),
                ("PHASES", how.phases),
            ],
            grid=(how.grid, 1, 1),
            threadgroup=(how.threads, 1, 1),
            output_shapes=[(rows, columns)],
            output_dtypes=[x.dtype],
        )
        return out[0]

    return run


def _shared_bytes(
    rows: int, steps: int, tiles: int, group_size: int, bits: int, tiling: Tiling, slices: int, clusters: int
) -> int:
    """What the arena of `cuda.cu` takes, in its order."""
    groups = _ceiling(steps, slices) * (BYTES_OF_A_STEP * 8 // (group_size * bits))
    own_tiles = _ceiling(tiles, clusters)
    x = groups * group_size * rows * 2
    sums = groups * rows * 4
    accumulators = (own_tiles + tiling.warps) * tiling.tall * 16 * rows * 4
    ring = tiling.warps * tiling.stages * tiling.tall * 16 * BYTES_OF_A_STEP
    scales = 2 * own_tiles * tiling.tall * 16 * groups * 2
    return x + sums + accumulators + ring + scales + tiling.warps * 4


def _by_product(most: int) -> Iterator[tuple[int, int]]:
    """Pairs (phases, waves) by their product, the fewest phases first, up to `most`."""
    for together in count(1):
        if together > most:
            return
        yield from ((phases, together // phases) for phases in range(1, together + 1) if together % phases == 0)


def _ceiling(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _text(file: str) -> str:
    return Path(__file__).with_name(file).read_text(encoding="ascii")
