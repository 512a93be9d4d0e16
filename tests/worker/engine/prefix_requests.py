"""Requests that share the start of their prompt."""

from typing import Any

from toy_tokenizer import token_id

from api.schemas import GenerationRequest

PROMPT = "shared-prefix:"


def ids(text: str) -> list[int]:
    return [token_id(character) for character in text]


def request(**values: Any) -> GenerationRequest:
    base: dict[str, Any] = {"request_id": "r-1", "raw": True, "ignore_eos": True, "max_tokens": 30}
    if "messages" in values:
        base.pop("raw")
    else:
        base["prompt"] = PROMPT
    return GenerationRequest.model_validate({**base, **values})
