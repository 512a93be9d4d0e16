"""Prompts to measure with: a file of the user's, or the few that come with the program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from api.errors import InputError

if TYPE_CHECKING:
    from worker.engine.comparison import Prompt

SHIPPED = Path(__file__).with_name("prompts.jsonl")
MOST_KINDS = 6
"""A file with more of them was not made to be told apart by kinds."""


def shipped_prompts(*, max_tokens: int) -> list[Prompt]:
    """The prompts that come with the program, `structured` and `open` ones."""
    return measured_prompts(SHIPPED, max_tokens=max_tokens)


def measured_prompts(path: Path, *, max_tokens: int) -> list[Prompt]:
    """The prompts of a file, to be decoded greedily and without penalties.

    The kind is what a line's custom_id says before its first hyphen, as in `code-primes`. Of a line only the prompt
    counts, and what shapes it: messages, tools, thinking. Raises InputError for a file with a bad line.
    """
    from api.dataset.reader import Dataset, LineError
    from api.schemas import GenerationRequest
    from worker.engine.comparison import Prompt

    prompts = []
    for line in Dataset(path):
        if isinstance(line, LineError):
            raise InputError(f"{path}, line {line.line}: {line.message}")
        body = line.body.model_dump(include=_PROMPT_FIELDS, exclude_none=True)
        identity = {"request_id": f"measured-{line.line}", "max_tokens": max_tokens}
        request = GenerationRequest.model_validate({**body, **_GREEDY, **identity})
        prompts.append(Prompt(line.custom_id, line.custom_id.partition("-")[0], request))
    if len({prompt.kind for prompt in prompts}) > MOST_KINDS:
        return [Prompt(prompt.name, "", prompt.request) for prompt in prompts]
    return prompts


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
