"""The CUDA texts are the Metal texts, executed on the host by other tests, in other words."""

import re
from functools import partial

import kernels.sample
from kernels.texts import text_beside

source = partial(text_beside, kernels.sample.__file__)

WORDS = {
    r"(?m)//.*$": "",
    r"threadgroup atomic_uint": "__shared__ uint",
    r"threadgroup (uint|ulong|float) ": r"__shared__ \1 ",
    r"atomic_store_explicit\(&(.+?), 0u, memory_order_relaxed\)": r"\1 = 0u",
    r"atomic_load_explicit\(&(.+?), memory_order_relaxed\)": r"\1",
    r"atomic_fetch_add_explicit\(&(.+?), memory_order_relaxed\)": r"atomicAdd(&\1)",
    r"threadgroup_barrier\(mem_flags::mem_threadgroup\)": "__syncthreads()",
    r"threadgroup_position_in_grid\.x": "blockIdx.x",
    r"thread_index_in_threadgroup": "threadIdx.x",
    r"thread_index_in_simdgroup": "tid % 32",
    r"simdgroup_index_in_threadgroup": "tid / 32",
    r"simd_prefix_inclusive_sum\(count\)": "prefix_sum(count, lane)",
    r"const device ": "const ",
    r"thread (uint|float)\*": r"\1*",
    r"\binline": "__device__ inline",
    r"as_type<float>\(": "__uint_as_float(",
    r"as_type<uint>\(": "__float_as_uint(",
    r"as_type<int>\(": "int(",
    r"metal::mulhi": "__umulhi",
    r"metal::min": "fminf",
    r"isnan\(value\)": "value != value",
    r"!isfinite\(best\)": "!(fabsf(best) < INFINITE)",
    r"max\(second, max\(min\(first, score\), ": "fmaxf(second, fmaxf(fminf(first, score), ",
    r"max\(second, score\)": "fmaxf(second, score)",
    r"min\(numbers, group_counts\[s\]\)": "group_counts[s] < numbers ? group_counts[s] : numbers",
    r"max\(top, 1u\)": "top > 0u ? top : 1u",
    r"INFINITY": "INFINITE",
}


def in_cuda_words(text: str) -> str:
    for word, cuda_word in WORDS.items():
        text = re.sub(word, cuda_word, text)
    return " ".join(text.split())


def between(text: str, first: str, last: str) -> str:
    return text[text.index(first) : text.index(last) if last else None]


def test_the_bodies_say_the_same() -> None:
    metal, cuda = (between(source(name), "constexpr uint BINS", "") for name in ("metal.metal", "cuda.cu"))
    assert in_cuda_words(metal) == " ".join(re.sub(r"(?m)//.*$", "", cuda).split())


READ_AT_ONCE = re.compile(r"template <typename T, uint COUNT.+?\} (?=__device__ inline uint step_of)")


def test_the_functions_of_numbers_say_the_same() -> None:
    """But for the one that reads, which loads a quad at once in CUDA."""
    metal = between(
        in_cuda_words(source("metal_header.metal")), "__device__ inline void philox", "__device__ inline ulong s"
    )
    cuda = " ".join(
        re.sub(r"(?m)//.*$", "", source("cuda_header.cu")).replace("__int_as_float(0x7F800000)", "INFINITE").split()
    )
    cuda = between(cuda, "__device__ inline void philox", "__device__ inline float simd_max")
    assert len(READ_AT_ONCE.findall(metal)) == len(READ_AT_ONCE.findall(cuda)) == 1
    assert READ_AT_ONCE.sub("", metal) == READ_AT_ONCE.sub("", cuda)
