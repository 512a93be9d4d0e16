"""Checkpoints with cards, in plain directories and in a hub's cache: what pairing and discovery read."""

import json
from pathlib import Path
from typing import Any

import gemma_assistant_checkpoints as gemma
from dflash_checkpoints import FULL, first_config, random_tensors, second_config
from dflash_checkpoints import write as write_dflash

from bench.families import configuration, vocabulary

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LAYERS = int(configuration("llama")["num_hidden_layers"])


def write_card(directory: Path, **facts: Any) -> Path:
    """A README.md whose front matter states `facts`."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = [f"{name}: {json.dumps(value)}\n" for name, value in facts.items()]
    (directory / "README.md").write_text(f"---\n{''.join(lines)}---\n\n# A model\n", "utf-8")
    return directory


def write_config(directory: Path, config: dict[str, Any]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config), "utf-8")
    return directory


def snapshot_of(cache: Path, repository: str) -> Path:
    """The directory, still empty, of the newest snapshot of a repository in the hub's cache."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    directory = folder / "snapshots" / COMMIT
    directory.mkdir(parents=True)
    return directory


def dflash_at(directory: Path, base: str | None = None, *, second: bool = False, **changes: Any) -> Path:
    """A block drafter for the tiny llama. base: the model that its card names; None = it has no card."""
    config = (second_config if second else first_config)([FULL], LAYERS, **changes)
    write_dflash(directory, config, random_tensors(config))
    return write_card(directory, base_model=base) if base else directory


def assistant_at(directory: Path, base: str, **changes: Any) -> Path:
    """A Gemma-4 assistant for the tiny gemma4_text."""
    config = gemma.config_of(vocabulary("gemma4_text")) | changes
    directory.mkdir(parents=True)
    gemma.write(directory, config, gemma.tensors_of(gemma.config_of(vocabulary("gemma4_text"))))
    return write_card(directory, base_model=base)
