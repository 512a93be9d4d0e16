"""Small JSON files of the data directory: written whole or not at all, named after the key that they belong to."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Key = Mapping[str, str | int]


def path_of(directory: Path, key: Key) -> Path:
    """The file of `key`."""
    digest = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()
    return directory / f"{digest[:16]}.json"


def read(path: Path) -> dict[str, Any] | None:
    """What the file holds, None when it is not there. Raises ValueError for what is no JSON object, and OSError."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    return content


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Put `content` in the file's place, and leave nothing else there. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        draft.write_text(json.dumps(dict(content), indent=2), "utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
