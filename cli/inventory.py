"""The models that are on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from api.errors import ModelError
from worker.engine.drafters.metadata import helper_kind, read_config
from worker.engine.drafters.origin import made_for, origin_of
from worker.engine.hub_cache import cached_models
from worker.engine.models import DEMO_MODEL, demo_gguf, local_models


def installed_models(data_dir: Path) -> list[dict[str, Any]]:
    """Rows {model, kind, size_mb, path, drafter, made_for}: the demo model, converted directories, the hub's cache.

    drafter: its kind, None for a model that answers. made_for: the models that a drafter says it was made for.
    """
    rows = []
    try:
        gguf = demo_gguf()
        rows.append(_row(DEMO_MODEL, "GGUF in a Python package", gguf.stat().st_size, gguf, None))
    except ModelError:
        pass
    for directory in local_models(data_dir / "models"):
        rows.append(_row(str(directory), "MLX directory", _bytes(directory), directory, directory))
    return rows + [
        _row(model.repository, "hub", model.size, model.directory, model.snapshot) for model in cached_models()
    ]


def _row(model: str, kind: str, size: int, path: Path, checkpoint: Path | None) -> dict[str, Any]:
    """kind: of what is no drafter. checkpoint: the directory of its files, None where they say nothing of it."""
    drafter, targets = _drafter(checkpoint) if checkpoint else (None, [])
    if drafter:
        kind = f"drafter ({drafter})" + (f" for {', '.join(targets)}" if targets else "")
    size_mb = round(size / 2**20)
    return {
        "model": model,
        "kind": kind,
        "size_mb": size_mb,
        "path": str(path),
        "drafter": drafter,
        "made_for": targets,
    }


def _drafter(checkpoint: Path) -> tuple[str | None, list[str]]:
    """Its kind, and the models it was made for; neither where nothing says so."""
    try:
        config = read_config(checkpoint)
    except ModelError:
        return None, []
    kind = helper_kind(config)
    return kind, list(made_for(origin_of(checkpoint), config).names) if kind else []


def _bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.iterdir() if file.is_file())
