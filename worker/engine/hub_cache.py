"""What of the hub is on this machine: the models in the hub's own cache. Nothing is fetched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_FOLDER = "models--"


@dataclass(frozen=True)
class CachedModel:
    """directory: of the repository. snapshot: of the files that its main branch had last; None when there are none."""

    repository: str
    directory: Path
    snapshot: Path | None
    size: int


def cached_models() -> list[CachedModel]:
    """The models in the hub's cache, by name; none where there is no cache, or none that can be read."""
    try:
        from huggingface_hub import constants, scan_cache_dir
        from huggingface_hub.errors import CacheNotFound
    except ImportError:
        return []
    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except (CacheNotFound, OSError, ValueError):
        return []
    found = []
    for repository in sorted(repositories, key=lambda one: one.repo_id):
        if repository.repo_type == "model":
            last = max(repository.revisions, key=lambda one: ("main" in one.refs, one.last_modified), default=None)
            snapshot = last.snapshot_path if last else None
            found.append(CachedModel(repository.repo_id, repository.repo_path, snapshot, repository.size_on_disk))
    return found


def repository_of(directory: Path) -> str | None:
    """The hub id of a snapshot in the hub's cache (`models--ORGANISATION--NAME/snapshots/COMMIT`), None elsewhere."""
    folder = directory.parent.parent.name
    if directory.parent.name != "snapshots" or not folder.startswith(_FOLDER):
        return None
    return folder.removeprefix(_FOLDER).replace("--", "/", 1)
