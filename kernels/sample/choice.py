"""Which variant this machine runs for a dtype."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import mlx.core as mx

from kernels import probing
from kernels.devices import need
from kernels.probing import Choice, Kernel
from kernels.sample.cuda import cuda_sample
from kernels.sample.draws import Draw
from kernels.sample.metal import metal_sample
from kernels.sample.one_threadgroup_per_row import FEWER_THREADS, THREADS, Sample
from kernels.sample.reference import reference_sample
from kernels.specialised import cuda_kernel, metal_kernel

VOCABULARY = 9001  # threads read quads four at a time up to 8192, the rest one by one; CUDA aligned rows at once
TOP = 5
DRAWS = (
    Draw(),
    Draw(temperature=1.0, seed=7, position=3),
    Draw(temperature=0.7, top_p=0.9, seed=2**63 + 1, position=40),
    Draw(temperature=1.3, top_p=0.8, top_k=40, min_p=0.01, seed=11, position=2**31),
    Draw(temperature=0.9, top_k=12, seed=3, position=5),
)


def chosen(dtype: mx.Dtype, folder: Path | None = None) -> Choice[Sample]:
    """Found out at the first call in a process. folder: keeps verdicts from one process to the next."""
    return probing.chosen(KERNEL, dtype, folder)


def complaint(run: Sample, dtype: mx.Dtype) -> str | None:
    """What is wrong with a variant's draws of random rows full of ties, none of which needs the host."""
    logits = mx.round(mx.random.normal((len(DRAWS), VOCABULARY), key=mx.random.key(1)) * 24).astype(dtype) / 8
    found, expected = run(logits, DRAWS, TOP), reference_sample(logits, DRAWS, TOP)
    for what in ("needs_host", "tokens", "logprobs", "top_tokens", "top_logprobs"):
        if not mx.array_equal(getattr(found, what), getattr(expected, what)).item():
            return f"{what} differ from the reference's in {dtype}"
    return None


def _metal(_: mx.Dtype, threads: int = THREADS) -> Sample:
    need("Metal")
    return metal_sample(metal_kernel, threads)


def _cuda(_: mx.Dtype) -> Sample:
    need("CUDA")
    return cuda_sample(cuda_kernel)


KERNEL: Kernel[mx.Dtype, Sample] = Kernel(
    name="sample",
    home=__name__,
    variants={
        "metal": _metal,
        f"metal{FEWER_THREADS}": partial(_metal, threads=FEWER_THREADS),
        "cuda": _cuda,
    },
    check=complaint,
    reference=reference_sample,
)
