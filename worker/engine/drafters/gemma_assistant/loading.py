"""Loading an assistant for a target, and checking that it was made for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from api.errors import ModelError
from worker.engine.drafters.gemma_assistant.checkpoint import load_network
from worker.engine.drafters.gemma_assistant.config import AssistantConfig, read_config
from worker.engine.drafters.gemma_assistant.drafter import AssistantSettings, GemmaAssistantDrafter
from worker.engine.drafters.gemma_assistant.lender import Lender
from worker.engine.drafters.metadata import TargetShape
from worker.engine.memory import ReadWeights, read_weights


def load_gemma_assistant(
    directory: Path, target: Any, settings: AssistantSettings | None = None, read: ReadWeights = read_weights
) -> GemmaAssistantDrafter:
    """The assistant in `directory`, for a target as mlx-lm loads it. read: reads its weights.

    Raises ModelError that names file and field or tensor, also when the two do not pair.
    """
    try:
        lender = Lender(target)
    except ValueError as error:
        raise ModelError(f"{directory}: no Gemma-4 assistant can serve this target: {error}") from error
    config = read_config(directory)
    _check_pair(directory / "config.json", config, lender)
    network = load_network(directory, config, lender.dtype, read)
    return GemmaAssistantDrafter(network, config, lender, settings or AssistantSettings())


def _check_pair(path: Path, config: AssistantConfig, lender: Lender) -> None:
    made_for_another = "it is made for another target"
    config.check_pair(path, TargetShape(lender.hidden_size, lender.vocab_size, None))
    for kind in sorted(set(config.layer_types)):
        attention = lender.attention(kind)
        if attention is None:
            raise ModelError(f"{path}: layer_types has {kind}, but the target has no such layer: {made_for_another}")
        width = config.head_dims[kind]
        if width != attention.head_dim or config.num_attention_heads % attention.n_kv_heads:
            raise ModelError(
                f"{path}: {config.num_attention_heads} heads of {width} in {kind} layers do not fit the target's "
                f"{attention.n_kv_heads} of {attention.head_dim}: {made_for_another}"
            )
