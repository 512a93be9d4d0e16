"""Is the text the same? Every example prompt, every budget, against mlx-lm's plain decoding.

Greedy text with a fixed budget of 1..16 nodes is compared with `generate_step`, token for token, and sampled text with
`generate_step` driven by the engine's keyed draw. Exits with 1 when a single token differs.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import mlx.core as mx

from api.schemas import GenerationRequest
from bench.examples import example_requests
from bench.reference import keyed_sampler, plain_decoding
from bench.report import save, table
from worker.engine.engine import Engine, EngineOptions
from worker.engine.models import ModelSpec
from worker.engine.prompt import prompt_tokens
from worker.engine.recipe import resolve, sampling_of

RECIPES: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_p": 0.95, "top_k": 20, "seed": 7},
}


def reference_tokens(engine: Engine, request: GenerationRequest) -> list[int]:
    """Plain decoding of the request by mlx-lm."""
    target = engine.target
    prompt = prompt_tokens(request, target.tokenizer)
    sampling = sampling_of(request, resolve(request, {}), frozenset(target.tokenizer.eos_token_ids), target.tokenizer)
    sampler = keyed_sampler(sampling, len(prompt)) if sampling.temperature else None
    assert request.max_tokens
    return plain_decoding(target, prompt, request.max_tokens, sampler).tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2@float32")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--budgets", type=int, nargs="+", default=list(range(1, 17)))
    parser.add_argument("--data-dir", type=Path, default=Path(".cache/bench"))
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()

    engine = Engine.load(ModelSpec.parse(options.model), EngineOptions(options.data_dir), print)
    rows, differences = [], []
    for recipe, values in RECIPES.items():
        prompts = example_requests(**values, max_tokens=options.max_tokens)
        expected = [reference_tokens(engine, request) for _, request in prompts]
        print(f"{recipe}: {len(prompts)} prompts, {sum(map(len, expected))} tokens", flush=True)
        for nodes in options.budgets:
            fixed = engine.with_options(replace(engine.options, fixed_nodes=nodes))
            same = passes = drafted = 0
            for (_, request), tokens in zip(prompts, expected, strict=True):
                result, stats = fixed.generate(request)
                same += result.token_ids == tokens
                if result.token_ids != tokens:
                    differences.append((recipe, nodes, request.request_id))
                passes, drafted = passes + stats.passes, drafted + stats.drafted_tokens
            total = sum(map(len, expected))
            rows.append([recipe, nodes, f"{same}/{len(prompts)}", total, passes, drafted, total / passes])
            print(rows[-1], flush=True)
            mx.clear_cache()
    headings = ["recipe", "budget", "identical", "tokens", "passes", "drafted", "tokens per pass"]
    print(table(headings, rows))
    if options.save:
        print(save(options.save, {"headings": headings, "rows": rows, "differences": differences}))
    if differences:
        print("different:", differences)
        sys.exit(1)


if __name__ == "__main__":
    main()
