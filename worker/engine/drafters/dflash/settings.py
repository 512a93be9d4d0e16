"""Settings of a block drafter that its checkpoint does not fix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

BlockMask = Literal["checkpoint", "causal", "bidirectional"]


@dataclass(frozen=True)
class DFlashSettings:
    """block_size: slots of a block, the pending token's included; None = the checkpoint's.

    mask: what a slot sees of its own block; "checkpoint" goes by the checkpoint's config. bits: quantise the matrices
    of the network at load. embedding_scale: of the block's embeddings; None = as the target scales its own.
    vocabulary: ids that may be guessed; None = all. addressable: ids from here on are never guessed; None = all may be.
    children: guesses below one node at most. min_value: a guess needs this chance to be accepted, as the drafter sees
    it.
    """

    block_size: int | None = None
    mask: BlockMask = "checkpoint"
    bits: Literal[4, 8] | None = None
    embedding_scale: float | None = None
    vocabulary: Sequence[int] | None = None
    addressable: int | None = None
    children: int = 6
    min_value: float = 0.02

    def __post_init__(self) -> None:
        assert self.block_size is None or self.block_size >= 2
        assert 0 < self.min_value < 1
