"""Handing a pass to the device piece by piece, so that it works on the first decoder blocks while Python builds more.

MLX computes nothing of a graph before it is asked to, and Python builds the graph of a large model for half as long as
a GPU needs for the pass. Nothing else changes: the operations are the same, and each runs once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from worker.engine.verify.adapters.in_place import extend
from worker.engine.verify.taps import head_and_inner

PIECES = 9
"""Of a pass, the rest included. Where the device waits for the host, each hand-over may cost more than it saves;
`bench.hybrid_passes --pieces` times other numbers."""

_thread = threading.local()


def divide(model: Any, pieces: int = PIECES) -> list[int]:
    """Let passes of `model` within `submitting` be handed over in up to `pieces` pieces, the last of which is the rest.

    Returns the decoder blocks after which a piece ends: the first, so that the device has something to do at once, and
    every so many after it. There are none for one piece, and in a model that runs its blocks in another way than `taps`
    knows.
    """
    try:
        blocks = head_and_inner(model)[1].layers if isinstance(model, nn.Module) else []
    except ValueError:
        blocks = []
    ends = list(range(0, len(blocks) - 1, max(1, -(-len(blocks) // (pieces - 1))))) if pieces > 1 else []
    for end in ends:
        extend(blocks[end], _EndOfPiece)
    return ends


@contextmanager
def submitting(pieces: int) -> Iterator[None]:
    """Hand over the first `pieces` pieces of the pass that runs within, each as soon as it is built."""
    _thread.left = pieces
    try:
        yield
    finally:
        _thread.left = 0


def pieces_of_prefill(ends: Sequence[int], caches: int) -> int:
    """How many of the pieces that `divide` made are computed anyway when nothing but the caches is asked for.

    caches: how many the model has. Where the last blocks read the caches of others, as in Gemma 3n, nobody needs what
    they put out. A block is needed whose number is below that of some block with a cache of its own.
    """
    return sum(end + 1 < caches for end in ends)


class _EndOfPiece:
    """A decoder block whose output, and so all before it, is computed from when it is built."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        output = super().__call__(*args, **kwargs)  # type: ignore[misc]
        left = getattr(_thread, "left", 0)
        if left:
            _thread.left = left - 1
            _submit(output[0] if isinstance(output, tuple) else output)
        return output


def _submit(output: Any) -> None:
    try:
        mx.async_eval(output)  # type: ignore[no-untyped-call]
    except ValueError:  # the model compiles its blocks: within that there is nothing to compute yet
        _thread.left = 0
