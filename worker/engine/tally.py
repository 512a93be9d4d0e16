"""Tally: what is counted of a request as it goes, and the statistics made of it."""

from dataclasses import dataclass, field
from typing import Any

from api.acceptance import AcceptanceRule
from api.schemas import JobStats
from worker.engine.collapse import AcceptanceWindow
from worker.engine.completion import Completion
from worker.engine.repetition import longest_repeat, repeated_share
from worker.engine.stopwatch import Stopwatch
from worker.engine.tree import TokenTree


@dataclass
class Tally:
    """Counts of one request, over its completions. acceptance: the rule of the request.

    drafted: nodes that were verified, without the roots, which are no guesses. What was accepted is counted in the
    texts, so nothing counts that a stop has cut off.
    """

    acceptance: AcceptanceRule = field(default_factory=AcceptanceRule)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    completions: list[Completion] = field(default_factory=list)
    ttft_ms: float | None = None
    first_pass_tokens: int | None = None
    passes: int = 0
    drafted: int = 0
    collapsed_at: int | None = None
    budgets: dict[int, int] = field(default_factory=dict)
    window: AcceptanceWindow = field(default_factory=AcceptanceWindow)

    @property
    def completion_tokens(self) -> int:
        return sum(len(completion.tokens) for completion in self.completions)

    @property
    def forced(self) -> int:
        """Tokens accepted against the target's draw."""
        return sum(completion.origins.count("forced") for completion in self.completions)

    @property
    def accepted(self) -> int:
        """Drafted tokens in the texts, the forced ones too."""
        return self.forced + sum(completion.origins.count("accepted") for completion in self.completions)

    def count_pass(self, tree: TokenTree, accepted: int) -> None:
        """Count a pass, before its tokens join the completion. accepted: nodes, without the root."""
        self.passes += 1
        self.drafted += len(tree) - 1
        self.budgets[len(tree)] = self.budgets.get(len(tree), 0) + 1
        self.window.count(len(tree) - 1, accepted)
        if self.collapsed_at is None and self.window.collapsed:
            self.collapsed_at = self.completion_tokens

    def tokens_arrived(self) -> None:
        """A pass has come home; the first one ends the time to first token."""
        if self.ttft_ms is None:
            self.ttft_ms = self.stopwatch.elapsed_ms()

    def tokens_taken(self) -> None:
        """The tokens of the pass are in the completion."""
        if self.first_pass_tokens is None:
            self.first_pass_tokens = self.completion_tokens

    def stats(self, **facts: Any) -> JobStats:
        """The statistics of a finished request; `facts` are JobStats fields that the engine knows."""
        wall_ms = self.stopwatch.elapsed_ms()
        decode_ms = wall_ms - (self.ttft_ms or 0.0)
        tokens = self.completion_tokens
        # A stop may have taken back some of what the first pass brought.
        first = None if self.first_pass_tokens is None else min(self.first_pass_tokens, tokens)
        decodes = first is not None and tokens > first and decode_ms > 0
        return JobStats(
            wall_ms=wall_ms,
            ttft_ms=self.ttft_ms,
            first_pass_tokens=first,
            decode_tps=(tokens - (first or 0)) / decode_ms * 1000 if decodes else None,
            e2e_tps=tokens / wall_ms * 1000 if tokens else None,
            passes=self.passes,
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
            forced_tokens=self.forced,
            acceptance_rule=str(self.acceptance),
            acceptance=self.accepted / self.drafted if self.drafted else None,
            tokens_per_pass=tokens / self.passes if self.passes else None,
            budgets=self.budgets,
            phases=self.stopwatch.phases(wall_ms),
            acceptance_collapsed_at=self.collapsed_at,
            repetition=max((repeated_share(one.tokens) for one in self.completions), default=0.0),
            longest_repeat=max((longest_repeat(one.tokens) for one in self.completions), default=0),
            **facts,
        )
