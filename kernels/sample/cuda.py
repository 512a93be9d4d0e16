"""The CUDA variants: the Metal kernel's twin with one block per row, and one with a cluster of blocks per row.

Both have the same integers all the way to the scores, and so do they and the Metal kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.sample.one_threadgroup_per_row import THREADS, Sample, one_threadgroup_per_row
from kernels.sample.source import source

BLOCKS = 8
"""Of a cluster: the most that every GPU with clusters takes. 16 rows are 128 blocks; an H200 runs 132 at once."""


def cuda_sample(factory: Callable[..., Any]) -> Sample:
    """factory: `mx.fast.cuda_kernel`."""
    return one_threadgroup_per_row(factory, source("cuda.cu"), source("cuda_header.cu"))


def cuda_cluster_sample(factory: Callable[..., Any], blocks: int = BLOCKS, threads: int = THREADS) -> Sample:
    """factory: `mx.fast.cuda_kernel`. For compute capability 9.0 and later.

    blocks: of a row's cluster, 2, 4 or 8. threads: of a block.
    """
    header = f"#define SAMPLE_BLOCKS {blocks}\n" + source("cuda_header.cu") + source("cuda_cluster_header.cu")
    return one_threadgroup_per_row(factory, source("cuda_cluster.cu"), header, threads, blocks)
