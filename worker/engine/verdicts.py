"""Verdicts: what the self-check said of a model on this machine, kept from one process to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import get_args

from kernels import stored
from worker.engine.loading import Target
from worker.engine.machine import chip
from worker.engine.packing import packing
from worker.engine.verify.selfcheck import VERSION, Verdict, decide_mode
from worker.engine.verify.verifier import Mode


def verdict_key(target: Target) -> dict[str, str | int]:
    """All that the self-check's verdict on a loaded model depends on."""
    return {
        "chip": chip(),
        **target.kernels.key,
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "verification": VERSION,
        "model": str(target.spec),
        "identity": target.identity,
        "quantization": packing(target.model, target.dtype),
    }


def find_verdict(target: Target, directory: Path, notify: Callable[[str], None] = lambda _: None) -> Verdict:
    """The verdict on a loaded model that `directory` holds, or a new one, which it holds then.

    notify: told when it cannot be written.
    """
    key = verdict_key(target)
    path = stored.path_of(directory, key)
    verdict = _read(path)
    if verdict is None:
        verdict = decide_mode(target.model, target.vocabulary, target.dtype, target.kernels, target.products)
        try:
            stored.write(path, {"key": key, **asdict(verdict)})
        except OSError as error:
            notify(f"{path} cannot be written ({error.strerror}): the next process checks {target.spec} again")
    return verdict


def _read(path: Path) -> Verdict | None:
    """None for a file that is not there, or of no use."""
    try:
        record = stored.read(path)
        if record is None or record["mode"] not in get_args(Mode):
            return None
        return Verdict(record["mode"], {str(mode): str(reason) for mode, reason in record["refused"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
