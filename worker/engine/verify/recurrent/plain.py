"""Plain decoding: state updates and convolutions of a pass over one token, by kernels where they take fewer launches.

Without Metal mlx-lm makes a token's update from some fifteen small operations, in every layer; a kernel takes one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from worker.engine.kernel_set import STOCK, KernelSet
from worker.engine.verify.recurrent.convolution import sequence_convolution
from worker.engine.verify.recurrent.hooks import Convolve, Listening
from worker.engine.verify.recurrent.rule import Arguments, Rule


@contextmanager
def plain_pass(kernels: KernelSet) -> Iterator[None]:
    """Run a model over one token; what it writes into its cache is the state after it."""
    if kernels is STOCK:
        yield
    else:
        with Listening(_OneToken(kernels)):
            yield


class _OneToken:
    """A Listener."""

    def __init__(self, kernels: KernelSet) -> None:
        self.kernels = kernels

    def convolution(self, conv: Any, convolve: Convolve, x: mx.array) -> mx.array:
        return sequence_convolution(conv, convolve, x, self.kernels)

    def update(self, rule: Rule, arguments: Arguments) -> tuple[mx.array, mx.array]:
        call = rule.kernel(arguments, self.kernels, is_chain=True)
        return call.advanced() if call else rule.update(**arguments)
