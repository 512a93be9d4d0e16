"""Whole models whose passes run on kernels: the text is that of plain decoding by mlx-lm."""

from typing import Any

import pytest
from engine_maker import EngineFor
from family_exactness import Case, engine_under_trees
from kernel_sets import CountingKernels, EmulatedKernels, ReferenceKernels

from bench.families import tiny_model

# Widths that the kernels have.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 64},
    "gemma2": {"head_dim": 64},  # caps its scores, which no kernel does
    "gemma3_text": {"head_dim": 64},
    "gpt_oss": {"head_dim": 64},
    "llama4": {"head_dim": 64},  # three layers out of four see chunks, which no kernel does
    "qwen3_5": {"head_dim": 64, "linear_key_head_dim": 64, "linear_value_head_dim": 32},
}
SAMPLED = {"temperature": 0.9, "top_p": 0.97, "top_k": 40, "seed": 11}


def used_by(name: str, case: Case) -> set[str]:
    used = set() if name == "gemma2" else {"attention"}
    used |= {"outputs", "commit", "convolution"} if name == "qwen3_5" else set()
    return used | ({"sample"} if case.sampling else set())


def assert_exact(engine_for: EngineFor, name: str, kernels: CountingKernels, case: Case, nodes: int) -> None:
    model = tiny_model(name, **MODELS[name])
    expected = case.plain(model)
    engine = engine_under_trees(engine_for, model, "tree", expected, seed=3, nodes=nodes)
    engine.verifier.kernels = kernels
    result, stats = engine.generate(case.request)
    assert result.token_ids == expected
    assert stats.accepted_tokens > case.tokens // 5
    assert set(kernels.calls) - {"advance"} == used_by(name, case)  # that is for passes over one token


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", MODELS)
def test_the_text_under_references_is_that_of_plain_decoding(
    engine_for: EngineFor, name: str, sampling: dict[str, Any]
) -> None:
    assert_exact(engine_for, name, ReferenceKernels(), Case(tokens=100, sampling=sampling), 32)


@pytest.mark.parametrize("name", MODELS)
def test_the_text_under_the_metal_texts_is_that_of_plain_decoding(engine_for: EngineFor, name: str) -> None:
    assert_exact(engine_for, name, EmulatedKernels(), Case(prompt="The-fox", tokens=24), 8)
