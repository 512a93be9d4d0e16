"""Comparison: configurations of one engine on the same prompts, measured so that nothing but the configuration differs.

Every run decodes every prompt under every configuration, one right after the other and in turning order, so a clock
that drifts reaches all of them alike. Caches are cold each time. Rates are those of the decode window: completion
tokens after the first pass / (wall - time to first token). Texts are compared with mlx-lm's own plain decoding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from api.schemas import GenerationRequest, JobStats
from worker.engine.plain_text import Parity, PlainText, plain_text
from worker.engine.prompt import prompt_tokens

if TYPE_CHECKING:
    from worker.engine.engine import Engine

WARM_UP_TOKENS = 16
PLAIN, SPECULATIVE = "plain", "speculative"
"""Names of configurations: the one that the others are compared with, and the one that workers use."""


@dataclass(frozen=True)
class Prompt:
    """name: for the reader. kind: prompts of one kind are summed up together. request: greedy, with `max_tokens`."""

    name: str
    kind: str
    request: GenerationRequest


@dataclass(frozen=True)
class Measurement:
    """One prompt decoded once. run: from 1. sha256: of the token ids, in decimal with commas between them."""

    configuration: str
    prompt: str
    kind: str
    run: int
    stats: JobStats
    completion_tokens: int
    sha256: str
    parity: Parity

    @property
    def decoded(self) -> tuple[int, float]:
        """Tokens and seconds of the decode window; (0, 0) for a text that has none."""
        stats = self.stats
        if stats.decode_tps is None or stats.ttft_ms is None or stats.first_pass_tokens is None:
            return 0, 0.0
        return self.completion_tokens - stats.first_pass_tokens, (stats.wall_ms - stats.ttft_ms) / 1000


def compare(
    engines: Mapping[str, Engine], prompts: Sequence[Prompt], runs: int, notify: Callable[[str], None]
) -> Iterator[Measurement]:
    """Measure every engine, by the name of its configuration, on every prompt in each of `runs` runs.

    Each engine answers the first prompt before that, unmeasured. Raises ValueError for a prompt that is refused.
    """
    notify("decoding the references, and warming up")
    references = [_reference(next(iter(engines.values())), prompt) for prompt in prompts]
    for engine in engines.values():
        engine.generate(prompts[0].request.model_copy(update={"max_tokens": WARM_UP_TOKENS}))
    names = list(engines)
    loaded = max(engine.drafter_bytes for engine in engines.values())
    for run in range(runs):
        for place, (prompt, reference) in enumerate(zip(prompts, references, strict=True)):
            first = (run + place) % len(names)
            for name in names[first:] + names[:first]:
                unused = loaded - engines[name].drafter_bytes
                yield _measured(name, engines[name], prompt, reference, run + 1, unused)


@dataclass(frozen=True)
class Summary:
    """A configuration over all prompts of a kind.

    runs: decode tokens per second of each run; decode_tps is their median. ratio: of each run's rate to that of plain
    decoding beside it, the median. ttft_ms: median. phases_ms: sums. peak_memory_bytes: the highest. parity: of each
    prompt, the worst of its runs, with its count.
    """

    configuration: str
    kind: str
    prompts: int
    runs: list[float]
    decode_tps: float | None
    ratio: float | None
    acceptance: float | None
    tokens_per_pass: float | None
    ttft_ms: float | None
    phases_ms: dict[str, float]
    peak_memory_bytes: int
    parity: dict[Parity, int]


def summarise(measurements: Sequence[Measurement], kind: str | None = None) -> list[Summary]:
    """A summary of each configuration, in the order in which they appear; of one kind, or of all prompts (None)."""
    chosen = [one for one in measurements if kind is None or one.kind == kind]
    grouped: dict[str, list[Measurement]] = {one.configuration: [] for one in measurements}
    for one in chosen:
        grouped[one.configuration].append(one)
    plain = _rates(grouped[PLAIN])
    return [_summary(name, kind or "all", group, plain) for name, group in grouped.items()]


def _reference(engine: Engine, prompt: Prompt) -> PlainText:
    result, _ = engine.generate(prompt.request.model_copy(update={"max_tokens": 1}))
    if result.error is not None:
        raise ValueError(f"{prompt.name}: {result.error.message}")
    assert prompt.request.max_tokens
    ids = prompt_tokens(prompt.request, engine.target.tokenizer)
    return plain_text(engine.target, ids, min(prompt.request.max_tokens, engine.target.context - len(ids)))


def _measured(
    name: str, engine: Engine, prompt: Prompt, reference: PlainText, run: int, unused_bytes: int
) -> Measurement:
    """unused_bytes: of a drafter in the same process that this configuration would not load."""
    engine.forget()
    result, stats = engine.generate(prompt.request)
    stats = stats.model_copy(update={"peak_memory_bytes": stats.peak_memory_bytes - unused_bytes})
    return Measurement(
        configuration=name,
        prompt=prompt.name,
        kind=prompt.kind,
        run=run,
        stats=stats,
        completion_tokens=len(result.token_ids),
        sha256=hashlib.sha256(",".join(map(str, result.token_ids)).encode()).hexdigest(),
        parity=reference.parity(result.token_ids, engine.target.dtype),
    )


def _summary(name: str, kind: str, group: Sequence[Measurement], plain: Mapping[int, float]) -> Summary:
    rates = _rates(group)
    drafted = sum(one.stats.drafted_tokens for one in group)
    passes = sum(one.stats.passes for one in group)
    phases: dict[str, float] = {}
    for one in group:
        for phase, spent in one.stats.phases.model_dump().items():
            phases[phase] = phases.get(phase, 0.0) + spent
    return Summary(
        configuration=name,
        kind=kind,
        prompts=len({one.prompt for one in group}),
        runs=list(rates.values()),
        decode_tps=_median(list(rates.values())),
        ratio=_median([rate / plain[run] for run, rate in rates.items() if run in plain]),
        acceptance=sum(one.stats.accepted_tokens for one in group) / drafted if drafted else None,
        tokens_per_pass=sum(one.completion_tokens for one in group) / passes if passes else None,
        ttft_ms=_median([one.stats.ttft_ms for one in group if one.stats.ttft_ms is not None]),
        phases_ms=phases,
        peak_memory_bytes=max((one.stats.peak_memory_bytes for one in group), default=0),
        parity=_parity(group),
    )


def _rates(group: Sequence[Measurement]) -> dict[int, float]:
    """Decode tokens per second of each run."""
    rates = {}
    for run in sorted({one.run for one in group}):
        tokens, seconds = map(sum, zip(*(one.decoded for one in group if one.run == run), strict=True))
        if seconds:
            rates[run] = tokens / seconds
    return rates


def _parity(group: Sequence[Measurement]) -> dict[Parity, int]:
    order: tuple[Parity, ...] = ("same", "near tie", "different")
    worst: dict[str, int] = {}
    for one in group:
        worst[one.prompt] = max(worst.get(one.prompt, 0), order.index(one.parity))
    return {parity: list(worst.values()).count(place) for place, parity in enumerate(order)}


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
