"""The exact draw of a token from each of up to 32 rows of logits, in one kernel: filters, keyed noise, logprobs."""

from collections.abc import Sequence

import mlx.core as mx

from kernels.sample.choice import KERNEL, chosen
from kernels.sample.draws import DTYPES, Draw, Drawn, check_arguments
from kernels.sample.reference import reference_sample

__all__ = ["DTYPES", "KERNEL", "Draw", "Drawn", "chosen", "reference_sample", "sample"]


def sample(logits: mx.array, draws: Sequence[Draw], top: int = 0) -> Drawn:
    """Draws a token from each row of logits [N, V], bias and penalties applied.

    logits: float32, bfloat16 or float16, 1 to 32 rows, vocabulary 8 to 262,144; a draw for each row. top: how many of
    the likeliest tokens to list, up to 32. `reference` has the formulas. A row for which `needs_host` is set has to be
    drawn again from its log-probabilities in float64. ValueError for other shapes, types or counts.
    """
    check_arguments(logits, draws, top)
    return chosen(logits.dtype).run(logits, draws, top)
