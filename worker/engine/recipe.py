"""The sampling recipe of a request: every value resolved in one place, with its origin.

request > the model's own generation_config.json > engine default. A derivative's card overrides its base model's, and
the file that comes with the weights is that card's machine-readable form.
"""

import hashlib
from typing import Any

from api.schemas import GenerationRequest, ResolvedValue
from worker.engine.sampling import Sampling

DEFAULTS: dict[str, Any] = {
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "penalty_context_size": 20,
}


def resolve(request: GenerationRequest, model_defaults: dict[str, Any]) -> dict[str, ResolvedValue]:
    """The values in force, each with its source; the seed is derived from the request id unless given."""
    resolved = {}
    for name, default in DEFAULTS.items():
        asked = getattr(request, name)
        if asked is not None:
            resolved[name] = ResolvedValue(value=asked, source="request")
        elif name in model_defaults:
            resolved[name] = ResolvedValue(value=model_defaults[name], source="model")
        else:
            resolved[name] = ResolvedValue(value=default, source="default")
    if request.seed is not None:
        resolved["seed"] = ResolvedValue(value=request.seed, source="request")
    else:
        resolved["seed"] = ResolvedValue(value=derived_seed(request.request_id), source="default")
    return resolved


def derived_seed(request_id: str) -> int:
    """64 bits of the request id's SHA-256, so that a retried request draws the same text."""
    return int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:8], "little")


def sampling_of(
    request: GenerationRequest, resolved: dict[str, ResolvedValue], end_tokens: frozenset[int], tokenizer: Any
) -> Sampling:
    """The engine's form of a resolved recipe."""
    values: dict[str, Any] = {name: value.value for name, value in resolved.items()}
    think_start, think_end = _thinking_markers(tokenizer)
    return Sampling(
        **values,
        logit_bias=dict(request.logit_bias or {}),
        min_tokens=request.min_tokens,
        suppressed=end_tokens,
        thinking_budget=request.thinking_budget if think_end is not None else None,
        think_start=think_start,
        think_end=think_end,
    )


def _thinking_markers(tokenizer: Any) -> tuple[int | None, int | None]:
    """The tokens that open and close thinking; None and None when there are none, or markers of several tokens."""
    try:
        return tokenizer.think_start_id, tokenizer.think_end_id
    except ValueError:
        return None, None
