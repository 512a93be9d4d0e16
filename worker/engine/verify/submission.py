"""Handing a pass to the device piece by piece, so that it works on the first decoder blocks while Python builds more.

MLX computes nothing of a graph before it is asked to, and Python builds the graph of a large model for as long as a
fast GPU needs for the pass, or longer. Nothing else changes: the operations are the same, and each runs once.
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

MOST_BLOCKS = 8
"""Of a piece. `bench.pass_pieces` times other sizes: on an H200, which waits for its host anyway, 16 took no longer.
The slower a GPU is beside its host, the more it matters how soon it gets its second piece."""

_thread = threading.local()


def divide(model: Any, most_blocks: int = MOST_BLOCKS) -> list[int]:
    """Let passes of `model` within `submitting` be handed over in pieces of up to `most_blocks` decoder blocks.

    Returns the blocks after which a piece ends; what follows the last of them is the rest. The first piece is one
    block, so that the device has something to do at once. Towards the end each is half of what is left: the host waits
    for what it handed over last, and that is short. There are none for `most_blocks` of 0, and in a model that runs its
    blocks in another way than `taps` knows.
    """
    try:
        blocks = head_and_inner(model)[1].layers if isinstance(model, nn.Module) else []
    except ValueError:
        blocks = []
    ends = list(_ends(len(blocks), most_blocks)) if most_blocks > 0 else []
    for end in ends:
        extend(blocks[end], _EndOfPiece)
    return ends


def _ends(blocks: int, most_blocks: int) -> Iterator[int]:
    end, last = 0, blocks - 1
    while end < last:
        yield end
        end += min(most_blocks, -(-(last - end) // 2))


@contextmanager
def submitting(pieces: int) -> Iterator[None]:
    """Hand over the first `pieces` of those that `divide` made, of the pass that runs within, each once it is built."""
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
