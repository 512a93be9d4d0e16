"""Requests to an engine over a scripted target, and what every answer has to satisfy."""

from collections.abc import Sequence
from typing import Any

from scripted_model import cached_tokens
from toy_tokenizer import token_id

from api.schemas import GenerationRequest, GenerationResult
from worker.engine.engine import Engine

PROMPT = "Q:"
PROMPT_IDS = [token_id(character) for character in PROMPT]
END = 0
WIDTHS = [1, 2, 4, 8]
"""How many right tokens the drafter proposes per round."""


def ids(text: str) -> list[int]:
    return [token_id(character) for character in text]


def request(**values: Any) -> GenerationRequest:
    return GenerationRequest.model_validate({"request_id": "r-1", "prompt": PROMPT, "raw": True, **values})


def answer(engine: Engine, **values: Any) -> GenerationResult:
    result, _ = engine.generate(request(**values))
    assert result.error is None
    return result


def held(engine: Engine) -> list[int]:
    """The tokens in the target's cache, which have to be those that the session believes it holds."""
    tokens = cached_tokens(engine._session.cache)
    assert tokens == engine._session.tokens
    return tokens


def assert_agrees(result: GenerationResult, tokens: Sequence[int]) -> None:
    """Ids, usage and logprobs speak of the same tokens."""
    assert result.token_ids == list(tokens)
    assert result.usage is not None
    assert result.usage.completion_tokens == len(tokens)
    assert result.usage.prompt_tokens == len(PROMPT_IDS)
    if result.logprobs is not None:
        assert [entry.token_id for entry in result.logprobs] == list(tokens)
