"""What a model's own files say of sampling: its card (the front matter of README.md) and generation_config.json.

A value of the card wins: a derivative often brings its base model's generation_config.json along, unchanged.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from api.errors import ModelError
from api.schemas import ResolvedValue, SamplingParams
from worker.engine.card import CARD, QUANTIZED, base_models, base_relation, front_matter
from worker.engine.recipe import DEFAULTS

GENERATION_CONFIG = "generation_config.json"


@dataclass(frozen=True)
class Card:
    """values: the sampling values under `inference: parameters:`. base: the models that this one is derived from."""

    values: dict[str, Any] = field(default_factory=dict)
    base: str = ""


def model_recipe(directory: Path, notify: Callable[[str], None]) -> dict[str, ResolvedValue]:
    """The sampling values that the files in `directory` state, each with its source, "card" or "model".

    `notify` is told of a card that cannot be read, and of values that may be a base model's and not this one's.
    Raises ModelError, which names file, field and value, for a value that cannot be used: another recipe in its place
    would silently change the texts.
    """
    card, own = _card(directory, notify), _generation_config(directory / GENERATION_CONFIG)
    doubtful = {name: value for name, value in own.items() if name not in card.values}
    if card.base and doubtful:
        values = ", ".join(f"{name} {value}" for name, value in doubtful.items())
        notify(
            f"{directory / CARD}: this model is derived from {card.base}, and {GENERATION_CONFIG} gives {values}: "
            "perhaps the base model's values; where they are wrong, give others with --profile"
        )
    stated = {name: ResolvedValue(value=value, source="model") for name, value in own.items()}
    return stated | {name: ResolvedValue(value=value, source="card") for name, value in card.values.items()}


def _card(directory: Path, notify: Callable[[str], None]) -> Card:
    facts = front_matter(directory, notify)
    inference = facts.get("inference")
    parameters = inference.get("parameters") if isinstance(inference, dict) else None
    values = _values(directory / CARD, parameters) if isinstance(parameters, dict) else {}
    return Card(values, _base(facts))


def _base(facts: Mapping[str, Any]) -> str:
    """The base models' names; none for a mere quantization, whose recipe is rightly its base model's."""
    return "" if base_relation(facts) == QUANTIZED else ", ".join(base_models(facts))


def _generation_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: not JSON ({error}); repair or delete it") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path}: not a JSON object; repair or delete it")
    return _values(path, config)


def _values(path: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling values among the other facts of a table; a model that does not sample is greedy."""
    values = {name: table[name] for name in DEFAULTS if table.get(name) is not None}
    if table.get("do_sample") is False:
        values["temperature"] = 0.0
    try:
        SamplingParams.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        found = f"{first['loc'][0]} is {json.dumps(first['input'], default=str)}"
        raise ModelError(f"{path}: {found}: {first['msg']}; repair the value or delete it") from error
    return values
