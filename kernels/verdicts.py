"""Verdicts of probes, kept in a folder from one process to the next: a small JSON file each."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

Key = Mapping[str, str]


@dataclass(frozen=True)
class Verdict:
    """complaint: why the variant is not used, None if it may be. settled: nobody need find it out again."""

    complaint: str | None
    settled: bool = True


def verdict_key(kernel: str, home: str, variant: str, configuration: object) -> Key:
    """All that a verdict depends on. home: the module whose folder has the texts and the probe."""
    device = mx.device_info()
    return {
        "kernel": kernel,
        "variant": variant,
        "configuration": repr(configuration),
        "texts": texts_digest(home),
        "mlx": version("mlx"),
        "system": platform.platform(),
        "gpu": f"{device.get('device_name')} ({device.get('architecture')})",
    }


@cache
def texts_digest(home: str) -> str:
    """A digest of all files beside the module `home`: texts of kernels, how they are called, and the probe.

    And of what all texts go through on their way to MLX.
    """
    file = import_module(home).__file__
    assert file is not None
    digest = hashlib.sha256()
    own = sorted(path for path in Path(file).parent.iterdir() if path.is_file())
    for path in [*own, Path(__file__).with_name("specialised.py")]:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def read(folder: Path, key: Key) -> Verdict | None:
    """None for a verdict that is not there, or of no use."""
    try:
        content = json.loads(_path(folder, key).read_text("utf-8"))
        complaint, settled = content["complaint"], content["settled"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Verdict(complaint, settled is True) if complaint is None or isinstance(complaint, str) else None


def write(folder: Path, key: Key, verdict: Verdict) -> None:
    """Whole or not at all. Raises OSError."""
    path = _path(folder, key)
    folder.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps({"key": dict(key), **asdict(verdict)}, indent=2), "utf-8")
    os.replace(draft, path)


def forget(folder: Path) -> None:
    """Have all verdicts of `folder` found out again, those of other machines and versions included."""
    for path in folder.glob("*.json"):
        path.unlink(missing_ok=True)


def _path(folder: Path, key: Key) -> Path:
    return folder / f"{hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:16]}.json"
