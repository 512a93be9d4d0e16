"""Draws by a kernel are those of the host, to the token and to the bit of each log-probability."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from engine_maker import EngineFor
from kernel_sets import EmulatedKernels, ReferenceKernels
from scripted_drafters import ScriptedDrafter, random_trees
from tiny_models import VOCABULARY, tiny_model
from toy_requests import request

from kernels.sample.draws import Draw, Drawn
from kernels.sample.one_threadgroup_per_row import Sample
from kernels.sample.reference import reference_sample
from worker.engine import draws as draws_module
from worker.engine.draws import Draws
from worker.engine.kernel_set import KernelSet
from worker.engine.sampling import History, NoTokenLeft, Sampling

TOKENS = 150
SETS = {"references": ReferenceKernels, "emulated": EmulatedKernels}
BIAS = {3: 2.5, 17: -1e300, 40: 1.0, 149: -3.0}
SAMPLINGS = [
    Sampling(logit_bias=BIAS),
    Sampling(temperature=1.0, seed=1),
    Sampling(temperature=0.8, top_p=0.95, seed=2**64 - 1, logit_bias=BIAS),
    Sampling(temperature=1.5, top_p=0.5, seed=2**32),
    Sampling(temperature=0.7, top_k=20, seed=3, logit_bias=BIAS),
    Sampling(temperature=2.0, min_p=0.05, seed=5),
    Sampling(temperature=0.6, top_p=0.9, top_k=40, min_p=0.01, seed=6, logit_bias=BIAS),
    Sampling(temperature=1e-40, top_p=0.9, seed=8),
    Sampling(temperature=1.0, logit_bias={7: 1e300}, seed=9),
    Sampling(temperature=1.0, logit_bias=dict.fromkeys(range(TOKENS), -1e300), seed=10),
]
DTYPES = [mx.float32, mx.bfloat16, mx.float16]
PROMPT = 5


def rows(dtype: mx.Dtype) -> mx.array:
    """32 rows: spread, full of ties, flat, with impossible tokens, and some that leave nothing to draw."""
    random = np.random.default_rng(4)
    spread, flat = random.normal(0, 3, (8, TOKENS)), random.normal(0, 0.02, (8, TOKENS))
    ties = np.round(random.normal(0, 1, (8, TOKENS)))
    impossible = np.where(np.arange(TOKENS) % 7 == 5, random.normal(0, 1, (8, TOKENS)), -np.inf)
    impossible[1] = -np.inf
    impossible[3, 2] = np.inf
    impossible[5, 2] = np.nan
    return mx.array(np.concatenate([spread, ties, flat, impossible]).astype(np.float32)).astype(dtype)


DEPTHS = [node % 7 for node in range(32)]


def history(node: int) -> History:
    return History([0] * PROMPT, [0] * 2, [0] * DEPTHS[node])


def draws_of(sampling: Sampling, logits: mx.array, kernels: KernelSet, top: int | None = None) -> Draws:
    return Draws(sampling, logits, [PROMPT + 2 + depth for depth in DEPTHS[: logits.shape[0]]], kernels, top)


def token_of(draws: Draws, node: int) -> int | str:
    """The token, or what is said where there is none."""
    try:
        return draws.draw(node, history(node))
    except NoTokenLeft as nothing:
        return str(nothing)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernels", SETS)
def test_tokens_and_log_probabilities_are_those_of_the_host(kernels: str, dtype: mx.Dtype) -> None:
    used = SETS[kernels]()
    logits = rows(dtype)
    for sampling, top in zip(SAMPLINGS, itertools.cycle([0, 1, 20]), strict=False):
        by_host, by_kernel = Draws(sampling, logits), draws_of(sampling, logits, used, top)
        tokens = [token_of(by_host, node) for node in range(32)]
        assert sum(isinstance(token, str) for token in tokens) == (32 if len(sampling.logit_bias) == TOKENS else 3)
        assert [token_of(by_kernel, node) for node in range(32)] == tokens
        for node, token in enumerate(tokens):
            # Also of a token that the draw did not give, as a relaxed rule takes it.
            for one in [token, (token + 1) % TOKENS] if isinstance(token, int) else []:
                found, expected = (draws.likelihood(node, history(node), one, top) for draws in (by_kernel, by_host))
                assert found == expected
    assert used.calls["sample"] == len(SAMPLINGS)


def test_no_row_comes_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_rows(logits: mx.array) -> mx.array:
        raise AssertionError

    logits = rows(mx.float32)[:24]
    expected = [token_of(Draws(SAMPLINGS[6], logits), node) for node in range(24)]
    monkeypatch.setattr(draws_module, "log_softmax", no_rows)
    draws = draws_of(SAMPLINGS[6], logits, ReferenceKernels(), 3)
    tokens = [token_of(draws, node) for node in range(24)]
    assert tokens == expected
    for node, token in enumerate(tokens):
        assert isinstance(token, int)
        assert len(draws.likelihood(node, history(node), token, 3).best) == 3


class Doubtful(KernelSet):
    """Says of every other row that it is too close, and gives a wrong token for it."""

    def sampler(self, dtype: mx.Dtype) -> Sample | None:
        def sample(logits: mx.array, draws: Sequence[Draw], top: int) -> Drawn:
            drawn = reference_sample(logits, draws, top)
            doubtful = mx.arange(len(draws)) % 2 == 0
            tokens = mx.where(doubtful, (drawn.tokens + 1) % TOKENS, drawn.tokens)
            return replace(drawn, tokens=tokens, needs_host=doubtful)

        return sample


def test_rows_that_are_too_close_for_the_kernel_are_drawn_by_the_host() -> None:
    logits = rows(mx.bfloat16)
    by_host, by_kernel = Draws(SAMPLINGS[2], logits), draws_of(SAMPLINGS[2], logits, Doubtful())
    assert [token_of(by_kernel, node) for node in range(32)] == [token_of(by_host, node) for node in range(32)]


def test_odds_are_those_of_the_host() -> None:
    logits = rows(mx.float32)
    by_host, by_kernel = Draws(SAMPLINGS[6], logits), draws_of(SAMPLINGS[6], logits, ReferenceKernels())
    for node in range(24):
        assert by_kernel.odds(node, history(node), [1, 2, 3]) == by_host.odds(node, history(node), [1, 2, 3])


UNFIT: dict[str, tuple[Sampling, mx.array]] = {
    "greedy": (Sampling(), rows(mx.float32)),
    "penalties": (Sampling(temperature=1.0, presence_penalty=0.5), rows(mx.float32)),
    "more rows than a kernel takes": (Sampling(temperature=1.0), mx.zeros((33, TOKENS))),
    "a small vocabulary": (Sampling(temperature=1.0), mx.zeros((2, 7))),
    "a large vocabulary": (Sampling(temperature=1.0), mx.zeros((1, 2**18 + 1))),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_does_not_fit_is_left_to_the_host(case: str) -> None:
    sampling, logits = UNFIT[case]
    kernels = ReferenceKernels()
    draws = Draws(sampling, logits, [PROMPT] * logits.shape[0], kernels)
    assert not kernels.calls
    assert draws.draw(0, History([0] * PROMPT, [])) == Draws(sampling, logits).draw(0, History([0] * PROMPT, []))


def generated(engine_for: EngineFor, model: Any, kernels: KernelSet | None, **values: Any) -> Any:
    text = [node * 5 % VOCABULARY for node in range(60)]
    drafter = ScriptedDrafter(random_trees(text, VOCABULARY, seed=2))
    engine = engine_for(model, drafter=drafter, nodes=12)
    if kernels is not None:
        engine.verifier.kernels = kernels
    result, _ = engine.generate(request(max_tokens=24, ignore_eos=True, seed=5, **values))
    assert result.error is None
    return result


REQUESTS: dict[str, dict[str, Any]] = {
    "sampled": {"temperature": 1.0, "top_p": 0.9},
    "with log-probabilities": {"temperature": 1.0, "logprobs": True, "top_logprobs": 5, "logit_bias": {5: 1.0}},
    "greedy with log-probabilities": {"temperature": 0.0, "logprobs": True, "top_logprobs": 3},
    "relaxed": {"temperature": 1.0, "logprobs": True, "top_logprobs": 2, "acceptance": "ratio:theta=0.9"},
}


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("case", REQUESTS)
def test_a_request_has_the_same_result(engine_for: EngineFor, case: str, kernels: str) -> None:
    model = tiny_model("llama")
    used = SETS[kernels]()
    found = generated(engine_for, model, used, **REQUESTS[case])
    expected = generated(engine_for, model, None, **REQUESTS[case])
    assert found.token_ids == expected.token_ids
    assert found.logprobs == expected.logprobs
    assert used.calls["sample"] > 2
