"""Draft cost: how long a drafter takes, learned while it drafts."""

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

REMEMBERED = 33
# So many times tell what a draft takes.
ENOUGH = 4


class DraftCost:
    """Running medians of the milliseconds that a draft took, by the drafter's passes: a hiccup of the host moves none.

    What counts is all that a round with a draft takes longer than one without: that the drafter absorbs the tokens of
    the round before, which is a pass of a draft model, and that it guesses.
    """

    def __init__(self, remembered: Mapping[int, Sequence[float]] | None = None) -> None:
        """remembered: `samples` of an earlier process."""
        self._samples = {passes: deque(times, REMEMBERED) for passes, times in (remembered or {}).items() if times}
        self._medians = {passes: median(times) for passes, times in sorted(self._samples.items())}
        self._is_warm = False

    def learn(self, passes: int, milliseconds: float) -> float:
        """Take the time of a draft that took the drafter `passes` passes; returns the typical one.

        The first draft of a process compiles kernels, so its time is left out.
        """
        if self._is_warm:
            times = self._samples.setdefault(passes, deque(maxlen=REMEMBERED))
            times.append(milliseconds)
            self._medians = dict(sorted((self._medians | {passes: median(times)}).items()))
        self._is_warm = True
        return self.typical(passes)

    def typical(self, passes: int) -> float:
        """Milliseconds of a draft of `passes` passes; 0 while nothing is known.

        Between known numbers of passes, and none, it is linear; beyond them a pass takes what it does on average.
        """
        known = {0: 0.0} | self._medians
        below = max(number for number in known if number <= passes)
        above = min((number for number in known if number > passes), default=below)
        if below == passes or above == below:
            return known[below] * (passes / below if below else 1.0)
        return known[below] + (known[above] - known[below]) * (passes - below) / (above - below)

    @property
    def is_known(self) -> bool:
        """Whether enough drafts were timed to go by."""
        return sum(map(len, self._samples.values())) >= ENOUGH

    @property
    def samples(self) -> dict[int, list[float]]:
        """The latest times, by passes."""
        return {passes: list(times) for passes, times in sorted(self._samples.items())}
