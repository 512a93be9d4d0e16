"""The CUDA texts with their words exchanged for Metal's, so that they run on the host too.

That shows the arithmetic, the indices and the barriers, not that NVRTC takes the texts.
"""

import re
from typing import Any

from kernels.host import metal_kernel

METAL_WORDS = {
    r"__shared__": "threadgroup",
    r"__syncthreads\(\)": "threadgroup_barrier(mem_flags::mem_threadgroup)",
    r"__shfl_xor_sync\(0xffffffffu, ": "simd_shuffle_xor(",
    r"\b(exp|log|fabs|rsqrt|fmax)f\(": r"\1(",
    r"int\(threadIdx\.x\)": "int(thread_position_in_threadgroup.x)",
    r"blockIdx": "threadgroup_position_in_grid",
    r"    float\* (\w+) = reinterpret_cast<float\*>": r"    threadgroup float* \1 = (threadgroup float*)",
    r"const float4\* row = reinterpret_cast<const float4\*>": "const device float4* row = (const device float4*)",
}


def in_metal_words(*, source: str, header: str, **rest: Any) -> Any:
    """A factory of kernels."""
    for word, metal_word in METAL_WORDS.items():
        source, header = (re.sub(word, metal_word, text) for text in (source, header))
    return metal_kernel(source=source, header=header, **rest)
