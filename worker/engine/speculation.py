"""Speculation: whether to draft at all, what of a draft to verify, and what a round's outcome teaches."""

from __future__ import annotations

from collections.abc import Sequence

from worker.engine.budget import Budget
from worker.engine.calibration import Calibration
from worker.engine.draft_cost import DraftCost
from worker.engine.drafters.guide import Mode
from worker.engine.drafters.protocol import Asked
from worker.engine.panel import Panel
from worker.engine.tree import TokenTree

# A drafter that is probed takes the place of others that are as good only when it is better by this.
SWAP_MARGIN = 1.05


class Speculation:
    """The economy of one drafter, or of the drafters of a mixture, against one target on this machine.

    A round is `drafts`, `choose` with the draft, or `pass_over` with the root alone, and `learn`. asked: who drafts in
    this round.
    """

    def __init__(
        self,
        budget: Budget,
        calibration: Calibration | None = None,
        costs: dict[int, DraftCost] | None = None,
        *,
        on_device: Sequence[bool] = (False,),
        levels: Sequence[int | None] | None = None,
    ) -> None:
        """costs, on_device, levels: of each drafter, see `Panel`."""
        self.budget = budget
        self.calibration = calibration or Calibration()
        self.panel = Panel(on_device, {} if costs is None else costs, levels)
        self.asked = Asked()
        self._drafts: list[TokenTree] = []

    @property
    def max_nodes(self) -> int:
        return self.budget.max_nodes

    @property
    def needs_state(self) -> bool:
        """Whether the drafter has to know all of the text in this round."""
        return self.panel.needs_state(self.asked)

    def start_request(self, mode: Mode = "greedy") -> None:
        self.calibration.start_request(mode)
        self.panel.start_request()

    @property
    def measuring(self) -> bool:
        """Whether a drafter has to be timed by itself: passes are then not queued ahead of the host."""
        return self.panel.measuring

    def drafts(self, *, beside_pass: bool = False) -> bool:
        """Whether this round should draft. A fixed budget always does. beside_pass: while a pass is under way."""
        asked = Asked() if self.budget.fixed_nodes else self.panel.ask(beside_pass)
        self.asked = asked or Asked()
        return asked is not None

    def choose(
        self, draft: TokenTree, draft_ms: float, *, as_chain: bool = False, beside_pass: bool = False
    ) -> TokenTree:
        """The part of a draft that is worth a pass; the root alone when none is.

        draft_ms: how long drafting took, absorbing included. beside_pass: while a pass was under way. as_chain: only
        chains can be verified. The whole draft is kept: what follows teaches about its every guess.
        """
        self._drafts = [draft]
        charged = self.panel.charge(self.asked, draft, draft_ms, beside_pass)
        chosen = self._best(draft, sum(charged.values()), as_chain)
        if not self.budget.fixed_nodes:
            whole = self.budget.choose_chain(draft) if as_chain else draft
            self.panel.weigh_depths(self.asked, whole, charged, self.budget)
            self._judge(chosen, charged, as_chain)
        return chosen

    def pass_over(self, root: TokenTree) -> TokenTree:
        """A round without a draft: plain decoding."""
        assert len(root) == 1
        self._drafts = [root]
        self.panel.rest()
        return root

    def learn(self, emitted: Sequence[int]) -> None:
        """The tokens that followed the round's root."""
        self.panel.measuring = False
        draft, *others = self._drafts
        for other in others:
            self.calibration.follow(other)
        self.calibration.learn(draft, emitted)

    def _best(self, draft: TokenTree, cost: float, as_chain: bool) -> TokenTree:
        self.calibration.appraise(draft)
        return self.budget.choose_chain(draft, cost) if as_chain else self.budget.choose(draft, cost)

    def _judge(self, chosen: TokenTree, charged: dict[int, float], as_chain: bool) -> None:
        """Let the gates know what the round promises, with each drafter and without it.

        A gate reckons in plain passes, of one token each; here the round without the drafter is what is plain. One that
        is probed may also show that it should take the place of others.
        """
        on_trial = self.panel.on_trial(charged)
        if not on_trial:
            return
        everyone = sum(charged)
        tokens = sum(chosen.values)
        passes = self.budget.plain_passes(len(chosen), sum(charged.values()))
        rates = {everyone: tokens / passes}
        for others in range(1, everyone if len(charged) > 1 else 1):
            if others & everyone == others:
                rates[others] = self._rate_of(others, charged, as_chain)
        for member in on_trial:
            if member.gate.state == "probing":
                best = max(rates[everyone], max(rate for who, rate in rates.items() if who & member.bit) / SWAP_MARGIN)
                rest = max([1.0, *(rate for who, rate in rates.items() if not who & member.bit)])
            else:
                best, rest = rates[everyone], max(1.0, rates.get(everyone & ~member.bit, 1.0))
            if self.panel.record(member, best * passes / rest, passes):
                break

    def _rate_of(self, who: int, charged: dict[int, float], as_chain: bool) -> float:
        """Tokens per plain pass that the round would have promised if only some of its drafters had been asked.

        The guesses of these alone are followed as well: they are worth something else where nobody differs.
        """
        draft = TokenTree(self._drafts[0].tokens[0])
        draft.merge({bit: tree for bit, tree in self.asked.drafts.items() if bit & who})
        self._drafts.append(draft)
        cost = sum(milliseconds for bit, milliseconds in charged.items() if bit & who)
        chosen = self._best(draft, cost, as_chain)
        return sum(chosen.values) / self.budget.plain_passes(len(chosen), cost)
