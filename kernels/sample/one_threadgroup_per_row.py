"""The call of a kernel, on either back end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from kernels.sample.draws import Draw, Drawn, normalisers, parameters, scales

THREADS = 512
FEWER_THREADS = 256
"""For a GPU that grants this kernel no threadgroup of `THREADS`."""
INPUTS = ("logits", "normalisers", "parameters", "scales")
OUTPUTS = ("tokens", "logprobs", "needs_host", "top_tokens", "top_logprobs")

Sample = Callable[[mx.array, Sequence[Draw], int], Drawn]


def one_threadgroup_per_row(factory: Callable[..., Any], body: str, header: str, threads: int = THREADS) -> Sample:
    """threads: of a threadgroup, a multiple of 32 that divides 2048; results do not depend on it."""
    kernel = factory(
        name="sample",
        input_names=list(INPUTS),
        output_names=list(OUTPUTS),
        source=body,
        header=header,
    )

    def sample(logits: mx.array, draws: Sequence[Draw], top: int = 0) -> Drawn:
        rows = logits.shape[0]
        width = max(top, 1)
        tokens, logprobs, needs_host, top_tokens, top_logprobs = kernel(
            inputs=[logits, normalisers(logits), parameters(draws, top), scales()],
            template=[("T", logits.dtype), ("THREADS", threads)],
            grid=(rows * threads, 1, 1),
            threadgroup=(threads, 1, 1),
            output_shapes=[(rows,), (rows,), (rows,), (rows, width), (rows, width)],
            output_dtypes=[mx.int32, mx.float32, mx.uint32, mx.int32, mx.float32],
        )
        return Drawn(tokens, logprobs, needs_host.astype(mx.bool_), top_tokens[:, :top], top_logprobs[:, :top])

    return sample
