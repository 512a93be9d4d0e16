"""What a checkpoint is: a model that answers, or a helper that only drafts for one. Its own config.json says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from api.errors import ModelError

HelperKind = Literal["dflash", "gemma_assistant", "mtp"]

_BY_ARCHITECTURE: dict[str, HelperKind] = {"DFlashDraftModel": "dflash", "DFlash2DraftModel": "dflash"}
_BY_TYPE: dict[str, HelperKind] = {
    "gemma4_assistant": "gemma_assistant",
    "gemma4_unified_assistant": "gemma_assistant",
    "qwen3_5_mtp": "mtp",
}


@dataclass(frozen=True)
class TargetShape:
    """What a drafter has to fit: the hidden size, embedding rows and decoder blocks of a target; None = not known."""

    hidden_size: int | None
    vocab_size: int | None
    layers: int | None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> TargetShape:
        """As a target's config.json states it."""
        text = config.get("text_config")
        fields = {**config, **text} if isinstance(text, Mapping) else config
        stated = [fields.get(name) for name in ("hidden_size", "vocab_size", "num_hidden_layers")]
        return cls(*(value if type(value) is int else None for value in stated))


def helper_kind(config: Mapping[str, Any]) -> HelperKind | None:
    """Which drafter a checkpoint with this config.json is; None for a model that can answer by itself."""
    for architecture in config.get("architectures") or []:
        if architecture in _BY_ARCHITECTURE:
            return _BY_ARCHITECTURE[architecture]
    return _BY_TYPE.get(str(config.get("model_type")))


def read_config(directory: Path) -> dict[str, Any]:
    """A checkpoint's config.json. Raises ModelError."""
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); a checkpoint has a config.json") from error
    except ValueError as error:
        raise ModelError(f"{path}: not JSON ({error}); repair it or download the checkpoint again") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path}: holds no object; repair it or download the checkpoint again")
    return config


def refuse_helper(directory: Path, spec: str) -> None:
    """Raise ModelError when `directory` holds a drafter, which cannot answer by itself."""
    if (directory / "config.json").is_file() and (kind := helper_kind(read_config(directory))):
        raise ModelError(
            f"model {spec} is a drafter ({kind}), which only guesses for another model; "
            f"name that model, and this one with --drafter {spec}"
        )
