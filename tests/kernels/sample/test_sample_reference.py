"""The reference restates the engine's draw; here it is held to it."""

import mlx.core as mx
import numpy as np
import pytest
from sample_cases import DRAWS, KINDS, LONG_TIES, engine_logprobs, engine_token, logits_of, rows_of, sampling_of

from kernels.sample import Draw, chosen, sample
from kernels.sample.reference import draw_token, gumbel_noise, reference_sample, survivors
from worker.engine import philox
from worker.engine.sampling import candidates


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_survivors_and_draws_are_the_engines(kind: str, dtype: mx.Dtype) -> None:
    for vocabulary in (9, 700, 3000):
        row = engine_logprobs(mx.array(logits_of(kind, vocabulary, 1)[None]).astype(dtype))[0]
        for asked in [*DRAWS, LONG_TIES]:
            if asked.temperature > 0:
                assert survivors(row, asked).tolist() == candidates(row, sampling_of(asked)).tolist()
            assert draw_token(row, asked) == engine_token(row, asked)


def test_noise_is_the_engines_to_the_last_bit() -> None:
    tokens = np.array([0, 1, 2, 3, 151_935, 262_143])
    for seed, position in ((0, 0), (1, 2**32 - 1), (2**64 - 1, 12345)):
        assert gumbel_noise(seed, position, tokens).tolist() == philox.gumbel_noise(seed, position, tokens).tolist()


def test_the_top_is_in_order_with_lowest_ids_first_and_without_what_cannot_be_drawn() -> None:
    logits = mx.array([[0.0, 2.0, -np.inf, 2.0, 1.0, -np.inf, 0.0, 0.0], [-np.inf] * 3 + [1.0] + [-np.inf] * 4])
    drawn = reference_sample(logits, [Draw(), Draw()], 5)
    assert drawn.tokens.tolist() == [1, 3]
    assert drawn.top_tokens.tolist() == [[1, 3, 4, 0, 6], [3, -1, -1, -1, -1]]
    weights = np.exp([2.0, 2.0, 1.0, 0.0, 0.0])
    np.testing.assert_allclose(drawn.top_logprobs[0], np.log(weights / (weights.sum() + 1)), rtol=1e-6)
    assert drawn.top_logprobs[1].tolist() == [0.0] + [-np.inf] * 4
    assert drawn.logprobs.tolist() == [drawn.top_logprobs[0, 0].item(), 0.0]


def test_without_a_gpu_the_reference_is_chosen_and_the_reasons_are_kept() -> None:
    with mx.stream(mx.cpu):
        if mx.default_device() != mx.cpu:
            pytest.skip("this machine's default device is a GPU")
        choice = chosen(mx.float32)
        assert choice.name == "reference"
        assert set(choice.refused) == {"metal", "metal256", "cuda"}
        logits = rows_of(2, 64, mx.float32)
        assert sample(logits, DRAWS[1:3]).tokens.tolist() == reference_sample(logits, DRAWS[1:3]).tokens.tolist()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0; expected a number from 0"),
        ({"temperature": float("nan")}, "temperature is nan; expected a number from 0"),
        ({"top_p": 1.5}, "top_p is 1.5; expected 0 to 1"),
        ({"min_p": -0.1}, "min_p is -0.1; expected 0 to 1"),
        ({"top_k": -1}, "top_k is -1; expected 0 to 2^32 - 1"),
        ({"seed": 2**64}, "expected 0 to 2^64 - 1"),
        ({"position": 2**32}, "expected 0 to 2^32 - 1"),
    ],
)
def test_a_draw_says_which_value_is_out_of_range(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        Draw(**values)  # type: ignore[arg-type]
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("logits", "draws", "top", "message"),
    [
        (mx.zeros((1, 64), dtype=mx.int32), 1, 0, "expected float32, bfloat16 or float16 [N, V]"),
        (mx.zeros((64,)), 1, 0, "expected float32, bfloat16 or float16 [N, V]"),
        (mx.zeros((2, 64)), 1, 0, "2 rows of logits and 1 draws"),
        (mx.zeros((33, 64)), 33, 0, "expected 1 to 32"),
        (mx.zeros((1, 7)), 1, 0, "a vocabulary of 7"),
        (mx.zeros((1, 64)), 1, 33, "top is 33; expected 0 to 32"),
    ],
)
def test_shapes_and_counts_out_of_range_are_refused(logits: mx.array, draws: int, top: int, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        sample(logits, [Draw()] * draws, top)
    assert message in str(raised.value)
