"""Where does 16-bit text part? The engine under fixed tree budgets against mlx-lm's plain decoding, greedy.

A pass over several rows rounds differently from a pass over one, so in 16 bit a near tie can fall the other way; from
there on the texts differ for good. Every first difference is shown with the margin by which plain decoding preferred
its token there. Exits with 1 when a margin is 0.05 or more: that is no near tie but a fault.
"""

import argparse
import sys
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

from bench.examples import example_requests
from bench.report import save, table
from worker.engine.engine import Engine, EngineOptions
from worker.engine.models import ModelSpec
from worker.engine.plain_text import NEAR_TIE, PlainText, plain_text
from worker.engine.prompt import prompt_tokens


@dataclass(frozen=True)
class Divergence:
    """The first position where two texts differ. A token of None says that this text had ended there."""

    prompt: str
    budget: int
    position: int
    plain_token: int | None
    engine_token: int | None
    margin: float


@dataclass
class Count:
    """Sums over the prompts of one budget. close_calls: plain tokens that were preferred by less than NEAR_TIE."""

    budget: int
    prompts: int = 0
    identical: int = 0
    tokens: int = 0
    close_calls: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0


def divergence(prompt: str, budget: int, plain: PlainText, tokens: list[int]) -> Divergence | None:
    """Where the engine's `tokens` first differ from the plain text."""
    position = plain.first_difference(tokens)
    if position is None:
        return None
    expected, token = (dict(enumerate(text)).get(position) for text in (plain.tokens, tokens))
    return Divergence(prompt, budget, position, expected, token, plain.margins[position])


def headings_of(kind: type[Divergence] | type[Count]) -> list[str]:
    return [field.name.replace("_", " ") for field in fields(kind)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2@bfloat16")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--budgets", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--every", type=int, default=1, help="take only every Nth example prompt")
    parser.add_argument("--data-dir", type=Path, default=Path(".cache/bench"))
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()

    engine = Engine.load(ModelSpec.parse(options.model), EngineOptions(options.data_dir), print)
    target = engine.target
    engines = [engine.with_options(replace(engine.options, fixed_nodes=nodes)) for nodes in options.budgets]
    counts = [Count(nodes) for nodes in options.budgets]
    found: list[Divergence] = []
    prompts = example_requests(temperature=0.0, max_tokens=options.max_tokens)[:: options.every]
    for _, request in prompts:
        plain = plain_text(target, prompt_tokens(request, target.tokenizer), options.max_tokens)
        close_calls = sum(margin < NEAR_TIE for margin in plain.margins)
        print(f"{request.request_id}: {len(plain.tokens)} tokens, {close_calls} close calls", flush=True)
        for fixed, count in zip(engines, counts, strict=True):
            result, stats = fixed.generate(request)
            parted = divergence(request.request_id, count.budget, plain, result.token_ids)
            count.prompts += 1
            count.identical += parted is None
            count.tokens += len(result.token_ids)
            count.close_calls += close_calls
            count.passes += stats.passes
            count.drafted += stats.drafted_tokens
            count.accepted += stats.accepted_tokens
            if parted is not None:
                print(parted, flush=True)
                found.append(parted)
    headings, rows = headings_of(Count), [list(astuple(count)) for count in counts]
    parted_headings, parted_rows = headings_of(Divergence), [list(astuple(parted)) for parted in found]
    print(table(headings, rows))
    print(table(parted_headings, parted_rows))
    if options.save:
        divergences = {"headings": parted_headings, "rows": parted_rows}
        print(save(options.save, {"headings": headings, "rows": rows, "divergences": divergences}))
    if any(parted.margin >= NEAR_TIE for parted in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
