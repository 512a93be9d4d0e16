"""Draft cost: how long a drafter takes, learned while it drafts."""

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

REMEMBERED = 33
# So many times tell what a draft takes.
ENOUGH = 4


class DraftCost:
    """Running medians of the milliseconds that a draft took, by the nodes it had: a hiccup of the host moves none.

    What counts is all that a round with a draft takes longer than one without: that the drafter absorbs the tokens of
    the round before, which is a pass of a draft model, and that it guesses.
    """

    def __init__(self, remembered: Mapping[int, Sequence[float]] | None = None) -> None:
        """remembered: `samples` of an earlier process."""
        self._samples = {nodes: deque(times, REMEMBERED) for nodes, times in (remembered or {}).items() if times}
        self._is_warm = False

    def learn(self, nodes: int, milliseconds: float) -> float:
        """Take the time of a draft of `nodes` nodes; returns the typical one.

        The first draft of a process compiles kernels, so its time is left out.
        """
        if self._is_warm:
            self._samples.setdefault(nodes, deque(maxlen=REMEMBERED)).append(milliseconds)
        self._is_warm = True
        return self.typical(nodes)

    def typical(self, nodes: int) -> float:
        """Milliseconds of a draft of about `nodes` nodes; 0 while nothing is known."""
        if not self._samples:
            return 0.0
        return median(self._samples[min(self._samples, key=lambda known: (abs(known - nodes), known))])

    @property
    def is_known(self) -> bool:
        """Whether enough drafts were timed to go by."""
        return sum(map(len, self._samples.values())) >= ENOUGH

    @property
    def samples(self) -> dict[int, list[float]]:
        """The latest times, by nodes."""
        return {nodes: list(times) for nodes, times in sorted(self._samples.items())}
