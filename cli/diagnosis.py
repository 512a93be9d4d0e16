"""The checks of `cidermill doctor`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from api.errors import CidermillError, ModelError

if TYPE_CHECKING:
    from cli.options import Workspace

ROOM_NEEDED_BYTES = 2 * 2**30


def checks(workspace: Workspace) -> list[dict[str, Any]]:
    """Rows {check, state, found}; state is ok, note or missing, and `found` says what to do about it."""
    rows = []
    for name, check in _CHECKS.items():
        try:
            state, found = check(workspace)
        except CidermillError as error:
            state, found = "missing", str(error)
        rows.append({"check": name, "state": state, "found": found})
    return rows


def _storage(workspace: Workspace) -> tuple[str, str]:
    directory = workspace.settings.data_dir
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        return "missing", f"{existing} cannot be written; choose another --data-dir"
    free = shutil.disk_usage(existing).free
    if free < ROOM_NEEDED_BYTES:
        return "note", f"{directory}: only {free // 2**20} MB free"
    return "ok", f"{directory}, {free // 2**30} GB free"


def _ledger(workspace: Workspace) -> tuple[str, str]:
    path = workspace.settings.ledger_path
    if not path.exists():
        return "ok", f"{path} will be made by the first batch"
    return "ok", f"{path}, {len(workspace.ledger.batches(limit=1000))} batches"


def _redis(workspace: Workspace) -> tuple[str, str]:
    from api.queue.connection import redacted
    from api.queue.server import find_server

    if workspace.redis_url:
        info: Any = workspace.connect().info("server")
        return "ok", f"{redacted(workspace.redis_url)}, version {info['redis_version']}"
    return "ok", f"a private server: {find_server()}"


def _mlx(_workspace: Workspace) -> tuple[str, str]:
    try:
        import mlx.core as mx
    except ImportError:
        return "note", "not installed: this machine can submit and record, but not work; add the [worker] extra"
    from worker.engine.machine import chip

    kind = "Metal" if mx.metal.is_available() else "CUDA" if mx.cuda.is_available() else "CPU only, for trying out"
    return "ok", f"{chip()}, {kind}"


def _model(workspace: Workspace) -> tuple[str, str]:
    from worker.engine.models import ModelSpec

    spec = ModelSpec.parse(workspace.settings.model)
    try:
        return "ok", f"{spec}: {spec.source}"
    except ModelError as error:
        return ("missing" if find_spec("mlx") else "note"), str(error)


_CHECKS: dict[str, Callable[[Workspace], tuple[str, str]]] = {
    "storage": _storage,
    "ledger": _ledger,
    "redis": _redis,
    "mlx": _mlx,
    "model": _model,
}
