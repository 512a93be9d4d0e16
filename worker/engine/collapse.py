"""Collapse of acceptance: the target no longer takes what the drafter proposes."""

from collections import deque

WINDOW = 64
THRESHOLD = 0.1


class AcceptanceWindow:
    """Drafted and accepted tokens of the latest passes, just as many passes as it takes for 64 drafted tokens.

    A pass without a draft says nothing and is left out.
    """

    def __init__(self) -> None:
        self._passes: deque[tuple[int, int]] = deque()
        self._drafted = 0
        self._accepted = 0

    def count(self, drafted: int, accepted: int) -> None:
        """Take the next pass."""
        if drafted:
            self._passes.append((drafted, accepted))
            self._drafted += drafted
            self._accepted += accepted
        while self._passes and self._drafted - self._passes[0][0] >= WINDOW:
            oldest_drafted, oldest_accepted = self._passes.popleft()
            self._drafted -= oldest_drafted
            self._accepted -= oldest_accepted

    @property
    def collapsed(self) -> bool:
        """Whether less than a tenth of at least 64 drafted tokens was accepted."""
        return self._drafted >= WINDOW and self._accepted / self._drafted < THRESHOLD
