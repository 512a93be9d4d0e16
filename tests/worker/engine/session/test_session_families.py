"""Text that goes on from reused caches is mlx-lm's text from a cold start, on models of every kind of cache."""

import random
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step

from bench.families import tiny_model, vocabulary
from worker.engine.session import PrefixTree, Session
from worker.engine.verify.selfcheck import decide_mode
from worker.engine.verify.verifier import Mode, Verifier

TEXT = 6
CHUNK = 24

FAMILIES = [
    ("llama", "tree"),
    ("gemma3_text", "tree"),  # sliding windows
    ("gemma3_text", "chain"),
    ("qwen3_next", "tree"),  # recurrent states
    ("falcon_h1", "tree"),  # a state and rows in each layer
    ("deepseek_v32", "tree"),  # two row caches in each layer
    ("llama4", "tree"),  # attention in chunks
    ("rwkv7", "chain"),
    ("deepseek_v41", "chain"),  # a cache class of its own
]


def cold_text(model: Any, prompt: list[int]) -> list[int]:
    steps = generate_step(mx.array(prompt), model, max_tokens=TEXT, prefill_step_size=CHUNK)
    return [int(token) for token, _ in steps]


def warm_text(session: Session, prompt: list[int]) -> list[int]:
    """Greedy text, with the argmax of log-probabilities as mlx-lm takes it."""
    text: list[int] = []
    for _ in range(TEXT):
        pending = [*prompt, *text][-1]
        logits = session._verifier.step(mx.array([pending]), session.cache)
        session.extend([pending])
        text.append(int(mx.argmax(logits[-1] - mx.logsumexp(logits[-1])).item()))
    return text


def prompts_of(family: str) -> list[list[int]]:
    """A system prompt with one question after the other, earlier ones again, a part of it, and a next turn."""
    rng = random.Random(family)

    def some(count: int) -> list[int]:
        return [rng.randrange(vocabulary(family)) for _ in range(count)]

    system = some(40)
    questions = [[*system, *some(count)] for count in (36, 40, 5, 33)]
    return [*questions, questions[0], [*questions[1], *some(9)], [*system[:34], *some(3)], [*questions[3], *some(36)]]


@pytest.mark.parametrize(("family", "mode"), FAMILIES)
def test_reused_caches_change_no_text(family: str, mode: Mode) -> None:
    cached = reused(tiny_model(family), prompts_of(family), mode)
    # From the third question on the system prompt is there, and the first question again is there whole.
    assert cached[0] == 0
    assert cached[2:5] == [40, 40, 75]
    assert cached[5] >= 79


def test_content_that_depends_on_the_prefill_is_made_as_in_a_cold_one() -> None:
    # Rope whose base grows with the end of a pass beyond 60 positions, in passes of 24.
    model = tiny_model("internlm3_past", max_position_embeddings=60)
    assert Verifier(model, "chain").reusable == 60
    cached = reused(model, prompts_of("internlm3_past"), "chain")
    # Two passes of the first question, at least 32 tokens beyond what was kept, and else the system prompt.
    assert cached == [0, 40, 40, 40, 48, 40, 34, 40]


def test_nothing_is_reused_where_no_row_is_sure_to_be_that_of_a_cold_prefill() -> None:
    # mlx-lm's mask for several tokens shows its windows more than one-token decoding sees.
    model = tiny_model("plamo3")
    verdict = decide_mode(model, vocabulary("plamo3"), mx.float32)
    assert verdict.mode == "tree"
    assert not verdict.reuses_prefixes
    assert reused(model, prompts_of("plamo3"), "tree", verdict.reuses_prefixes) == [0] * 8


def reused(model: Any, prompts: list[list[int]], mode: Mode, reuses_prefixes: bool = True) -> list[int]:
    """Tokens of each prompt that were in the cache; every text is that of a cold start."""
    expected = [cold_text(model, prompt) for prompt in prompts]
    assert len({tuple(text) for text in expected}) > 5
    verifier = Verifier(model, mode, reuses_prefixes)
    session = Session(verifier, PrefixTree(10**9), verifier.reusable)
    cached = []
    for prompt, text in zip(prompts, expected, strict=True):
        cached.append(session.begin(prompt, CHUNK))
        assert warm_text(session, prompt) == text
    return cached
