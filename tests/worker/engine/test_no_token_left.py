"""Requests that forbid every token: an error of the request, and an engine that goes on."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from engine_maker import EngineFor
from plain_decoding import plain_tokens
from scripted_drafters import ScriptedDrafter, chain_of
from scripted_model import ScriptedModel
from tiny_models import VOCABULARY
from toy_requests import PROMPT_IDS, request

EVERYTHING = dict.fromkeys(range(VOCABULARY), -1e300)


@pytest.mark.parametrize("nodes", [1, 16])
@pytest.mark.parametrize(
    "values",
    [
        {"logit_bias": EVERYTHING},
        {"temperature": 0.8, "logit_bias": EVERYTHING},
        {"logprobs": True, "logit_bias": EVERYTHING},
        {"presence_penalty": 0.5, "logit_bias": EVERYTHING},
        {"min_tokens": 1, "stop_token_ids": list(range(VOCABULARY))},
    ],
    ids=["greedy", "sampled", "with logprobs", "penalised", "nothing but stops"],
)
def test_a_request_that_forbids_every_token_fails(
    llama: Any, engine_for: EngineFor, values: dict[str, Any], nodes: int
) -> None:
    engine = engine_for(llama, nodes=nodes, drafter=ScriptedDrafter(chain_of([5, 6, 7], 3)))
    result, stats = engine.generate(request(max_tokens=8, **values))
    assert result.error is not None
    assert (result.error.code, result.error.status) == ("no_token_left", 400)
    assert f"position {len(PROMPT_IDS)}" in result.error.message
    assert "logit_bias" in result.error.message
    assert result.text == ""
    assert result.finish_reason is None
    assert stats.wall_ms > 0
    following, _ = engine.generate(request(max_tokens=8, ignore_eos=True))
    assert following.token_ids == plain_tokens(llama, PROMPT_IDS, 8)


def test_a_model_whose_logits_are_no_numbers_midway_is_told_of(engine_for: EngineFor) -> None:
    def logits_of(prefix: Sequence[int]) -> list[float]:
        first = math.nan if len(prefix) == len(PROMPT_IDS) + 2 else 0.0
        return [first, *(-float(token) for token in range(1, VOCABULARY))]

    engine = engine_for(ScriptedModel(logits_of), drafter=ScriptedDrafter(chain_of([0, 0, 0, 0], 4)))
    result, _ = engine.generate(request(max_tokens=8, ignore_eos=True, temperature=0.01))
    assert result.error is not None
    assert result.error.code == "no_token_left"
    assert f"position {len(PROMPT_IDS) + 2}" in result.error.message
    assert "not numbers" in result.error.message
