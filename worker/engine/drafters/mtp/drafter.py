"""The MTP drafter: guesses of the target's own multi-token prediction head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from worker.engine.drafters.expansion import Expansion, expand
from worker.engine.drafters.guide import Guide
from worker.engine.drafters.looking_ahead import looking_ahead
from worker.engine.drafters.mtp.head import MtpHead
from worker.engine.drafters.mtp.manifest import HiddenState
from worker.engine.drafters.mtp.rows import CommittedRows, DraftedRows
from worker.engine.drafters.next_tokens import NextTokens, shortlist
from worker.engine.drafters.protocol import DraftContext, DraftLimits
from worker.engine.tree import TokenTree
from worker.engine.verify.taps import Taps, head_and_inner

EXPANSION = Expansion(depth=3, beam=4, children=4, min_value=0.02)


class MtpDrafter:
    """Its layers hold the head's keys and values, and the hidden states that the target had, a row per token each.

    hidden: which of the target's states the head reads; see `MtpSource.hidden`. vocabulary: ids from here on are never
    guessed, None = all of the target's.
    """

    name = "mtp"

    def __init__(
        self,
        head: MtpHead,
        model: Any,
        *,
        hidden: HiddenState = "normed",
        vocabulary: int | None = None,
        expansion: Expansion = EXPANSION,
    ) -> None:
        self._head, self._vocabulary, self._expansion = head, vocabulary, expansion
        last = len(head_and_inner(model)[1].layers) - 1
        self.taps = Taps(model, normed=True) if hidden == "normed" else Taps(model, blocks=(last,))

    @property
    def levels(self) -> int | None:
        return self._expansion.depth

    def new_cache(self) -> list[Any]:
        return [KVCache(), KVCache()]

    def prefill(self, prompt: Sequence[int]) -> None:
        pass

    def absorb(self, tokens: Sequence[int], hidden: mx.array | None, layers: list[Any]) -> None:
        rows, states = layers
        assert hidden is not None
        assert hidden.shape[0] == len(tokens)
        assert rows.offset == states.offset
        before = _last(states) if states.offset else mx.zeros_like(hidden[:1])
        earlier = mx.concatenate([before, hidden[:-1]])
        # Only its keys and values are wanted; what else the pass describes is never computed.
        self._head(self.taps.embed(mx.array(list(tokens))), earlier, "causal", CommittedRows(rows))
        states.update_and_fetch(hidden[None, None], mx.zeros((1, 1, len(tokens), 0), dtype=hidden.dtype))
        # Otherwise rounds without a draft would hold on to all that their rows are computed from.
        mx.async_eval(rows.keys, rows.values, states.keys)  # type: ignore[no-untyped-call]

    def draft(self, tree: TokenTree, limits: DraftLimits, context: DraftContext) -> None:
        rows, states = context.layers
        assert rows.offset == states.offset == context.position
        if context.position:  # the first token of all has no hidden state before it
            with looking_ahead([rows]) as (ahead,):
                guide, drafted = context.guide, DraftedRows(ahead)
                draft = _Draft(self._head, self.taps, self._vocabulary, guide, drafted, _last(states))
                expand(tree, limits, self._expansion, guide, draft.follow)

    def commit(self, tokens: Sequence[int]) -> None:
        pass


class _Draft:
    """The passes of one draft. hidden: [1, H], the target's state of the token before the root."""

    def __init__(
        self, head: MtpHead, taps: Taps, vocabulary: int | None, guide: Guide, rows: DraftedRows, hidden: mx.array
    ) -> None:
        self._head, self._taps, self._vocabulary, self._guide, self._rows = head, taps, vocabulary, guide, rows
        # What each node's children read in place of the target's state; the root, node 0, is the child of -1.
        self._outputs = {-1: hidden}

    def follow(self, grown: TokenTree, level: Sequence[int]) -> list[NextTokens]:
        """What the head expects after each node of `level`."""
        mask = self._rows.begin_level(grown, level)
        embedded = self._taps.embed(mx.array([grown.tokens[node] for node in level]))
        hidden = mx.concatenate([self._outputs[grown.parents[node]] for node in level])
        outputs = self._head(embedded, hidden, mask, self._rows)
        self._outputs |= {node: outputs[place : place + 1] for place, node in enumerate(level)}
        logits = self._taps.head(outputs)[:, : self._vocabulary]
        return shortlist(self._guide.processed(logits, grown, level))


def _last(states: KVCache) -> mx.array:
    """The hidden state [1, H] of the last committed token."""
    row: mx.array = states.keys[0, 0, states.offset - 1 : states.offset]
    return row
