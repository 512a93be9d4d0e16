"""Prompts to measure with: a file of the user's, or the few that are installed with the program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from api.errors import InputError

if TYPE_CHECKING:
    from api.schemas import GenerationRequest

SHIPPED = Path(__file__).with_name("prompts.jsonl")


def shipped_requests(*, max_tokens: int) -> list[tuple[str, GenerationRequest]]:
    """(kind, request) of the prompts that come with the program, `structured` and `open` ones."""
    return measured_requests(SHIPPED, max_tokens=max_tokens)


def measured_requests(path: Path, *, max_tokens: int) -> list[tuple[str, GenerationRequest]]:
    """(kind, request) of each prompt of a file, to be decoded greedily and without penalties.

    The kind is what a line's custom_id says before its first hyphen, as in `code-primes`. Of a line only the prompt
    counts, and what shapes it: messages, tools, thinking. Raises InputError for a file with a bad line.
    """
    from api.dataset.reader import Dataset, LineError
    from api.schemas import GenerationRequest

    requests = []
    for line in Dataset(path):
        if isinstance(line, LineError):
            raise InputError(f"{path}, line {line.line}: {line.message}")
        body = line.body.model_dump(include=_PROMPT_FIELDS, exclude_none=True)
        kind, hyphen, _ = line.custom_id.partition("-")
        request = GenerationRequest.model_validate(
            {**body, **_GREEDY, "max_tokens": max_tokens, "request_id": f"measured-{line.line}"}
        )
        requests.append((kind if hyphen else "", request))
    return requests


_PROMPT_FIELDS = {
    "messages",
    "prompt",
    "raw",
    "tools",
    "tool_choice",
    "thinking",
    "reasoning_effort",
    "chat_template_kwargs",
}
# A request's values win over those of the model's own files.
_GREEDY = {
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
