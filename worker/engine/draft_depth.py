"""How deep a drafter drafts that pays for every level of its tree with a pass of its own.

Level l adds g_l tokens to what a round promises, the calibrated values of the nodes worth verifying there, and k_l
milliseconds, its own pass and what the verification of its nodes takes more. Both are running means over drafts. The
depth d that drafts most tokens per millisecond is

    argmax over d of (1 + g_1 + ... + g_d) / (c(1) + k_1 + ... + k_d)

with, in place of one token and c(1), what the round promises and takes without this drafter. Levels that no draft has
are not seen, so now and then a draft may be deeper.
"""

from __future__ import annotations

from collections.abc import Sequence

# How many drafts the means go back.
HORIZON = 32.0
# Every so many drafts may be twice as deep as is best: what lies below may be worth more in this text.
DEEPER_EVERY = 16


class DraftDepth:
    """levels: passes that a draft takes at most, one for each level."""

    def __init__(self, levels: int) -> None:
        self.levels = levels
        self._tokens = [0.0] * (levels + 1)
        self._milliseconds = [0.0] * (levels + 1)
        self._weights = [0.0] * (levels + 1)
        self._drafts = 0

    def next(self) -> int:
        """How many levels the next draft may have; at first all."""
        self._drafts += 1
        best = self.best
        return min(self.levels, 2 * best) if self._drafts % DEEPER_EVERY == 0 else best

    def record(self, promised: Sequence[tuple[float, float]]) -> None:
        """Tokens and milliseconds of a round whose draft is cut after 0, 1, 2... levels, as many as it might have."""
        assert 2 <= len(promised) <= self.levels + 1
        keep = 1 - 1 / HORIZON
        for sums in (self._tokens, self._milliseconds, self._weights):
            sums[:] = [kept * keep for kept in sums]
        before = (0.0, 0.0)
        for level, (tokens, milliseconds) in enumerate(promised):
            self._tokens[level] += tokens - before[0]
            self._milliseconds[level] += milliseconds - before[1]
            self._weights[level] += 1
            before = (tokens, milliseconds)

    @property
    def best(self) -> int:
        """The depth of most tokens per millisecond, of those that were seen."""
        tokens = milliseconds = highest = 0.0
        best = self.levels
        for level, weight in enumerate(self._weights):
            if not weight:
                break
            tokens += self._tokens[level] / weight
            milliseconds += self._milliseconds[level] / weight
            if level and tokens > highest * milliseconds:
                best, highest = level, tokens / milliseconds
        return best
