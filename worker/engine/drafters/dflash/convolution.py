"""DFlash 2: grouped dynamic convolution over the slots of a block, around a sublayer."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from worker.engine.drafters.dflash.config import SecondConfig

INPUT, OUTPUT = 0, 1


class BlockConvolution(nn.Module):  # type: ignore[misc]
    """One kernel for the sublayer's input and one for its output.

    base_kernel: [2, taps, hidden], of input and output; tap t reads t slots back, and before the first slot is zero.
    To it each slot adds its own kernel, which all channels of a group share.
    """

    def __init__(self, hidden: int, config: SecondConfig) -> None:
        super().__init__()
        self.taps, self.group = config.taps, config.group
        self.base_kernel = mx.zeros((2, self.taps, hidden))
        self.kernel_projection = nn.Linear(hidden, 2 * self.taps * (hidden // self.group), bias=False)

    def around(self, sublayer: Callable[[mx.array], mx.array], x: mx.array) -> mx.array:
        """`sublayer` between the two convolutions, applied to its input x [slots, hidden]."""
        slots, hidden = x.shape
        own = self.kernel_projection(x).reshape(slots, 2, self.taps, hidden // self.group)
        kernels = self.base_kernel + mx.repeat(own, self.group, axis=-1)
        return _convolved(sublayer(_convolved(x, kernels[:, INPUT])), kernels[:, OUTPUT])


def _convolved(x: mx.array, kernels: mx.array) -> mx.array:
    """x [slots, hidden] with kernels [slots, taps, hidden]: the same shape as x."""
    slots, taps = x.shape[0], kernels.shape[1]
    before = mx.concatenate([mx.zeros((taps - 1, x.shape[1]), dtype=x.dtype), x])
    terms = [kernels[:, tap] * before[taps - 1 - tap : taps - 1 - tap + slots] for tap in range(taps)]
    return sum(terms[1:], terms[0])
