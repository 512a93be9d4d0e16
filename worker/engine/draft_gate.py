"""The gate before the drafter: a drafter that does not pay is not even run.

          rounds gave less than plain decoding
   open ───────────────────────────────────────> closed <──────────┐
    ^                                              │ pause is over │ it does not pay: the pause doubles
    │                                              v               │
    └────────────────────────────────────────── probing ───────────┘
            the probe's rounds paid

Rounds are judged by what they promised, 1 + sum of the kept nodes' calibrated values: that is learned from outcomes,
and far steadier than the outcomes of a few rounds.
"""

from typing import Literal

# Drafting may cost this share of plain decoding: a drafter that is as good as free should see when text repeats itself.
TOLERANCE = 0.98
# How many rounds the estimate goes back, and as how many neutral ones it begins.
HORIZON = 24.0
PRIOR_ROUNDS = 8.0
PROBE_ROUNDS = 4
FIRST_PAUSE = 16
LONGEST_PAUSE = 256

State = Literal["open", "closed", "probing"]


class DraftGate:
    """Decides once a round whether to draft. Tokens and costs are in units of plain passes, one token each."""

    def __init__(self) -> None:
        self.state: State = "open"
        self._tokens = self._cost = PRIOR_ROUNDS
        self._pause, self._left = FIRST_PAUSE, 0

    def start_request(self) -> None:
        """Another text may suit the drafter better: a closed gate probes soon."""
        self._pause = FIRST_PAUSE
        if self.state == "closed":
            self._left = min(self._left, FIRST_PAUSE)

    def admits(self, *, may_probe: bool = True) -> bool:
        """Whether to draft in this round. may_probe: whether a closed gate may be tried again now.

        Follow a yes with `record`, in every round of a probe, and while the gate is open as often as there is news.
        """
        if self.state != "closed":
            return True
        if self._left > 0:
            self._left -= 1
            return False
        if not may_probe:
            return False
        self.state, self._left = "probing", PROBE_ROUNDS
        self._tokens = self._cost = 0.0
        return True

    def record(self, tokens: float, cost: float) -> None:
        """A round that drafted: the tokens it promises, and its cost, draft included, in plain passes."""
        keep = 1 - 1 / HORIZON
        self._tokens, self._cost = self._tokens * keep + tokens, self._cost * keep + cost
        if self.state == "open":
            if not self._pays:
                self._close(FIRST_PAUSE)
            return
        assert self.state == "probing"
        self._left -= 1
        if self._left == 0:
            if self._pays:
                self._open()
            else:
                self._close(min(2 * self._pause, LONGEST_PAUSE))

    def restart(self) -> None:
        """Something else has changed what drafts are worth: an open gate begins its estimate anew."""
        if self.state == "open":
            self._tokens = self._cost = PRIOR_ROUNDS

    @property
    def _pays(self) -> bool:
        return self._tokens >= TOLERANCE * self._cost

    def _open(self) -> None:
        self.state = "open"
        self._tokens, self._cost = self._tokens + PRIOR_ROUNDS, self._cost + PRIOR_ROUNDS

    def _close(self, pause: int) -> None:
        self.state, self._pause, self._left = "closed", pause, pause
