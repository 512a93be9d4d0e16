"""What is a shared prefix worth? Time to the first token with snapshots of earlier prompts and without, in one run.

One long system prompt and several questions, answered greedily by two engines over the same weights in alternating
order; only one of them keeps snapshots. Before each question both answer an unrelated prompt, so the cache
of the last request is of no use to either: what is measured is the tree of prefixes, copying out of it included.
"""

import argparse
import statistics
from dataclasses import replace
from pathlib import Path

from api.schemas import GenerationRequest, GenerationResult
from bench.report import save, table
from worker.engine.engine import Engine, EngineOptions
from worker.engine.models import ModelSpec

RULES = [
    f"Room {number} opens at {8 + number % 4} and closes at {17 + number % 5}; it seats {20 + 3 * number} readers, and "
    f"the key is at desk {1 + number % 6}."
    for number in range(1, 31)
]
SYSTEM = "You answer questions of the visitors of a library in one short sentence. " + " ".join(RULES)
QUESTIONS = [
    "How many readers does room 7 seat?",
    "When does room 12 close?",
    "At which desk do I get the key of room 3?",
    "Is room 21 open at nine in the morning?",
    "Which of the rooms 4 and 5 is larger?",
]
HEADINGS = ["question", "prompt tokens", "from the cache", "TTFT cold ms", "TTFT warm ms", "cold / warm", "same text"]


def question(number: int, max_tokens: int) -> GenerationRequest:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTIONS[number % len(QUESTIONS)]}]
    return request(f"question-{number}", messages, max_tokens)


def request(identity: str, messages: list[dict[str, str]], max_tokens: int) -> GenerationRequest:
    values = {"request_id": identity, "messages": messages, "temperature": 0.0, "max_tokens": max_tokens}
    return GenerationRequest.model_validate(values)


def answer(engine: Engine, asked: GenerationRequest) -> tuple[GenerationResult, float]:
    """The answer and its time to the first token in ms, after an unrelated prompt."""
    engine.generate(request("unrelated", [{"role": "system", "content": "x"}, {"role": "user", "content": "Hello"}], 1))
    result, stats = engine.generate(asked)
    assert stats.ttft_ms is not None
    return result, stats.ttft_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2@bfloat16")
    parser.add_argument("--questions", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--data-dir", type=Path, default=Path(".cache/bench"))
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()

    # Without speculation: what counts here ends with the first token.
    warm = Engine.load(ModelSpec.parse(options.model), EngineOptions(options.data_dir, max_tree_nodes=1), print)
    cold = warm.with_options(replace(warm.options, prefix_cache_bytes=0))
    _, first_ms = answer(warm, question(0, options.max_tokens))
    print(f"the first question takes {first_ms:.0f} ms to its first token; it leaves the snapshot", flush=True)
    rows: list[list[object]] = []
    ratios: list[float] = []
    for number in range(1, options.questions + 1):
        asked = question(number, options.max_tokens)
        order = (cold, warm) if number % 2 else (warm, cold)
        measured = {engine: answer(engine, asked) for engine in order}
        (cold_result, cold_ms), (warm_result, warm_ms) = measured[cold], measured[warm]
        assert warm_result.usage is not None
        usage, same = warm_result.usage, warm_result.token_ids == cold_result.token_ids
        ratios.append(cold_ms / warm_ms)
        rows.append([number, usage.prompt_tokens, usage.cached_prompt_tokens, cold_ms, warm_ms, ratios[-1], same])
        print(rows[-1], flush=True)
    print(table(HEADINGS, rows))
    ratio = statistics.geometric_mean(ratios)
    print(f"cold / warm: {ratio:.1f} (geometric mean)")
    if options.save:
        print(save(options.save, {"headings": HEADINGS, "rows": rows, "ratio": ratio, "first_ttft_ms": first_ms}))


if __name__ == "__main__":
    main()
