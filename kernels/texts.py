"""Kernels' texts, and digests of them for the keys of what is measured, learned or found out with kernels."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import import_module
from pathlib import Path

COMMON = ("kernels.naming", "kernels.specialised")
"""What all texts go through on their way to MLX."""


def text_beside(module_file: str, name: str) -> str:
    """The file `name` in the folder of a module. module_file: the module's `__file__`."""
    return Path(module_file).with_name(name).read_text(encoding="ascii")


@cache
def texts_digest(*homes: str) -> str:
    """Changes with any file beside one of the modules `homes`: texts of kernels, how they are launched, and probes.

    And with what all texts go through.
    """
    digest = hashlib.sha256()
    for path in [*(_file(module) for module in COMMON), *(path for home in homes for path in _beside(home))]:
        content = path.read_bytes()
        digest.update(f"{path.parent.name}/{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _beside(home: str) -> list[Path]:
    return sorted(path for path in _file(home).parent.iterdir() if path.is_file())


def _file(module: str) -> Path:
    file = import_module(module).__file__
    assert file is not None
    return Path(file)
