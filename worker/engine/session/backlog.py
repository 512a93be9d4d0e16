"""Backlog: what the target's cache holds and the drafter has not absorbed yet.

A drafter is brought up to date when it drafts. While it does not pay it is not run, and this is what it will have to
look at if it is asked again.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx


class Backlog:
    """Committed tokens in order, with their rows of the drafter's taps where it has any."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._rows: list[mx.array] = []

    def __len__(self) -> int:
        """How many tokens wait."""
        return len(self._tokens)

    @property
    def has_rows(self) -> bool:
        """Whether hidden states wait as well, which take memory."""
        return bool(self._rows)

    def note(self, tokens: Sequence[int], hidden: mx.array | None) -> None:
        """`tokens` [n] wait as well, with their rows `hidden` [n, width]."""
        if not tokens:
            return
        self._tokens.extend(tokens)
        if hidden is not None:
            assert hidden.shape[0] == len(tokens)
            # A row that is not computed holds on to all of the pass that it comes from.
            mx.async_eval(hidden)  # type: ignore[no-untyped-call]
            self._rows.append(hidden)

    def take(self) -> tuple[list[int], mx.array | None]:
        """All that waits, as `note` takes it; nothing waits afterwards."""
        tokens, rows = self._tokens, self._rows
        self._tokens, self._rows = [], []
        return tokens, mx.concatenate(rows) if rows else None

    def cut(self, count: int) -> None:
        """Keep the first `count` tokens."""
        if count < len(self):
            tokens, hidden = self.take()
            self.note(tokens[:count], None if hidden is None else hidden[:count])
