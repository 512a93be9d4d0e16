"""The panel: who is asked for guesses. Each drafter of a mixture has a gate and a cost of its own.

A drafter keeps its place by what drafts are worth with it and without it; a drafter alone competes with plain decoding.
So one that does not pay is not run, and takes nothing from those that do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from worker.engine.budget import Budget
from worker.engine.draft_cost import DraftCost
from worker.engine.draft_depth import DraftDepth
from worker.engine.draft_gate import DraftGate
from worker.engine.drafters.protocol import ALL, Asked
from worker.engine.tree import PROPOSERS, TokenTree

JUDGED_EVERY = 4


class Member:
    """One drafter. on_device: it computes where the target does, so a pass that is under way hides none of its time.

    depth: how deep it should draft, None where that costs nothing.
    """

    def __init__(self, bit: int, cost: DraftCost, on_device: bool, levels: int | None) -> None:
        self.bit, self.cost, self.on_device = bit, cost, on_device
        self.depth = None if levels is None else DraftDepth(levels)
        self.gate = DraftGate()
        self.rested = False

    def charge(self, passes: int, milliseconds: float, beside_pass: bool) -> float:
        """Milliseconds that a round waits for a draft of `passes` passes. Beside another they cannot be told from its.

        The first draft after rounds without one takes longer, as the drafter has to absorb all of their tokens. That
        says nothing of drafting round after round: it teaches nothing, and what other drafts take is charged.
        """
        rested, self.rested = self.rested, False
        if beside_pass:
            return self.cost.typical(passes) if self.on_device else 0.0
        return self.cost.typical(passes) if rested else self.cost.learn(passes, milliseconds)


class Panel:
    """measuring: whether this round drafts, or would, on the device for a time that is not known yet."""

    def __init__(
        self, on_device: Sequence[bool], costs: dict[int, DraftCost], levels: Sequence[int | None] | None = None
    ) -> None:
        """on_device, levels: of each drafter, in the order of their bits. costs: known ones, by bit; kept up to date.

        levels: see `Drafter.levels`; None for none.
        """
        self.measuring = False
        self.costs = costs
        kinds = zip(on_device, levels or [None] * len(on_device), strict=True)
        self.members = [
            Member(1 << number, costs.setdefault(1 << number, DraftCost()), *kind) for number, kind in enumerate(kinds)
        ]
        self._rounds = 0

    def start_request(self) -> None:
        # A prompt is absorbed as it is prefilled.
        for member in self.members:
            member.rested = False
            member.gate.start_request()

    def ask(self, beside_pass: bool = False) -> Asked | None:
        """Who drafts in this round: those whose gates are open, and one at most that is probed; None when nobody.

        beside_pass: while a pass is under way, so that a draft on the device cannot be timed. One that takes nobody
        knows how long has to wait; see `measuring`.
        """
        self.measuring = False
        probed = any(member.gate.state == "probing" for member in self.members)
        bits = 0
        for member in self.members:
            if not member.gate.admits(may_probe=not probed):
                continue
            probed = probed or member.gate.state == "probing"
            unknown = member.on_device and not member.cost.is_known
            self.measuring = self.measuring or unknown
            if not (unknown and beside_pass):
                bits |= member.bit
        return self._asked(bits) if bits else None

    def needs_state(self, asked: Asked) -> bool:
        """Whether somebody is asked who may keep a state of the text."""
        return len(self.members) == 1 or any(member.on_device for member in self._among(asked))

    def rest(self) -> None:
        """A round in which nobody drafts."""
        for member in self.members:
            member.rested = True

    def charge(self, asked: Asked, draft: TokenTree, draft_ms: float, beside_pass: bool) -> dict[int, float]:
        """What the round waits for each drafter that was asked, by bit. draft_ms: what all of it took."""
        members = self._among(asked)
        for member in self.members:
            member.rested = member.rested or member not in members
        # What no drafter took by itself is absorbing, and that is for those that keep a state.
        absorbing = [member for member in members if member.on_device] or members
        rest = (draft_ms - sum(asked.spent_ms.values())) / len(absorbing)
        charged = {}
        for member in members:
            passes = asked.drafts.get(member.bit, draft).passes
            own = asked.spent_ms.get(member.bit, 0.0) + (rest if member in absorbing else 0.0)
            charged[member.bit] = member.charge(passes, own, beside_pass)
        return charged

    def on_trial(self, charged: Mapping[int, float]) -> list[Member]:
        """Whose gates this round is for: the one that is probed, else all that were asked, the dearest first.

        To tell several apart takes the host half a millisecond, so it is done in some rounds only.
        """
        members = [member for member in self.members if member.bit in charged]
        probed = [member for member in members if member.gate.state == "probing"]
        if probed:
            return probed
        if len(members) > 1:
            self._rounds += 1
            if self._rounds % JUDGED_EVERY:
                return []
        return sorted(members, key=lambda member: -charged[member.bit])

    def weigh_depths(self, asked: Asked, tree: TokenTree, charged: Mapping[int, float], budget: Budget) -> None:
        """Learn what each level is worth. tree: the draft, appraised; a path of it where only chains are verified."""
        for member in self._among(asked):
            if member.depth is None or not member.cost.samples:
                continue
            passes = asked.drafts.get(member.bit, tree).passes
            alone = [source & PROPOSERS == member.bit for source in tree.sources]
            ranks = [depth if own else 0 for depth, own in zip(tree.depths, alone, strict=True)]
            others = sum(charged.values()) - charged[member.bit]
            deepest = asked.depths.get(asked.bits if len(self.members) == 1 else member.bit, member.depth.levels)
            own_ms = [member.cost.typical(min(level, passes)) for level in range(1, deepest + 1)]
            member.depth.record(budget.promises(tree, ranks, [others, *(others + ms for ms in own_ms)]))

    def record(self, member: Member, tokens: float, cost: float) -> bool:
        """Let the gate of `member` take a round; whether it opened or closed, and the others are judged anew."""
        was = member.gate.state
        member.gate.record(tokens, cost)
        if member.gate.state == was:
            return False
        for other in self.members:
            if other is not member:
                other.gate.restart()
        return True

    def _among(self, asked: Asked) -> list[Member]:
        return [member for member in self.members if member.bit & asked.bits]

    def _asked(self, bits: int) -> Asked:
        """A drafter alone knows no bits."""
        alone = len(self.members) == 1
        depths = {
            ALL if alone else member.bit: member.depth.next()
            for member in self.members
            if member.depth is not None and member.bit & bits
        }
        return Asked(ALL if alone else bits, depths)
