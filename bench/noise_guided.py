"""What the noise is worth to a drafter: tokens per pass at several temperatures, exact and relaxed.

The drafter is the target itself with fewer bits or fewer layers. Its tree is ranked by its own log p / T plus the very
noise of the draw (noise), or by its probabilities alone (odds). Lossless text has to be that of plain decoding with the
same seed, token for token; the relaxed rule `ratio` stands beside it for comparison, with the tokens that it forced.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
from mlx_lm.utils import dequantize_model

from api.schemas import GenerationRequest
from bench.examples import example_requests
from bench.report import save, table
from worker.engine.drafters.draft_model import DraftModelDrafter
from worker.engine.drafters.expansion import Expansion
from worker.engine.engine import Engine, EngineOptions
from worker.engine.models import ModelSpec
from worker.engine.selection import Selected

HEADINGS = [
    "temperature",
    "candidates by",
    "rule",
    "tokens",
    "passes",
    "tokens per pass",
    "acceptance",
    "forced",
    "same",
]


def weakened(directory: Path, bits: int | None, layers: int | None) -> Any:
    """The target once more, with weights rounded to `bits` bits, or with only `layers` of its layers.

    Rounded weights are kept dense: the guesses are those of a packed model, and here only guesses count.
    """
    model, _ = mlx_lm.load(str(directory))
    if layers:
        kept = len(model.layers)
        step = kept / layers
        model.model.layers = [model.layers[int(number * step)] for number in range(layers)]
    if bits:
        nn.quantize(model, group_size=64, bits=bits)
        model = dequantize_model(model)
    mx.eval(model.parameters())
    return model


def answers(engine: Engine, requests: list[GenerationRequest]) -> tuple[list[list[int]], list[Any]]:
    results = [engine.generate(request) for request in requests]
    return [result.token_ids for result, _ in results], [stats for _, stats in results]


def row(
    temperature: float, by: str, rule: str, texts: list[list[int]], plain: list[list[int]], stats: list[Any]
) -> list[Any]:
    tokens, passes = sum(map(len, texts)), sum(one.passes for one in stats)
    drafted, accepted = sum(one.drafted_tokens for one in stats), sum(one.accepted_tokens for one in stats)
    same = sum(one == other for one, other in zip(texts, plain, strict=True))
    forced = sum(one.forced_tokens for one in stats)
    share = accepted / drafted if drafted else 0.0
    return [temperature, by, rule, tokens, passes, tokens / passes, share, forced, f"{same}/{len(plain)}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2@bfloat16")
    parser.add_argument("--bits", type=int, default=3)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--every", type=int, default=1, help="every n-th example prompt")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7, 1.0])
    parser.add_argument("--rules", nargs="+", default=["lossless", "ratio:theta=0.3"])
    parser.add_argument("--data-dir", type=Path, default=Path(".cache/bench"))
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()

    engine_options = EngineOptions(options.data_dir, drafter="none", fixed_nodes=1)
    plain = Engine.load(ModelSpec.parse(options.model), engine_options, print)
    draft = weakened(plain.target.directory, options.bits, options.layers)
    shape = Expansion(depth=6, beam=4, children=4, min_value=0.01)
    drafter = DraftModelDrafter(draft, "tree", plain.target.vocabulary, expansion=shape)
    rows: list[list[Any]] = []
    wrong = False
    for temperature in options.temperatures:
        values = {"temperature": temperature, "seed": 11, "max_tokens": options.max_tokens}
        requests = [request for _, request in example_requests(**values)][:: options.every]
        expected, stats = answers(plain, requests)
        rows.append(row(temperature, "-", "plain", expected, expected, stats))
        # Greedy text leaves a relaxed rule nothing to decide.
        for rule in options.rules if temperature else options.rules[:1]:
            ruled = [request.model_copy(update={"acceptance": rule}) for request in requests]
            for noise in (True, False) if temperature else (True,):
                speculative = replace(engine_options, fixed_nodes=options.nodes, noise_guided=noise)
                engine = Engine(plain.target, plain.profile, speculative, selected=Selected(drafter, "weakened"))
                texts, stats = answers(engine, ruled)
                rows.append(row(temperature, "noise" if noise else "odds", rule, texts, expected, stats))
                wrong |= rule == "lossless" and texts != expected
                print(rows[-1], flush=True)
    print(table(HEADINGS, rows))
    if options.save:
        pair = {"bits": options.bits, "layers": options.layers, "nodes": options.nodes}
        print(save(options.save, {"drafter": pair, "headings": HEADINGS, "rows": rows}))
    # In 16 bit a tie may be decided otherwise by a pass over several tokens; in float32 it may not.
    if wrong and plain.target.dtype == mx.float32:
        sys.exit(1)


if __name__ == "__main__":
    main()
