"""How fast? The engine against mlx-lm's plain decoding, prompt by prompt in one run.

Decode rate: completion tokens after the first pass / (wall - time to first token). Both decode the same prompt one
after the other, in alternating order, so a drifting clock reaches both; a prompt's ratio is the median over the rounds,
and counts only beside the parity of the texts. `copy` is a kind of task; `copied` are the prompts, of whatever kind,
whose plain text is, to at least COPIED of its tokens, made of runs of COPIED_RUN tokens or more that stand in the
prompt.
"""

import argparse
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from api.schemas import GenerationRequest, JobStats
from bench.examples import FILES, example_requests
from bench.reference import plain_decoding
from bench.report import save, table
from worker.engine.engine import Engine, EngineOptions
from worker.engine.models import ModelSpec
from worker.engine.prompt import prompt_tokens

COPIED, COPIED_RUN = 0.8, 6

HEADINGS = [
    "prompts",
    "number",
    "same text",
    "plain tok/s",
    "engine tok/s",
    "ratio",
    "min",
    "max",
    "acceptance",
    "tokens per pass",
    "budgets (nodes:passes)",
]


@dataclass
class Prompt:
    """A prompt, and what every round measured. Rates are in tokens per second; empty for a text of one token."""

    kind: str
    request: GenerationRequest
    tokens: list[int]
    plain_tps: list[float] = field(default_factory=list)
    engine_tps: list[float] = field(default_factory=list)
    stats: list[JobStats] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    identical: bool = True
    copied: float = 0.0

    def measure(self, engine: Engine, engine_first: bool) -> None:
        assert self.request.max_tokens
        if engine_first:
            result, stats = engine.generate(self.request)
            plain = plain_decoding(engine.target, self.tokens, self.request.max_tokens)
        else:
            plain = plain_decoding(engine.target, self.tokens, self.request.max_tokens)
            result, stats = engine.generate(self.request)
        self.identical &= plain.tokens == result.token_ids
        self.copied = copied_share(plain.tokens, self.tokens)
        self.stats.append(stats)
        self.lengths.append(len(result.token_ids))
        if len(plain.tokens) > 1 and stats.decode_tps:
            self.plain_tps.append(plain.decode_tps)
            self.engine_tps.append(stats.decode_tps)

    @property
    def ratio(self) -> float | None:
        ratios = [ours / theirs for ours, theirs in zip(self.engine_tps, self.plain_tps, strict=True)]
        return statistics.median(ratios) if ratios else None


def copied_share(text: Sequence[int], prompt: Sequence[int]) -> float:
    """Share of the tokens of `text` that are in a run of COPIED_RUN tokens which `prompt` has too."""
    there = {tuple(prompt[i : i + COPIED_RUN]) for i in range(len(prompt) - COPIED_RUN + 1)}
    covered: set[int] = set()
    for start in range(len(text) - COPIED_RUN + 1):
        if tuple(text[start : start + COPIED_RUN]) in there:
            covered |= set(range(start, start + COPIED_RUN))
    return len(covered) / len(text) if text else 0.0


def row(name: str, prompts: Sequence[Prompt]) -> list[object]:
    """Of each prompt's ratios the median; of those the geometric mean, the smallest and the largest."""
    stats = [one for prompt in prompts for one in prompt.stats]
    drafted = sum(one.drafted_tokens for one in stats)
    budgets: Counter[int] = Counter()
    for one in stats:
        budgets.update(one.budgets)
    ratios = [prompt.ratio for prompt in prompts if prompt.ratio]
    return [
        name,
        len(prompts),
        f"{sum(prompt.identical for prompt in prompts)}/{len(prompts)}",
        statistics.median(rate for prompt in prompts for rate in prompt.plain_tps),
        statistics.median(rate for prompt in prompts for rate in prompt.engine_tps),
        statistics.geometric_mean(ratios),
        min(ratios),
        max(ratios),
        sum(one.accepted_tokens for one in stats) / drafted if drafted else 0.0,
        sum(length for prompt in prompts for length in prompt.lengths) / sum(one.passes for one in stats),
        " ".join(f"{nodes}:{count}" for nodes, count in sorted(budgets.items())),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2@bfloat16")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--files", nargs="+", default=list(FILES))
    parser.add_argument("--kinds", nargs="+", default=["chat", "code", "copy"])
    parser.add_argument("--data-dir", type=Path, default=Path(".cache/bench"))
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()

    # Each prompt for itself: what a batch's earlier answers are worth is bench.templated's to measure.
    alone = EngineOptions(options.data_dir, batch_memory=False)
    engine = Engine.load(ModelSpec.parse(options.model), alone, print, fresh=True)
    curve = engine.profile.curve
    print("c(n) in ms:", dict(zip(curve.nodes, [round(ms, 1) for ms in curve.milliseconds], strict=True)), flush=True)
    prompts = [
        Prompt(kind, request, prompt_tokens(request, engine.target.tokenizer))
        for kind, request in example_requests(tuple(options.files), temperature=0.0, max_tokens=options.max_tokens)
        if kind in options.kinds
    ]
    for number in range(options.rounds):
        for place, prompt in enumerate(prompts):
            prompt.measure(engine, engine_first=(place + number) % 2 == 0)
            spent = f"x{prompt.engine_tps[-1] / prompt.plain_tps[-1]:.2f}" if prompt.engine_tps else "-"
            print(f"{prompt.kind} {prompt.request.request_id}: {spent}, {prompt.lengths[-1]} tokens", flush=True)
    kinds = sorted({prompt.kind for prompt in prompts})
    rows = [row(kind, [prompt for prompt in prompts if prompt.kind == kind]) for kind in kinds]
    if copied := [prompt for prompt in prompts if prompt.copied >= COPIED]:
        rows.append(row("copied", copied))
    print(table(HEADINGS, rows))
    if options.save:
        each = [
            [prompt.kind, prompt.request.request_id, prompt.lengths[-1], prompt.copied, prompt.ratio]
            for prompt in prompts
        ]
        content = {
            "headings": HEADINGS,
            "rows": rows,
            "curve": [curve.nodes, curve.milliseconds],
            "each": {"headings": ["kind", "prompt", "tokens", "copied", "ratio"], "rows": each},
        }
        print(save(options.save, content))


if __name__ == "__main__":
    main()
