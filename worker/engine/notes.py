"""Notes: what a user should know of how a request was answered, one sentence each."""

from collections.abc import Sequence

from api.schemas import Choice, GenerationRequest
from worker.engine.sampling import Sampling


def notes_of(
    request: GenerationRequest, choices: Sequence[Choice], sampling: Sampling, window: int, max_tokens: int
) -> list[str]:
    """window: tokens of the context that the prompt left. max_tokens: the cap in force."""
    reasons = {choice.finish_reason for choice in choices}
    notes = []
    if request.max_tokens and request.max_tokens > window:
        notes.append(f"max_tokens {request.max_tokens} clamped to {window}, the rest of the context window")
    if request.thinking_budget is not None and sampling.thinking_budget is None:
        notes.append("thinking_budget has no effect: this model does not mark its thinking by single tokens")
    if request.n > 1 and sampling.temperature == 0:
        notes.append(f"n {request.n} has no effect on the text: at temperature 0 all choices are the same")
    if request.max_tokens is None and "length" in reasons:
        what = "context window" if max_tokens == window else f"default cap of {max_tokens} tokens"
        notes.append(f"no max_tokens was given; the answer ends with the {what}")
    if "repetition" in reasons:
        limit = request.max_repetition
        notes.append(f"the text repeats itself more than max_repetition {limit:g} allows, and ends there")
    if "time_limit" in reasons:
        missing = request.n - len(choices)
        unbegun = f"; {missing} of {request.n} choices were not begun" if missing else ""
        notes.append(f"the time of max_seconds {request.max_seconds:g} is over, and the text ends there{unbegun}")
    return notes
