"""A model of the hub, brought into the hub's own cache on this machine."""

from collections.abc import Callable
from pathlib import Path

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import RemoteEntryNotFoundError
from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS

from api.errors import ModelError
from worker.engine.card import CARD

# Multi-token prediction heads beside the model's own files, which mlx-lm's list of a model's files leaves out.
HEADS = ["mtp*.safetensors", "mtp/*.safetensors", "optiq/*.safetensors"]


def downloaded(repository: str, notify: Callable[[str], None]) -> Path:
    """The directory of a hub id's newest snapshot, its card included; without a network, the newest that is here.

    Raises ModelError when there is none. `notify` is told when the card is not to be had.
    """
    try:
        patterns = [*DEFAULT_ALLOW_PATTERNS, *HEADS]
        directory = Path(snapshot_download(repository, allow_patterns=patterns))
    except Exception as error:
        raise ModelError(
            f"model {repository}: not on this machine and not to be had from the hub "
            f"({' '.join(str(error).split())}); check the id and the network, or give a local MLX directory"
        ) from error
    _bring_card(repository, directory, notify)
    return directory


def _bring_card(repository: str, directory: Path, notify: Callable[[str], None]) -> None:
    """mlx-lm's list of a model's files leaves the card out."""
    try:
        hf_hub_download(repository, CARD, revision=directory.name)
    except RemoteEntryNotFoundError:
        pass  # it has none
    except Exception as error:  # noqa: BLE001 - whatever the hub's client trips over, the model itself is here
        notify(f"model {repository}: its card is not to be had, and counts as none: {' '.join(str(error).split())}")
