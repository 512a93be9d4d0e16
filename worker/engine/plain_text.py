"""Plain text: mlx-lm's own greedy decoding of a prompt, and how a text of ours compares with it.

A pass over several rows rounds differently from a pass over one, so in 16 bit a near tie can fall the other way; from
there on the texts differ for good. In float32 they are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

import mlx.core as mx
from mlx_lm.generate import generate_step

from worker.engine.loading import Target

NEAR_TIE = 0.05

Parity = Literal["same", "near tie", "different"]


@dataclass(frozen=True)
class PlainText:
    """Token ids without the end token.

    margins[i]: log-probability of the likeliest token at position i over that of the second; the end token's position
    has one too.
    """

    tokens: list[int]
    margins: list[float]

    def first_difference(self, tokens: Sequence[int]) -> int | None:
        """The position at which `tokens` leave this text."""
        pairs = enumerate(zip_longest(self.tokens, tokens))
        return next((position for position, (expected, token) in pairs if token != expected), None)

    def parity(self, tokens: Sequence[int], dtype: mx.Dtype) -> Parity:
        """How `tokens`, of a model that computes in `dtype`, compare with this text."""
        position = self.first_difference(tokens)
        if position is None:
            return "same"
        is_tie = position < len(self.margins) and self.margins[position] < NEAR_TIE
        return "near tie" if is_tie and dtype != mx.float32 else "different"


def plain_text(target: Target, prompt: Sequence[int], max_tokens: int) -> PlainText:
    """Decode with mlx-lm's `generate_step`, one token a pass, until an end token or `max_tokens`; without kernels."""
    with target.products.suspended() if target.products else nullcontext():
        return _plain_text(target, prompt, max_tokens)


def _plain_text(target: Target, prompt: Sequence[int], max_tokens: int) -> PlainText:
    tokens, margins = list[int](), list[float]()
    for token, logprobs in generate_step(mx.array(list(prompt)), target.model, max_tokens=max_tokens):
        best = mx.topk(logprobs.astype(mx.float32), 2)
        margins.append(_number(best.max() - best.min()))
        if token in target.tokenizer.eos_token_ids:
            break
        tokens.append(int(token))
    return PlainText(tokens, margins)


def _number(value: mx.array) -> float:
    number = value.item()
    assert isinstance(number, float)
    return number
