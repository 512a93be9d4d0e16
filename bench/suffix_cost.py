"""What does the suffix drafter cost a round? Drafts and commits after short and long histories; no model is needed.

Texts repeat phrases of themselves, from a vocabulary of 50,000 tokens with frequent and rare ones. Each round drafts 16
nodes, greedily and with the noise of a sampled text, and commits two tokens, as after a pass that accepted one guess;
the memory of the batch is full.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable

from bench.report import save, table
from worker.engine.drafters.batch_memory import MAX_TOKENS, Outputs
from worker.engine.drafters.guide import Guide
from worker.engine.drafters.protocol import DraftContext, DraftLimits
from worker.engine.drafters.sorted_places import DEPTH
from worker.engine.drafters.suffix import SuffixDrafter
from worker.engine.sampling import Sampling
from worker.engine.tree import TokenTree

HISTORIES = (1_000, 8_000, 32_000)
ROUNDS, EMITTED, ANSWER = 400, 2, 200
LIMITS = DraftLimits(nodes=16, depth=16)
HEADINGS = [
    "history, tokens",
    "batch memory, tokens",
    "draft ms",
    "95 % below",
    "nodes",
    "sampled: draft ms",
    "95 % below",
    "commit us a token",
    "prompt ms",
]


def repetitive(rng: random.Random, count: int, before: list[int]) -> list[int]:
    """`count` tokens: phrases of `before` and of what is already there, and new words between them."""
    tokens: list[int] = []
    while len(tokens) < count:
        source = tokens if len(tokens) > 100 and rng.random() < 0.5 else before
        if len(source) > 100 and rng.random() < 0.6:
            start = rng.randrange(len(source) - 30)
            tokens += source[start : start + rng.randint(2, 30)]
        else:
            tokens += [min(int(rng.paretovariate(0.4)), 50_000) for _ in range(rng.randint(1, 8))]
    return tokens[:count]


def full_memory(rng: random.Random, template: list[int]) -> tuple[Outputs, float]:
    """A memory of answers that has begun to forget, and the microseconds a token of the last tenth took to enter."""
    outputs, spent, entered = Outputs(), 0.0, 0
    for number in range(answers := MAX_TOKENS // (ANSWER + DEPTH) + 20):
        answer = repetitive(rng, ANSWER, template)
        taken = milliseconds(lambda: outputs.add(template, answer))  # noqa: B023
        if number > 0.9 * answers:
            spent, entered = spent + taken, entered + ANSWER
    return outputs, 1000 * spent / entered


def milliseconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - begun)


def measured(history: list[int], outputs: Outputs | None, rng: random.Random) -> list[object]:
    drafter = SuffixDrafter()
    prompt_ms = milliseconds(lambda: drafter.prefill(history))
    drafts, sampled, nodes, commits = [], [], [], []
    pending = history[-1]
    for number in range(ROUNDS):
        tree = TokenTree(pending)
        context = DraftContext(outputs=outputs)
        drafts.append(milliseconds(lambda: drafter.draft(tree, LIMITS, context)))  # noqa: B023
        nodes.append(len(tree))
        again = TokenTree(pending)
        noisy = DraftContext(guide=Guide(Sampling(temperature=1.0, seed=number)), outputs=outputs)
        sampled.append(milliseconds(lambda: drafter.draft(again, LIMITS, noisy)))  # noqa: B023
        emitted = repetitive(rng, EMITTED, history)
        commits.append(1000 * milliseconds(lambda: drafter.commit(emitted)) / EMITTED)  # noqa: B023
        pending = emitted[-1]
    held = len(outputs) if outputs else 0
    return [
        len(history),
        held,
        *median_and_late(drafts),
        statistics.mean(nodes),
        *median_and_late(sampled),
        statistics.median(commits),
        prompt_ms,
    ]


def median_and_late(times: list[float]) -> list[str]:
    return [f"{statistics.median(times):.3f}", f"{statistics.quantiles(times, n=20)[-1]:.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()

    rng = random.Random(0)
    template = repetitive(rng, 400, [])
    outputs, entering = full_memory(rng, template)
    rows = []
    for size in HISTORIES:
        history = repetitive(rng, size, template)
        rows += [measured(history, None, rng), measured(history, outputs, rng)]
    print(table(HEADINGS, rows))
    print(f"an answer enters a full memory in {entering:.1f} us a token")
    if options.save:
        print(save(options.save, {"headings": HEADINGS, "rows": rows, "entering_us_per_token": entering}))


if __name__ == "__main__":
    main()
