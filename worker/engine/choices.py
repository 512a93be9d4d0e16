"""Choices: the answers to one request, each with noise of its own, and what they come to."""

import hashlib
from collections.abc import Sequence
from typing import Any

from api.schemas import Choice, Usage
from worker.engine.completion import Completion
from worker.engine.logprobs import LogprobRecord
from worker.engine.prompt import split_reasoning
from worker.engine.reasoning import Reasoning
from worker.engine.sampling import Sampling


def choice_seed(seed: int, number: int) -> int:
    """64 bits. The first choice has the request's own seed, and no choice depends on how many there are."""
    if number == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:8], "little")


def choice_of(
    completion: Completion, record: LogprobRecord | None, prompt: Sequence[int], sampling: Sampling, tokenizer: Any
) -> Choice:
    """A finished completion as an answer."""
    opened = Reasoning(sampling.think_start, sampling.think_end, prompt).spent is not None
    reasoning, text = split_reasoning(completion.text, opened, tokenizer.think_start, tokenizer.think_end)
    return Choice(
        text=text,
        reasoning=reasoning,
        finish_reason=completion.finish_reason,
        matched_stop=completion.matched_stop,
        token_ids=list(completion.tokens),
        logprobs=None if record is None else record.of(completion.tokens),
    )


def usage_of(choices: Sequence[Choice], prompt_tokens: int, cached: int, think_end: int | None) -> Usage:
    """The prompt once, and the completion tokens of all choices."""
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=sum(len(choice.token_ids) for choice in choices),
        cached_prompt_tokens=cached,
        reasoning_tokens=sum(_reasoning_length(choice, think_end) for choice in choices),
    )


def _reasoning_length(choice: Choice, think_end: int | None) -> int:
    if choice.reasoning is None:
        return 0
    return choice.token_ids.index(think_end) + 1 if think_end in choice.token_ids else len(choice.token_ids)
