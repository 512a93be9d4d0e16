"""The models that are on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from api.errors import ModelError
from worker.engine.models import DEMO_MODEL, demo_gguf, local_models


def installed_models(data_dir: Path) -> list[dict[str, Any]]:
    """Rows {model, kind, size_mb, path}: the demo model, converted directories, and the hub's cache."""
    rows = []
    try:
        gguf = demo_gguf()
        rows.append(_row(DEMO_MODEL, "GGUF in a Python package", gguf.stat().st_size, gguf))
    except ModelError:
        pass
    for directory in local_models(data_dir / "models"):
        rows.append(_row(str(directory), "MLX directory", _bytes(directory), directory))
    return rows + _hub_models()


def _hub_models() -> list[dict[str, Any]]:
    try:
        from huggingface_hub import scan_cache_dir
        from huggingface_hub.errors import CacheNotFound
    except ImportError:
        return []
    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    models = [repo for repo in repos if repo.repo_type == "model"]
    return [_row(repo.repo_id, "hub", repo.size_on_disk, repo.repo_path) for repo in models]


def _row(model: str, kind: str, size: int, path: Path) -> dict[str, Any]:
    return {"model": model, "kind": kind, "size_mb": round(size / 2**20), "path": str(path)}


def _bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.iterdir() if file.is_file())
