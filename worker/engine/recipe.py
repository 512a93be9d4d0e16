"""The sampling recipe of a request: every value resolved in one place, with its origin.

request > profile of the producer > the model's card > the model's generation_config.json > engine default.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from api.schemas import GenerationRequest, NamedProfile, ResolvedValue
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


def with_profile(request: GenerationRequest) -> GenerationRequest:
    """`request` with its profile's values where it says nothing itself; the profile keeps just those that it lent."""
    if request.profile is None:
        return request
    values = request.profile.model_dump(exclude={"name"}, exclude_none=True)
    lent = {name: value for name, value in values.items() if getattr(request, name) is None}
    return request.model_copy(update={**lent, "profile": NamedProfile(name=request.profile.name, **lent)})


def resolve(request: GenerationRequest, model_recipe: Mapping[str, ResolvedValue]) -> dict[str, ResolvedValue]:
    """The values in force, each with its source; the seed is derived from the request id unless given.

    request: as `with_profile` leaves it. model_recipe: what the model's own files state.
    """
    resolved = {}
    for name, default in DEFAULTS.items():
        asked = getattr(request, name)
        if asked is not None:
            lent = request.profile is not None and getattr(request.profile, name) is not None
            resolved[name] = ResolvedValue(value=asked, source="profile" if lent else "request")
        else:
            resolved[name] = model_recipe.get(name) or ResolvedValue(value=default, source="default")
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
