"""Settings of a block drafter that its checkpoint does not fix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from worker.engine.drafters.options import Options

BlockMask = Literal["checkpoint", "causal", "bidirectional"]

MOST_SLOTS = 64
_BITS: dict[str, Literal[4, 8]] = {"4": 4, "8": 8}


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

    @classmethod
    def asked(cls, options: Options, tokenizer: Any, addressable: int) -> DFlashSettings:
        """What a user asked for: bits, mask, block, and of the vocabulary a number of tokens. Raises ModelError.

        Tokenizers number their tokens about as often as they occur, so the first so many are guessed from, and those
        that were added to them, such as the ends of texts and of turns.
        """
        count = options.integer("vocabulary", 0, 1, addressable)
        added = [token for token in tokenizer.added_tokens_decoder if token < addressable]
        return cls(
            block_size=options.integer("block", 0, 2, MOST_SLOTS) or None,
            mask=options.choice("mask", get_args(BlockMask)) or "checkpoint",
            bits=_BITS.get(options.choice("bits", tuple(_BITS)) or ""),
            vocabulary=sorted({*range(count), *added}) if count else None,
            addressable=addressable,
        )

    def __post_init__(self) -> None:
        assert self.block_size is None or self.block_size >= 2
        assert 0 < self.min_value < 1
