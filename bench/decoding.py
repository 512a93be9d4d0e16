"""How fast? The engine against mlx-lm's plain decoding, prompt by prompt in one run.

Decode rate: completion tokens after the first / (wall - time to first token). Both decode the same prompt one after the
other, in alternating order, so a drifting clock reaches both; a ratio counts only beside the parity of their texts.
"""

import argparse
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from api.schemas import GenerationRequest, JobStats
from bench.examples import FILES, example_requests
from bench.reference import PlainText, plain_decoding
from bench.report import save, table
from worker.engine.engine import Engine, EngineOptions
from worker.engine.models import ModelSpec
from worker.engine.prompt import prompt_tokens


@dataclass
class Kind:
    """Measurements of one kind of prompt."""

    ratios: list[float] = field(default_factory=list)
    engine_tps: list[float] = field(default_factory=list)
    plain_tps: list[float] = field(default_factory=list)
    stats: list[JobStats] = field(default_factory=list)
    tokens: int = 0
    prompts: int = 0
    identical: int = 0

    def add(self, plain: PlainText, tokens: list[int], stats: JobStats) -> None:
        self.prompts += 1
        self.identical += tokens == plain.tokens
        self.tokens += len(tokens)
        self.stats.append(stats)
        if stats.decode_tps and plain.decode_tps == plain.decode_tps:
            self.engine_tps.append(stats.decode_tps)
            self.plain_tps.append(plain.decode_tps)
            self.ratios.append(stats.decode_tps / plain.decode_tps)

    def row(self) -> list[object]:
        drafted = sum(s.drafted_tokens for s in self.stats)
        passes = sum(s.passes for s in self.stats)
        budgets: Counter[int] = Counter()
        for s in self.stats:
            budgets.update(s.budgets)
        shown = " ".join(f"{nodes}:{count}" for nodes, count in sorted(budgets.items()))
        return [
            self.prompts,
            f"{self.identical}/{self.prompts}",
            statistics.median(self.plain_tps),
            statistics.median(self.engine_tps),
            statistics.geometric_mean(self.ratios),
            min(self.ratios),
            max(self.ratios),
            sum(s.accepted_tokens for s in self.stats) / drafted if drafted else 0.0,
            self.tokens / passes,
            shown,
        ]


HEADINGS = [
    "kind",
    "prompts",
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


def measure(engine: Engine, request: GenerationRequest, engine_first: bool) -> tuple[PlainText, list[int], JobStats]:
    prompt = prompt_tokens(request, engine.target.tokenizer)
    assert request.max_tokens
    if engine_first:
        result, stats = engine.generate(request)
        return plain_decoding(engine.target, prompt, request.max_tokens), result.token_ids, stats
    plain = plain_decoding(engine.target, prompt, request.max_tokens)
    result, stats = engine.generate(request)
    return plain, result.token_ids, stats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2@bfloat16")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--files", nargs="+", default=list(FILES))
    parser.add_argument("--data-dir", type=Path, default=Path(".cache/bench"))
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()

    # Each prompt for itself: what a batch's earlier answers are worth is bench.templated's to measure.
    alone = EngineOptions(options.data_dir, batch_memory=False)
    engine = Engine.load(ModelSpec.parse(options.model), alone, print, fresh=True)
    curve = engine.profile.curve
    print("c(n) in ms:", dict(zip(curve.nodes, [round(ms, 1) for ms in curve.milliseconds], strict=True)), flush=True)
    kinds: dict[str, Kind] = defaultdict(Kind)
    prompts = example_requests(tuple(options.files), temperature=0.0, max_tokens=options.max_tokens)
    for number in range(options.rounds):
        for place, (kind, request) in enumerate(prompts):
            plain, tokens, stats = measure(engine, request, engine_first=(place + number) % 2 == 0)
            kinds[kind].add(plain, tokens, stats)
            ratio = (stats.decode_tps or 0) / plain.decode_tps
            print(f"{kind} {request.request_id}: x{ratio:.2f}, {len(tokens)} tokens", flush=True)
    rows = [[kind, *measured.row()] for kind, measured in kinds.items()]
    print(table(HEADINGS, rows))
    if options.save:
        print(save(options.save, {"headings": HEADINGS, "rows": rows, "curve": [curve.nodes, curve.milliseconds]}))


if __name__ == "__main__":
    main()
