"""Every family that mlx-lm loads has a tiny model here, and its text is worth comparing."""

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step

from bench.families import FAMILIES, tiny_model

PROMPT = [5, 17, 3, 88, 41, 41, 9, 23, 60, 2, 77]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_greedy_text_wanders_over_many_tokens(name: str) -> None:
    text = [token for token, _ in generate_step(mx.array(PROMPT), tiny_model(name), max_tokens=60)]
    assert len(set(text)) > 8
