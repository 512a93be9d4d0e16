"""The target's head as a drafter uses it: for a few rows, and for as much of the vocabulary as it may guess.

A checkpoint's config restates how its target makes logits of what the head puts out (a multiplier, a cap). These are
applied once, to the bare head's output, when that makes the target's own logits, or when the target does neither. Where
the target makes them otherwise, its logits are taken as they come, of the full vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from api.errors import ModelError
from worker.engine.drafters.dflash.config import DFlashConfig
from worker.engine.drafters.dflash.settings import DFlashSettings
from worker.engine.memory import ReadWeights, read_weights
from worker.engine.sampling import Tokens
from worker.engine.verify.taps import Taps, head_and_inner

# Quantised products are fastest for a number of outputs that is a multiple of this.
_ROW_MULTIPLE = 32
# Of logits that 16-bit arithmetic made in another order of operations, in parts of the largest.
_TOLERANCE = 0.02
# Times a state of unit variance: large enough that a cap shows.
_PROBE_SCALE = 20.0

Projection = Callable[[mx.array], mx.array]


class DraftHead:
    """ids: what the columns of its logits stand for, ascending; None = column i is token i."""

    def __init__(
        self, target: Any, taps: Taps, config: DFlashConfig, settings: DFlashSettings, read: ReadWeights = read_weights
    ) -> None:
        """read: makes the rows of a draft vocabulary, a copy of the target's."""
        self._config = config
        self._dtype = taps.embed(mx.array([0])).dtype
        self._project: Projection = taps.head
        self._restate = False
        self._columns = settings.addressable
        self.ids: Tokens | None = None
        bare = _bare_head(target)
        if bare is not None and self._agrees(_projection(bare), taps):
            self._project, self._restate = _projection(bare), True
            if settings.vocabulary is not None:
                self.ids = _draft_vocabulary(settings.vocabulary, settings.addressable, int(bare.weight.shape[0]))
                rows = _gathered(bare, self.ids)
                read(rows)
                self._project, self._columns = _projection(rows), len(self.ids)

    def __call__(self, hidden: mx.array) -> mx.array:
        """Logits [n, columns], float32, of normed hidden states [n, hidden]."""
        logits = self._project(hidden.astype(self._dtype)).astype(mx.float32)
        return (self._restated(logits) if self._restate else logits)[:, : self._columns]

    def _restated(self, logits: mx.array) -> mx.array:
        logits = logits * self._config.output_multiplier
        cap = self._config.final_logit_softcapping
        return logits if cap is None else mx.tanh(logits / cap) * cap

    def _agrees(self, project: Projection, taps: Taps) -> bool:
        """Whether the target's logits are the bare head's output, as it comes or as the config restates it."""
        states = mx.random.normal((4, self._config.hidden_size), key=mx.random.key(0)) * _PROBE_SCALE
        probe = states.astype(self._dtype)
        own, output = taps.head(probe).astype(mx.float32), project(probe).astype(mx.float32)
        allowed = _TOLERANCE * mx.abs(own).max()
        return any(
            output.shape == own.shape and bool(mx.abs(made - own).max() <= allowed)
            for made in (output, self._restated(output))
        )


def _bare_head(target: Any) -> nn.Module | None:
    """The module whose matrix makes the logits, the embedding of a tied target; None when it is of no known kind."""
    outer, inner = head_and_inner(target)
    bare = outer["lm_head"] if "lm_head" in outer else inner["embed_tokens"]
    known = (nn.Linear, nn.QuantizedLinear, nn.Embedding, nn.QuantizedEmbedding)
    return bare if isinstance(bare, known) else None


def _projection(head: Any) -> Projection:
    project: Projection = head.as_linear if hasattr(head, "as_linear") else head
    return project


def _gathered(head: Any, ids: Tokens) -> Any:
    """`head` with the rows `ids` alone, padded to a multiple of ROW_MULTIPLE; quantisation groups lie within a row."""
    padded = mx.array(np.concatenate([ids, np.repeat(ids[:1], -len(ids) % _ROW_MULTIPLE)]))
    twin = copy.copy(head)
    for name, value in head.items():
        if isinstance(value, mx.array):
            twin[name] = value[padded]
    return twin


def _draft_vocabulary(ids: Sequence[int], addressable: int | None, rows: int) -> Tokens:
    """The ids that may be guessed, ascending. Raises ModelError when the target has no such token, or none is left."""
    chosen = np.unique(np.asarray(ids, dtype=np.int64))
    if len(chosen) and not 0 <= chosen[0] <= chosen[-1] < rows:
        raise ModelError(f"draft vocabulary: ids from {chosen[0]} to {chosen[-1]}; the target has 0 to {rows - 1}")
    chosen = chosen[: None if addressable is None else int(np.searchsorted(chosen, addressable))]
    if not len(chosen):
        raise ModelError("draft vocabulary: no id that the tokenizer knows")
    return chosen
