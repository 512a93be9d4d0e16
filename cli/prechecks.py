"""What `run` and `submit` refuse before anything is queued: hours later would be too late to hear of it."""

from __future__ import annotations

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

from api.errors import ModelError, StorageError


def check_model(model: str, *, runs_here: bool) -> None:
    """Raises ModelError for a model that no worker could load. runs_here: this machine will, so it has to be here."""
    from worker.engine.models import ModelSpec

    spec = ModelSpec.parse(model)
    if not runs_here:
        return
    if find_spec("mlx") is None:
        raise ModelError(
            "MLX is not installed, so this machine cannot generate; install cidermill[worker], or submit to a fleet"
        )
    source = spec.source
    if isinstance(source, str):
        _check_hub(source)


def check_drafter(choice: str) -> None:
    """Raises ModelError for a drafter that no worker could have."""
    from worker.engine.drafters.named_parts import check_choice

    check_choice(choice)


def check_output(path: Path | None, prompts: Path | None = None) -> None:
    """Raises StorageError for a file that cannot be made. None (standard output), a device and a pipe pass.

    prompts: the file of prompts, which answers must not take the place of.
    """
    if path is None or (path.exists() and not path.is_file() and not path.is_dir()):
        return
    if prompts is not None and path.exists() and prompts.exists() and path.samefile(prompts):
        raise StorageError(f"{path}: holds the prompts, and answers would take their place; give another path")
    if path.is_dir():
        raise StorageError(f"{path}: cannot be written: it is a folder; give a file")
    folder = Path(os.path.realpath(path)).parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileNotFoundError as error:
        raise StorageError(f"{path}: cannot be written: there is no folder {folder}; make it first") from error
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}; give another path") from error


def _check_hub(repository: str) -> None:
    """One small file tells whether the rest is to be had; the worker fetches that."""
    import logging

    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # of each try it says two lines
    try:
        try:
            hf_hub_download(repository, "config.json", local_files_only=True)
        except LocalEntryNotFoundError:
            hf_hub_download(repository, "config.json")
    except (OSError, ValueError, EntryNotFoundError) as error:
        raise ModelError(
            f"model {repository}: not on this machine and not to be had from the hub "
            f"({' '.join(str(error).split())}); check the id and the network, or give a local MLX directory"
        ) from error
