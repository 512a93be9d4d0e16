"""Verdicts of probes, kept in a folder from one process to the next: a small JSON file each."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

from kernels import stored
from kernels.texts import texts_digest

Key = Mapping[str, str]


@dataclass(frozen=True)
class Verdict:
    """complaint: why the variant is not used, None if it may be. settled: nobody need find it out again."""

    complaint: str | None
    settled: bool = True


def verdict_key(kernel: str, home: str, variant: str, configuration: object) -> Key:
    """All that a verdict depends on. home: the module whose folder has the texts and the probe."""
    return {
        "kernel": kernel,
        "variant": variant,
        "configuration": repr(configuration),
        "texts": texts_digest(home),
        "mlx": version("mlx"),
        "system": platform.platform(),
        "gpu": _gpu(),
    }


def _gpu() -> str:
    device = mx.device_info()
    return f"{device.get('device_name')} ({device.get('architecture')})"


def read(folder: Path, key: Key) -> Verdict | None:
    """None for a verdict that is not there, or of no use."""
    try:
        content = stored.read(stored.path_of(folder, key)) or {}
        complaint, settled = content["complaint"], content["settled"]
    except (OSError, ValueError, KeyError):
        return None
    return Verdict(complaint, settled is True) if complaint is None or isinstance(complaint, str) else None


def write(folder: Path, key: Key, verdict: Verdict) -> None:
    """Raises OSError."""
    stored.write(stored.path_of(folder, key), {"key": dict(key), **asdict(verdict)})


def forget(folder: Path) -> None:
    """Have all verdicts of `folder` on this GPU found out again, those with other versions included.

    Machines with other GPUs may share the folder. Raises OSError for one that cannot be removed.
    """
    for path in folder.glob("*.json"):
        if _is_of_this_gpu(path):
            path.unlink(missing_ok=True)


def _is_of_this_gpu(path: Path) -> bool:
    """Whatever cannot be read may be."""
    try:
        return bool((stored.read(path) or {})["key"]["gpu"] == _gpu())
    except (OSError, ValueError, KeyError, TypeError):
        return True
