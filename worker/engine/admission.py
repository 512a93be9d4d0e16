"""What a model can take of a request: what is refused, and where the text has to end at the latest."""

from collections.abc import Sequence

from api.schemas import GenerationRequest
from worker.engine.completion import EndRules
from worker.engine.loading import Target
from worker.engine.prompt import PromptError


def check_context(prompt: Sequence[int], target: Target) -> None:
    """Raises PromptError, with both numbers, for a prompt that leaves no room for an answer."""
    if len(prompt) >= target.context:
        raise PromptError(
            "context_length_exceeded",
            f"the prompt has {len(prompt)} tokens, and the context window of {target.spec} holds "
            f"{target.context} with at least one token of the answer",
        )


def check_token_ids(request: GenerationRequest, prompt: Sequence[int], target: Target) -> None:
    """Raises PromptError for an id past the vocabulary, which a tokenizer may have for a token of another model.

    MLX checks no bounds: it would read past the embeddings' end, or write past the logits'.
    """
    named = {"logit_bias": request.logit_bias or {}, "stop_token_ids": request.stop_token_ids, "the prompt": prompt}
    for name, ids in named.items():
        for token in (min(ids), max(ids)) if ids else ():
            if not 0 <= token < target.vocabulary:
                raise PromptError(
                    "invalid_token_id",
                    f"{name} names token {token}, and the vocabulary of {target.spec} has the ids 0 to "
                    f"{target.vocabulary - 1}",
                )


def end_rules(request: GenerationRequest, window: int, target: Target, default_max_tokens: int) -> EndRules:
    """window: tokens of the context that the prompt leaves."""
    return EndRules(
        max_tokens=min(request.max_tokens or default_max_tokens, window),
        end_tokens=frozenset() if request.ignore_eos else frozenset(target.tokenizer.eos_token_ids),
        stop_tokens=frozenset(request.stop_token_ids),
        stops=tuple(request.stop),
        max_repetition=request.max_repetition,
    )
