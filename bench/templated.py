"""What is the memory of a batch worth? Plain decoding, the suffix drafter alone, and with the batch's earlier answers.

Two batches: one instruction over a hundred messages, and prompts that have nothing in common. All three configurations
answer a prompt one right after the other, in turning order, over the same weights; the memory grows with the batch, as
it does in a worker. Rates are those of the decode windows together; texts are compared with those of plain decoding.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from api.schemas import GenerationRequest, JobStats
from bench.examples import example_requests
from bench.report import save, table
from worker.engine.engine import Engine, EngineOptions
from worker.engine.models import ModelSpec

PLAIN = "plain"
HEADINGS = [
    "batch",
    "configuration",
    "prompts",
    "same text",
    "decode tok/s",
    "ratio",
    "tokens per pass",
    "acceptance",
    "draft share",
]


@dataclass
class Measured:
    """One configuration over one batch."""

    texts: list[list[int]] = field(default_factory=list)
    stats: list[JobStats] = field(default_factory=list)

    def add(self, tokens: list[int], stats: JobStats) -> None:
        self.texts.append(tokens)
        self.stats.append(stats)

    @property
    def decode_tps(self) -> float:
        windows = [
            (len(text) - one.first_pass_tokens, one.wall_ms - one.ttft_ms)
            for text, one in zip(self.texts, self.stats, strict=True)
            if one.decode_tps is not None and one.ttft_ms is not None and one.first_pass_tokens is not None
        ]
        return 1000 * sum(tokens for tokens, _ in windows) / sum(spent for _, spent in windows)

    def row(self, plain: "Measured") -> list[object]:
        drafted = sum(one.drafted_tokens for one in self.stats)
        same = sum(text == other for text, other in zip(self.texts, plain.texts, strict=True))
        return [
            len(self.texts),
            f"{same}/{len(self.texts)}",
            self.decode_tps,
            self.decode_tps / plain.decode_tps,
            sum(map(len, self.texts)) / sum(one.passes for one in self.stats),
            sum(one.accepted_tokens for one in self.stats) / drafted if drafted else 0.0,
            sum(one.phases.draft for one in self.stats) / sum(one.wall_ms for one in self.stats),
        ]


def measure(engines: dict[str, Engine], requests: Sequence[GenerationRequest]) -> dict[str, Measured]:
    measured: dict[str, Measured] = defaultdict(Measured)
    names = list(engines)
    for place, request in enumerate(requests):
        first = place % len(names)
        for name in names[first:] + names[:first]:
            result, stats = engines[name].generate(request)
            measured[name].add(result.token_ids, stats)
        passes = " / ".join(str(measured[name].stats[-1].passes) for name in names)
        print(f"{request.request_id}: {len(measured[PLAIN].texts[-1])} tokens, passes {passes}", flush=True)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2@bfloat16")
    parser.add_argument("--prompts", type=int, default=100, help="of each batch at most")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--files", nargs="+", default=["templated.jsonl", "batch.jsonl"])
    parser.add_argument("--data-dir", type=Path, default=Path(".cache/bench"))
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()

    told = EngineOptions(options.data_dir, drafter="suffix")
    remembering = Engine.load(ModelSpec.parse(options.model), told, print, fresh=True)
    engines = {
        PLAIN: remembering.with_options(replace(told, drafter="none")),
        "suffix": remembering.with_options(replace(told, batch_memory=False)),
        "suffix, batch memory": remembering,
    }
    rows = []
    for name in options.files:
        requests = [one for _, one in example_requests((name,), temperature=0.0, max_tokens=options.max_tokens)]
        for engine in engines.values():
            engine.generate(requests[0].model_copy(update={"max_tokens": 8}))
            engine.forget()
        measured = measure(engines, requests[: options.prompts])
        rows += [[name, configuration, *one.row(measured[PLAIN])] for configuration, one in measured.items()]
    print(table(HEADINGS, rows))
    if options.save:
        print(save(options.save, {"headings": HEADINGS, "rows": rows}))


if __name__ == "__main__":
    main()
