"""The CUDA text of tree attention without a GPU: its words exchanged for Metal's, it runs on the host too.

That shows the arithmetic, the indices and the barriers, not that NVRTC takes the text.
"""

import re
from typing import Any

import mlx.core as mx
import pytest
from tree_attention_cases import Case, assert_close

from kernels.host import Defect, RunOptions, metal_kernel, running
from kernels.tree_attention.cuda import cuda

METAL_WORDS = {
    r"(?s)  if \(wide\) \{.+?\n  \}\n": "",  # loads at once what the rest loads one by one
    r"reinterpret_cast<unsigned long long>\(rows\) % \(4 \* sizeof\(T\)\) == 0": "true",
    r"__device__ inline": "METAL_FUNC",
    r"__shared__": "threadgroup",
    r"__syncthreads\(\)": "threadgroup_barrier(mem_flags::mem_threadgroup)",
    r"__shfl_xor_sync\(0xffffffffu, ": "simd_shuffle_xor(",
    r"__popc": "(int)popcount",
    r"threadIdx": "thread_position_in_threadgroup",
    r"blockIdx": "threadgroup_position_in_grid",
    r"gridDim": "threadgroups_per_grid",
    r"long long": "long",
    r"make_float4": "float4",
    r"fmaxf": "max",
    r"exp2f": "exp2",
    r"scale\[0\]": "scale",  # CUDA gets a pointer, Metal a reference
    r"const T\*": "const device T*",
    r"reinterpret_cast<((?:const )?)float\*>": r"(\1threadgroup float*)",
    r"(?<!\w)(?<!threadgroup )(float4?)\*": r"threadgroup \1*",
}


def in_metal_words(text: str) -> str:
    for word, metal_word in METAL_WORDS.items():
        text = re.sub(word, metal_word, text)
    # Threads have their number as a parameter of the kernel only.
    text = re.sub(r"int keep,\s+int skipped\) \{", "int keep, int skipped, uint thread_number) {", text)
    text = text.replace("int item = thread_position_in_threadgroup.x", "int item = thread_number")
    return re.sub(r"keep,(\s+)skipped\);", r"keep,\1skipped, thread_position_in_threadgroup.x);", text)


def factory(**options: Any) -> Any:
    words = {part: in_metal_words(options[part]) for part in ("source", "header")}
    return metal_kernel(**{**options, **words})


CASES = [
    Case(1, 1, 1, 1, 64),
    Case(9, 3, 8, 150, 64, mx.bfloat16, window=64, keep=4, sinks=True),
    Case(3, 1, 9, 33, 80, mx.float16),
    Case(3, 1, 32, 20, 96, mx.bfloat16, window=5, keep=1),
    Case(2, 1, 5, 140, 128, sinks=True),
    Case(3, 1, 5, 62, 256, mx.bfloat16, window=30),
    Case(9, 3, 2, 4099, 64, mx.float16, window=3000, keep=2, sinks=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_node_gets_what_float64_gives(case: Case) -> None:
    with running(RunOptions(static_checks=False)) as reports:
        assert_close(case.run(cuda(factory)), case)
    assert reports[0].traffic["keys"].most_reads == -(-case.heads // case.groups * case.nodes // 64)


def defects_with(number: int, barrier: str) -> set[Defect]:
    """With `barrier` in place of one of the four, by its place in the text."""

    def changed(**options: Any) -> Any:
        pieces = options["source"].split("__syncthreads();")
        if options["name"].startswith("tree_attention_whole"):
            assert len(pieces) == 5
            pieces[number : number + 2] = [pieces[number] + barrier + pieces[number + 1]]
        return factory(**{**options, "source": "__syncthreads();".join(pieces)})

    with running(RunOptions(raise_on_findings=False, static_checks=False)) as reports:
        Case(3, 1, 4, 60, 64).run(cuda(changed))
    (report,) = reports
    return report.defects


@pytest.mark.parametrize("barrier", ["", "simdgroup_barrier(mem_flags::mem_threadgroup);"], ids=["gone", "of a warp"])
@pytest.mark.parametrize("number", range(4))
def test_every_barrier_is_missed_when_it_is_weaker_or_gone(number: int, barrier: str) -> None:
    assert defects_with(number, barrier) & {Defect.RACE, Defect.UNINITIALISED_READ}


def test_with_all_barriers_nothing_is_amiss() -> None:
    assert defects_with(0, "__syncthreads();") == set()
