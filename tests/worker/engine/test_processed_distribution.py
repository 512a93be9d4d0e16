"""The distribution of a draw against mlx-lm's own processors and samplers, value by value.

The reference is what `make_sampler` hands to its last step, the categorical draw. The filters run uncompiled: each new
parameter would be compiled anew.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm import sample_utils
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from worker.engine.draws import Draws
from worker.engine.sampling import History, Row, Sampling, processed, tempered

Floats = npt.NDArray[np.float64]
NO_HISTORY = History([], [])


@pytest.fixture(autouse=True, scope="module")
def uncompiled() -> Iterator[None]:
    mx.disable_compile()
    yield
    mx.enable_compile()


def log_softmax_of_mlx_lm(logits: mx.array) -> mx.array:
    """As `generate_step` makes it, before its sampler."""
    return logits - mx.logsumexp(logits, keepdims=True)


def filtered_by_mlx_lm(logprobs: mx.array, sampling: Sampling) -> Row:
    """Log-probabilities [vocabulary] as `make_sampler` hands them to its categorical draw; cut ones are -inf."""
    captured: list[mx.array] = []

    def last_step(filtered: mx.array, temperature: float) -> mx.array:
        assert temperature == sampling.temperature
        captured.append(filtered)
        return mx.argmax(filtered, axis=-1)

    # mlx-lm refuses a top_k of the vocabulary or more; it would cut nothing.
    top_k = sampling.top_k if sampling.top_k < logprobs.shape[-1] else 0
    sampler = make_sampler(temp=sampling.temperature, top_p=sampling.top_p, min_p=sampling.min_p, top_k=top_k)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_utils, "categorical_sampling", last_step)
        sampler(logprobs)
    (filtered,) = captured
    return float32(filtered[0])


def kept_of(filtered: Row) -> list[int]:
    return [int(token) for token in np.flatnonzero(filtered > -np.inf)]


def float32(array: mx.array) -> Row:
    return np.array(array.astype(mx.float32))


def softmax(scores: Floats) -> Floats:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


@st.composite
def logits_rows(draw: Any, dtype: mx.Dtype) -> mx.array:
    """Logits [1, 5..300] of any spread, also tied, impossible or extreme; at least one is finite."""
    size = draw(st.integers(5, 300))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    row = rng.normal(0, draw(st.sampled_from([0.01, 0.5, 2.0, 8.0, 40.0])), size)
    kind = draw(st.sampled_from(["plain", "tied", "impossible", "extreme"]))
    if kind == "tied":
        row = np.round(row * 2) / 2
    if kind == "impossible":
        row[rng.random(size) < draw(st.sampled_from([0.1, 0.9, 1.0]))] = -np.inf
    if kind == "extreme":
        row[rng.integers(0, size, 3)] = rng.choice([1e4, -1e4, 60.0, -60.0, 3e38], 3)
    row[rng.integers(0, size)] = 1.0
    return mx.array(row.astype(np.float32))[None].astype(dtype)


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.05, 0.3, 0.7, 1.0, 1.5, 5.0]) | st.floats(0.01, 10),
    top_p=st.just(1.0) | st.sampled_from([0.5, 0.9, 0.95, 1e-6, 0.999999]) | st.floats(1e-9, 1, exclude_max=True),
    min_p=st.just(0.0) | st.sampled_from([0.02, 0.05, 0.5, 1.0]) | st.floats(1e-9, 1),
    top_k=st.just(0) | st.sampled_from([1, 2, 3, 4]) | st.integers(1, 400),
)


def on_the_edge_of_the_nucleus(row: Row, sampling: Sampling) -> set[int]:
    """Tokens whose mass from above is `top_p` to within the rounding of a float32 sum."""
    weights = np.exp(row.astype(np.float64))
    above = np.array([weights[row > value].sum() for value in row]) / weights.sum()
    return set(np.flatnonzero(np.abs(above - sampling.top_p) <= 2e-7 * len(row)).tolist())


def are_ties_of_the_last_places(row: Row, sampling: Sampling, expected: list[int], kept: list[int]) -> bool:
    """Whether two sets of top-k survivors differ in equal tokens alone: mlx-lm leaves open which of them stay."""
    last = row[kept].min()
    ties = all(row[token] == last for token in {*expected} ^ {*kept})
    return len(expected) == len(kept) == sampling.top_k and ties


def differ_by_rounding_or_ties(row: Row, sampling: Sampling, expected: list[int], kept: list[int]) -> bool:
    on_edge = sampling.top_p < 1 and {*expected} ^ {*kept} <= on_the_edge_of_the_nucleus(row, sampling)
    return on_edge or are_ties_of_the_last_places(row, sampling, expected, kept)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(logits=logits_rows(mx.float32), sampling=samplings)
def test_survivors_and_their_probabilities_are_those_of_mlx_lm(logits: mx.array, sampling: Sampling) -> None:
    logprobs = log_softmax_of_mlx_lm(logits)
    row = Draws(sampling, logits).logprobs(0, NO_HISTORY)
    np.testing.assert_array_equal(row, float32(logprobs[0]))
    filtered = filtered_by_mlx_lm(logprobs, sampling)
    tokens, scores = tempered(row, sampling)
    kept = tokens.tolist()
    assert kept == sorted(kept)
    if kept != kept_of(filtered):
        assert differ_by_rounding_or_ties(row, sampling, kept_of(filtered), kept)
        return
    np.testing.assert_array_equal(row[tokens], filtered[tokens])
    expected = softmax(filtered[tokens].astype(np.float64) / sampling.temperature)
    np.testing.assert_allclose(softmax(scores), expected, rtol=1e-12, atol=1e-300)
    # mlx-lm's own last step, in float32: a categorical draw from the softmax of log p * (1 / T).
    in_float32 = float32(mx.softmax(mx.array(filtered) * (1.0 / sampling.temperature)))
    np.testing.assert_allclose(softmax(scores), in_float32[tokens], rtol=1e-3, atol=1e-6)


def test_random_rows_leave_nothing_to_rounding_or_ties() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        logits = mx.array(rng.normal(0, 3, (1, int(rng.integers(5, 300)))).astype(np.float32))
        top_p, min_p, top_k = rng.uniform(0.3, 1), rng.uniform(0, 0.1), int(rng.integers(1, 5))
        sampling = Sampling(temperature=1.0, top_p=top_p, min_p=min_p, top_k=top_k)
        row = Draws(sampling, logits).logprobs(0, NO_HISTORY)
        assert tempered(row, sampling)[0].tolist() == kept_of(filtered_by_mlx_lm(mx.array(row)[None], sampling))


def around_the_threshold_of_min_p(row: Row, sampling: Sampling) -> set[int]:
    """Tokens as near to the threshold as bfloat16, with 8 bits of precision, rounds it and the log it is made of."""
    if sampling.min_p == 0:
        return set()
    log_min_p = float(np.log(sampling.min_p))
    threshold = float(row.max()) + log_min_p
    rounding = (abs(log_min_p) + abs(threshold)) * 2.0**-8
    return set(np.flatnonzero(np.abs(row - threshold) <= rounding).tolist())


@settings(max_examples=300, deadline=None, derandomize=True)
@given(logits=logits_rows(mx.bfloat16), sampling=samplings)
def test_in_bfloat16_only_the_rounding_of_min_p_s_threshold_differs_from_mlx_lm(
    logits: mx.array, sampling: Sampling
) -> None:
    logprobs = log_softmax_of_mlx_lm(logits)
    row = Draws(sampling, logits).logprobs(0, NO_HISTORY)
    np.testing.assert_array_equal(row, float32(logprobs[0]))
    tokens, scores = tempered(row, sampling)
    kept = tokens.tolist()
    # mlx-lm's filters over the same values in float32 leave what ours leave.
    in_float32 = filtered_by_mlx_lm(mx.array(row)[None], sampling)
    assert kept == kept_of(in_float32) or differ_by_rounding_or_ties(row, sampling, kept_of(in_float32), kept)
    expected = softmax(row[tokens].astype(np.float64) / sampling.temperature)
    np.testing.assert_allclose(softmax(scores), expected, rtol=1e-12, atol=1e-300)
    in_bfloat16 = kept_of(filtered_by_mlx_lm(logprobs, replace(sampling, top_k=0)))
    ours = tempered(row, replace(sampling, top_k=0))[0].tolist()
    on_edge = around_the_threshold_of_min_p(row, sampling) | on_the_edge_of_the_nucleus(row, sampling)
    assert {*in_bfloat16} ^ {*ours} <= on_edge


def test_the_filters_run_in_mlx_lm_s_order() -> None:
    # The second token's mass from above, 0.4, is below top-p. It would not be after top-k 2, which leaves 0.4 of 0.7,
    # nor after temperature 0.5, which leaves 0.16 of 0.3.
    logits = mx.log(mx.array([[0.4, 0.3, 0.2, 0.1]]))
    sampling = Sampling(temperature=0.5, top_p=0.5, top_k=2)
    row = Draws(sampling, logits).logprobs(0, NO_HISTORY)
    tokens, scores = tempered(row, sampling)
    assert tokens.tolist() == kept_of(filtered_by_mlx_lm(mx.array(row)[None], sampling)) == [0, 1]
    np.testing.assert_allclose(softmax(scores), [0.64, 0.36], rtol=1e-6)


penalties = st.fixed_dictionaries(
    {
        "repetition_penalty": st.just(1.0) | st.floats(0.5, 2.0),
        "presence_penalty": st.just(0.0) | st.floats(-2, 2),
        "frequency_penalty": st.just(0.0) | st.floats(-2, 2),
        "logit_bias": st.dictionaries(st.integers(0, 39), st.floats(-100, 100), max_size=5),
    }
)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    asked=penalties,
    context=st.lists(st.integers(0, 39), min_size=1, max_size=60),
    size=st.sampled_from([1, 2, 5, 20, 100]),
    seed=st.integers(0, 2**32),
    min_tokens=st.integers(0, 3),
    split=st.tuples(st.integers(0, 60), st.integers(0, 4)),
)
def test_processed_rows_are_those_of_mlx_lm_s_processors_bit_for_bit(
    dtype: mx.Dtype,
    asked: dict[str, Any],
    context: list[int],
    size: int,
    seed: int,
    min_tokens: int,
    split: tuple[int, int],
) -> None:
    logits = mx.array(np.random.default_rng(seed).normal(0, 4, (1, 40)).astype(np.float32)).astype(dtype)
    expected = mx.array(logits)
    sizes = {f"{kind}_context_size": size for kind in ("repetition", "presence", "frequency")}
    for processor in make_logits_processors(**asked, **sizes):
        expected = processor(mx.array(context), expected)
    wanted = float32(expected[0])
    prompt = context[: split[0]]
    completion = context[len(prompt) : len(context) - split[1]]
    history = History(prompt, completion, context[len(prompt) + len(completion) :])
    sampling = Sampling(**asked, penalty_context_size=size, min_tokens=min_tokens, suppressed=frozenset({0, 7}))
    if len(context) - len(prompt) < min_tokens:
        wanted[[0, 7]] = -np.inf
    before = float32(logits[0])
    np.testing.assert_array_equal(float32(processed(logits, sampling, history)[0]), wanted)
    np.testing.assert_array_equal(float32(logits[0]), before)
