"""Parity with plain decoding: what counts as the same, and what as a near tie."""

from typing import Any

import mlx.core as mx
import pytest
from engine_maker import EngineFor
from plain_decoding import plain_tokens

from worker.engine.plain_text import PlainText, plain_text

# The second position is a near tie, the others are not.
TEXT = PlainText([5, 6, 7], [2.0, 0.01, 1.0])
ENDED = PlainText([5, 6], [2.0, 2.0, 0.01])


@pytest.mark.parametrize(
    ("text", "tokens", "position"),
    [
        (TEXT, [5, 6, 7], None),
        (TEXT, [9, 6, 7], 0),
        (TEXT, [5, 6, 9], 2),
        (TEXT, [5, 6], 2),
        (TEXT, [5, 6, 7, 8], 3),
        (TEXT, [], 0),
    ],
)
def test_the_first_difference(text: PlainText, tokens: list[int], position: int | None) -> None:
    assert text.first_difference(tokens) == position


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_the_same_text_is_the_same_in_every_type(dtype: mx.Dtype) -> None:
    assert TEXT.parity([5, 6, 7], dtype) == "same"


@pytest.mark.parametrize(
    ("text", "tokens", "in_16_bit"),
    [
        (TEXT, [5, 9, 1], "near tie"),
        (TEXT, [5, 6, 9], "different"),
        (TEXT, [5], "near tie"),
        (TEXT, [5, 6, 7, 8], "different"),
        # Where plain decoding ended by a hair, another text may go on.
        (ENDED, [5, 6, 1], "near tie"),
    ],
)
def test_a_near_tie_excuses_16_bit_and_not_float32(text: PlainText, tokens: list[int], in_16_bit: str) -> None:
    assert text.parity(tokens, mx.bfloat16) == in_16_bit
    assert text.parity(tokens, mx.float32) == "different"


def test_the_reference_is_plain_decoding_with_the_margin_of_each_token(llama: Any, engine_for: EngineFor) -> None:
    target = engine_for(llama).target
    prompt = [5, 9, 20, 31]
    text = plain_text(target, prompt, 12)
    assert text.tokens == plain_tokens(llama, prompt, 12, end_tokens=[0])
    # Margins of the logits are those of the log-probabilities.
    logits = llama(mx.array([[*prompt, *text.tokens]]))[0].astype(mx.float32)
    for place, margin in enumerate(text.margins):
        best, second = sorted(logits[len(prompt) - 1 + place].tolist(), reverse=True)[:2]
        assert margin == pytest.approx(best - second, abs=1e-4)
