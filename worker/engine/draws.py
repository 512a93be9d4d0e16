"""The target's draws over one verified pass, a node at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import mlx.core as mx
import numpy as np

from worker.engine.kernel_draws import KernelDraws, draw_by_kernel
from worker.engine.kernel_set import STOCK, KernelSet
from worker.engine.logprobs import Likelihood, likelihood_in
from worker.engine.sampling import (
    History,
    Row,
    Sampling,
    biased,
    draw,
    drawn,
    likeliest,
    log_softmax,
    odds,
    processed,
)


class Draws:
    """The draws over a pass of [N, vocabulary] logits.

    Rows whose processing needs no history are processed together on the device. Greedy ones come back as N ids; so do
    sampled ones, and log-probabilities without their rows, where the kernel set has a sampler. A draw from a row that
    leaves no token raises NoTokenLeft.
    """

    def __init__(
        self,
        sampling: Sampling,
        logits: mx.array,
        positions: Sequence[int] = (),
        kernels: KernelSet = STOCK,
        top: int | None = None,
    ) -> None:
        """positions: absolute, of the draw after each node; needed with kernels that sample.

        top: how many of the likeliest tokens `likelihood` will list; None where it will not be called.
        """
        self._sampling = sampling
        self._logits = logits
        self._positions = positions
        self._rows: dict[int, Row] = {}
        self._greedy: list[int] | None = None
        self._by_kernel: KernelDraws | None = None
        if sampling.needs_history:
            mx.eval(logits)
            return
        if sampling.temperature > 0 or top is not None:  # greedy ids alone need no kernel
            self._by_kernel = draw_by_kernel(self._biased, sampling, positions, kernels, top)
        if self._by_kernel is None and sampling.temperature == 0:
            self._greedy = likeliest(self._logprobs).tolist()  # type: ignore[assignment]
        elif self._by_kernel is None:
            mx.eval(self._logprobs)

    def draw(self, node: int, history: History) -> int:
        """The token that the target chooses after `node`."""
        if self._greedy is not None:
            return drawn(self._greedy[node], history.position)
        if self._by_kernel is not None and not self._by_kernel.doubtful[node]:
            assert self._positions[node] == history.position
            return drawn(self._by_kernel.tokens[node], history.position)
        return draw(self.logprobs(node, history), self._sampling, history.position)

    def logprobs(self, node: int, history: History) -> Row:
        """Log-probabilities [vocabulary] of `node` after bias and penalties, before any filter and temperature."""
        if node not in self._rows:
            if self._sampling.needs_history:
                row = log_softmax(processed(self._logits[node : node + 1], self._sampling, history))[0]
            else:
                row = self._logprobs[node]
            self._rows[node] = np.array(row.astype(mx.float32))
        return self._rows[node]

    def likelihood(self, node: int, history: History, token: int, top: int) -> Likelihood:
        """How likely `token` was after `node`, and the `top` likeliest."""
        if self._by_kernel is not None and self._by_kernel.tokens[node] == token:
            return self._by_kernel.likelihoods[node]
        return likelihood_in(self.logprobs(node, history), token, top)

    def odds(self, node: int, history: History, tokens: Sequence[int]) -> tuple[list[float], float]:
        """The probability of each of `tokens` in the draw after `node`, and that of all others together."""
        return odds(self.logprobs(node, history), self._sampling, tokens)

    @cached_property
    def _biased(self) -> mx.array:
        return biased(self._logits, self._sampling)

    @cached_property
    def _logprobs(self) -> mx.array:
        """Of all nodes, [N, vocabulary]."""
        return log_softmax(self._biased)
