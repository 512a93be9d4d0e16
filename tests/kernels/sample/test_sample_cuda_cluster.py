"""The CUDA text for clusters without a GPU: its words exchanged for Metal's, a cluster runs as one threadgroup.

That shows the arithmetic, the indices and the barriers, not that NVRTC takes the text. Shared memory becomes an array
with one entry for each block. A barrier of the cluster becomes a threadgroup barrier. One of a block becomes a
simdgroup barrier where blocks have 32 threads, so that the host knows what it orders, and a threadgroup barrier where
they have more.
"""

import re
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from sample_cases import DRAWS, LONG_TIES, rows_of

from kernels.host import Defect, Report, RunOptions, metal_kernel, running
from kernels.host.options import Order
from kernels.sample.draws import Draw, Drawn
from kernels.sample.metal import metal_sample
from kernels.sample.one_threadgroup_per_row import one_threadgroup_per_row
from kernels.sample.source import source

METAL_WORDS = {
    r"(?m)//.*$": "",
    r"using namespace cidermill_sample;": "",
    r"distant\((\w+), (\w+)\)": r"\1_of[\2]",
    r"atomicAdd\(([^,]+), (.+)\);": r"atomic_fetch_add_explicit((threadgroup atomic_uint*)(\1), \2, RELAXED);",
    r"RELAXED": "memory_order_relaxed",
    r"prefix_sum\(count, lane\)": "simd_prefix_inclusive_sum(count)",
    r"quad_logprobs<T>\((.+), aligned, values\)": r"four_logprobs<T>(\1, values)",
    r"const bool aligned = .+;": "",
    r"__(?:int|uint)_as_float": "as_type<float>",
    r"fmaxf": "max",
    r"fminf": "min",
    r"fabsf": "abs",
    r"const (T|uint)\* (row|asked)": r"const device \1* \2",
    r"threadIdx\.x": "(thread_index_in_threadgroup % uint(THREADS))",
    r"cluster_blocks\(\)": "uint(LAUNCHED)",
    r"cluster_arrive\(\);": "",
    r"cluster_(?:wait|barrier)\(\);": "threadgroup_barrier(mem_flags::mem_threadgroup);",
}
TOP = 5


def in_metal_words(text: str, threads: int, clustered: bool) -> str:
    shared = set(re.findall(r"__shared__ \w+ (\w+)\[", text))
    for word, metal_word in METAL_WORDS.items():
        text = re.sub(word, metal_word, text)
    text = re.sub(r"__shared__ (\w+) (\w+)\[", r"threadgroup \1 \2_of[LAUNCHED][", text)
    block = "thread_index_in_threadgroup / uint(THREADS)"
    text = re.sub(rf"\b({'|'.join(shared)})\b", rf"\1_of[{block}]", text)
    kind = "simdgroup" if threads == 32 else "threadgroup"
    text = text.replace("__syncthreads();", f"{kind}_barrier(mem_flags::mem_threadgroup);")
    number = (
        f"(threadgroup_position_in_grid.x * SAMPLE_BLOCKS + {block})" if clustered else "threadgroup_position_in_grid.x"
    )
    return text.replace("blockIdx.x", number)


def cluster_sample(text: str, blocks: int, threads: int, clustered: bool = True) -> Any:
    """clustered: whether the launch keeps its clusters."""
    launched = blocks if clustered else 1

    def factory(**options: Any) -> Any:
        header = f"#define SAMPLE_BLOCKS {blocks}\n#define LAUNCHED {launched}\n" + options["header"]
        kernel = metal_kernel(
            **{**options, "source": in_metal_words(options["source"], threads, clustered), "header": header}
        )
        return lambda **call: kernel(**{**call, "threadgroup": (launched * threads, 1, 1)})

    return one_threadgroup_per_row(factory, text, source("metal_header.metal"), threads, blocks)


def drawn_by(
    sample: Any, logits: mx.array, draws: list[Draw], order: Order = "forward", metered: bool = True
) -> tuple[list[Any], Report]:
    options = RunOptions(order=order, static_checks=False, raise_on_findings=False, metered=metered)
    with running(options) as reports:
        drawn: Drawn = sample(logits, draws, TOP)
    return [np.array(value).tolist() for value in vars(drawn).values()], reports[0]


def amiss(report: Report) -> set[Defect]:
    """But for shared memory, which the blocks of a cluster have each to itself."""
    return report.defects - {Defect.THREADGROUP_MEMORY}


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize(
    ("blocks", "threads", "clustered", "order"),
    [(8, 32, True, "forward"), (2, 128, True, "seeded"), (4, 32, True, "reverse"), (8, 64, False, "forward")],
)
def test_a_row_drawn_by_a_cluster_is_the_row_drawn_by_a_threadgroup(
    blocks: int, threads: int, clustered: bool, order: Order, dtype: mx.Dtype
) -> None:
    for vocabulary in (9, 2050):
        draws = [*DRAWS, LONG_TIES]
        logits = rows_of(len(draws), vocabulary, dtype, first=vocabulary % 5)
        sample = cluster_sample(source("cuda_cluster.cu"), blocks, threads, clustered)
        found, report = drawn_by(sample, logits, draws, order)
        assert amiss(report) == set()
        expected, _ = drawn_by(metal_sample(metal_kernel), logits, draws, metered=False)
        assert found == expected


def test_rows_that_leave_nothing_give_no_token() -> None:
    rows = np.zeros((3, 640), dtype=np.float32)
    rows[0] = -np.inf
    rows[1, 639] = np.nan  # seen by one block alone
    rows[2, 300] = np.inf
    found, report = drawn_by(cluster_sample(source("cuda_cluster.cu"), 4, 32), mx.array(rows), [Draw(), *DRAWS[1:3]])
    assert amiss(report) == set()
    assert found == [[-1] * 3, [-np.inf] * 3, [False] * 3, [[-1] * TOP] * 3, [[-np.inf] * TOP] * 3]


# Not the first one, `cluster_wait`: it is there because a block may begin late, which no block does on the host.
BARRIER = re.compile(r"__syncthreads\(\);|cluster_barrier\(\);")
BARRIERS = [match.span() for match in BARRIER.finditer(source("cuda_cluster.cu"))]


def barrier_report(text: str) -> Report:
    """As for the Metal text: rows with a long tie and a nucleus of uncertain end reach all barriers."""
    row = np.full((2, 1025), -1.0, dtype=np.float32)
    row[1] = -np.inf
    row[1, 7], row[1, 720:728] = np.log(8), 0  # of different blocks
    draws = [LONG_TIES, Draw(temperature=1.0, top_p=0.5, seed=2)]
    return drawn_by(cluster_sample(text, 4, 32), mx.array(row), draws)[1]


@pytest.mark.parametrize("barrier", range(len(BARRIERS)))
def test_every_barrier_is_missed(barrier: int) -> None:
    text = source("cuda_cluster.cu")
    begin, end = BARRIERS[barrier]
    of_block = text[begin:end].startswith("__sync")
    for instead in ("",) if of_block else ("", "__syncthreads();"):
        assert amiss(barrier_report(text[:begin] + instead + text[end:])) & {Defect.RACE, Defect.UNINITIALISED_READ}


def test_with_all_barriers_nothing_is_amiss() -> None:
    assert amiss(barrier_report(source("cuda_cluster.cu"))) == set()
