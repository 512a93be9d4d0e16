"""Taps: hidden states of the target that its drafters read, and the target's own embedding and head.

mlx-lm's models have decoder blocks in `layers`, and an inner module that embeds tokens, runs the blocks and norms their
output; the module around it applies the head. Both are tapped by exchanging their class, so no forward pass is
rewritten, and outside a recording everything runs as before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from worker.engine.verify.adapters.in_place import extend

_thread = threading.local()


class Taps:
    """blocks: which decoder blocks' outputs (residual stream, before any later norm) to record, in this order.

    normed: record the output of the final norm as well, after the blocks. `hidden` holds the rows of the latest pass.
    """

    def __init__(self, model: Any, blocks: Sequence[int] = (), normed: bool = False) -> None:
        self._model = model
        self._head_module, self._inner = head_and_inner(model)
        blocks_of_model = self._inner.layers
        for block in blocks:
            if not 0 <= block < len(blocks_of_model):
                raise ValueError(f"the target has no decoder block {block}: it has {len(blocks_of_model)}")
        self._order: list[Any] = [blocks_of_model[block] for block in blocks]
        for module in self._order:
            extend(module, _TappedBlock)
        extend(self._inner, _TappedInner)
        if normed:
            self._order.append(self._inner)
        self.hidden: mx.array | None = None

    @property
    def states(self) -> int:
        """How many hidden states a row holds, one after the other."""
        return len(self._order)

    def joined(self, *others: Taps) -> Taps:
        """Taps of the same target that record what all of them do, one after the other."""
        assert all(other._model is self._model for other in others)
        whole = Taps(self._model)
        whole._order = [module for taps in (self, *others) for module in taps._order]
        return whole

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the pass that runs within; `hidden` is then [N, states * hidden size], lazy."""
        assert getattr(_thread, "recorded", None) is None
        recorded: dict[int, mx.array | None] = {id(module): None for module in self._order}
        _thread.recorded = recorded
        try:
            yield
        finally:
            _thread.recorded = None
        self.hidden = mx.concatenate([_rows(recorded[id(module)]) for module in self._order], axis=-1)

    def check(self) -> None:
        """Raises ValueError where a pass of the model does not put out a row per token wherever it is tapped."""
        with self.recording():
            self._model(mx.array([[0]]), cache=make_prompt_cache(self._model))

    def embed(self, tokens: mx.array) -> mx.array:
        """The target's embeddings of tokens [N], unscaled: [N, hidden size]."""
        embedded: mx.array = self._inner.embed_tokens(tokens)
        return embedded

    def head(self, hidden: mx.array) -> mx.array:
        """The target's logits [N, vocabulary] of normed hidden states [N, hidden size], scaled and capped as its."""
        _thread.override = hidden[None]
        try:
            logits: mx.array = self._head_module(mx.zeros((1, hidden.shape[0]), dtype=mx.int32))
        finally:
            _thread.override = None
        return logits[0]


def head_and_inner(model: Any) -> tuple[Any, Any]:
    """The module that applies the head, and the module within it that runs the blocks.

    Raises ValueError for a model that is built otherwise.
    """
    outer = model
    while True:
        inner = next((outer[name] for name in ("language_model", "model") if name in outer), None)
        if inner is None:
            raise ValueError("this model has no inner module that embeds tokens and runs decoder blocks")
        if "embed_tokens" in inner and isinstance(inner.get("layers"), list):
            return outer, inner
        outer = inner


def _rows(output: mx.array | None) -> mx.array:
    """The rows [N, hidden size] of what a tapped module put out in a pass over N tokens."""
    if output is None:
        raise ValueError("this model runs the parts of its decoder blocks one by one, and no block as a whole")
    if output.ndim != 3:
        raise ValueError("the decoder blocks of this model put out several streams of hidden states, not one")
    rows: mx.array = output[0]
    return rows


class _TappedBlock:
    """A decoder block whose output is recorded."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        output = super().__call__(*args, **kwargs)  # type: ignore[misc]
        recorded = getattr(_thread, "recorded", None)
        if recorded is not None and id(self) in recorded:
            recorded[id(self)] = output[0] if isinstance(output, tuple) else output
        return output


class _TappedInner(_TappedBlock):
    """The inner module: its normed output is recorded, or replaced when only the head is asked for."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        override = getattr(_thread, "override", None)
        return super().__call__(*args, **kwargs) if override is None else override
