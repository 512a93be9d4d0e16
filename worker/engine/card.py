"""A checkpoint's card: the facts in the front matter of its README.md."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

CARD = "README.md"
QUANTIZED = "quantized"


def front_matter(directory: Path, notify: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """The facts of the card in `directory`; none without one. notify: told of a card that cannot be read."""
    path = directory / CARD
    if not path.is_file():
        return {}
    try:
        from huggingface_hub import metadata_load  # a producer's machine has none

        return metadata_load(path) or {}
    except Exception as error:  # noqa: BLE001 - a README is prose: whatever its parser trips over, the model is good
        notify(f"{path}: its front matter cannot be read, so it counts as no card: {' '.join(str(error).split())}")
        return {}


def base_models(facts: Mapping[str, Any]) -> list[str]:
    """The models that a card says its own is derived from, or made for."""
    named = facts.get("base_model") or []
    return [str(name) for name in (named if isinstance(named, list) else [named])]


def base_relation(facts: Mapping[str, Any]) -> str | None:
    """What the model is to its bases: QUANTIZED, finetune, merge, adapter; None where nothing is said."""
    relation = facts.get("base_model_relation")
    return str(relation).strip().lower() if relation else None
