"""Speculation: whether to draft at all, what of a draft to verify, and what a round's outcome teaches."""

from __future__ import annotations

from collections.abc import Sequence

from worker.engine.budget import Budget
from worker.engine.calibration import Calibration
from worker.engine.draft_cost import DraftCost
from worker.engine.draft_gate import DraftGate
from worker.engine.tree import TokenTree


class Speculation:
    """The economy of one drafter against one target on this machine.

    A round is `drafts`, `choose` with the draft, or with the root alone where nothing was drafted, and `learn`.
    """

    def __init__(
        self,
        budget: Budget,
        calibration: Calibration | None = None,
        cost: DraftCost | None = None,
        *,
        on_device: bool = False,
    ) -> None:
        """on_device: the drafter computes where the target does, so a pass that is under way hides none of its time."""
        self.budget = budget
        self._on_device = on_device
        self.calibration = calibration or Calibration()
        self.cost = cost or DraftCost()
        self.gate = DraftGate()
        self._draft: TokenTree | None = None
        self._passed_over = False

    @property
    def max_nodes(self) -> int:
        return self.budget.max_nodes

    def start_request(self) -> None:
        self._passed_over = False
        self.calibration.start_request()
        self.gate.start_request()

    def drafts(self) -> bool:
        """Whether this round should draft. A fixed budget always does."""
        return bool(self.budget.fixed_nodes) or self.gate.admits()

    def choose(
        self, draft: TokenTree, draft_ms: float, *, as_chain: bool = False, beside_pass: bool = False
    ) -> TokenTree:
        """The part of a draft that is worth a pass; the root alone when none is.

        draft_ms: how long drafting took, absorbing included. beside_pass: while a pass was under way. as_chain: only
        chains can be verified. The whole draft is kept: what follows teaches about its every guess.
        """
        self._draft = draft
        self.calibration.appraise(draft)
        cost = self._charged(len(draft), draft_ms, beside_pass)
        self._passed_over = False
        chosen = self.budget.choose_chain(draft, cost) if as_chain else self.budget.choose(draft, cost)
        if not self.budget.fixed_nodes:
            self.gate.record(sum(chosen.values), self.budget.plain_passes(len(chosen), cost))
        return chosen

    def pass_over(self, root: TokenTree) -> TokenTree:
        """A round without a draft: plain decoding."""
        assert len(root) == 1
        self._draft, self._passed_over = root, True
        return root

    def learn(self, emitted: Sequence[int]) -> None:
        """The tokens that followed the round's root."""
        assert self._draft is not None
        self.calibration.learn(self._draft, emitted)

    def _charged(self, nodes: int, draft_ms: float, beside_pass: bool) -> float:
        """Milliseconds that the round waits for its draft. Beside a pass they cannot be told from its own.

        The first draft after rounds without one takes longer, as the drafter has to absorb all of their tokens. That
        says nothing of drafting round after round: it teaches nothing, and what other drafts take is charged.
        """
        if beside_pass:
            return self.cost.typical(nodes) if self._on_device else 0.0
        return self.cost.typical(nodes) if self._passed_over else self.cost.learn(nodes, draft_ms)
