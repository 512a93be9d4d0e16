"""Tally: what a generation counts as it goes, and the statistics made of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from api.schemas import JobStats
from worker.engine.stopwatch import Stopwatch
from worker.engine.tree import TokenTree

REPEATED_NGRAM = 6


@dataclass
class Tally:
    """Counts of one generation. `accepted` and `drafted` leave the root out: it is no guess."""

    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    ttft_ms: float | None = None
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    budgets: dict[int, int] = field(default_factory=dict)

    def count_pass(self, tree: TokenTree, accepted: int) -> None:
        self.passes += 1
        self.drafted += len(tree) - 1
        self.accepted += accepted
        self.budgets[len(tree)] = self.budgets.get(len(tree), 0) + 1

    def first_token(self) -> None:
        if self.ttft_ms is None:
            self.ttft_ms = self.stopwatch.elapsed_ms()

    def stats(self, completion: Sequence[int], **facts: Any) -> JobStats:
        """The statistics of a finished generation; `facts` are JobStats fields that the engine knows."""
        wall_ms = self.stopwatch.elapsed_ms()
        decode_ms = wall_ms - (self.ttft_ms or 0.0)
        decodes = len(completion) > 1 and self.ttft_ms is not None and decode_ms > 0
        return JobStats(
            wall_ms=wall_ms,
            ttft_ms=self.ttft_ms,
            decode_tps=(len(completion) - 1) / decode_ms * 1000 if decodes else None,
            e2e_tps=len(completion) / wall_ms * 1000 if completion else None,
            passes=self.passes,
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
            acceptance=self.accepted / self.drafted if self.drafted else None,
            tokens_per_pass=len(completion) / self.passes if self.passes else None,
            budgets=self.budgets,
            phases=self.stopwatch.phases(wall_ms),
            repetition=repeated_share(completion),
            **facts,
        )


def repeated_share(tokens: Sequence[int], size: int = REPEATED_NGRAM) -> float:
    """Share of n-grams that occurred before: 0 for text without repetition, near 1 for a loop."""
    grams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
