"""Reading a drafter's checkpoint: its tensors, and whether they are those of the network that config.json describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from api.errors import ModelError

_LISTED = 8


def read_tensors(
    directory: Path, own_name: Callable[[str], str] = lambda stored: stored
) -> tuple[dict[str, mx.array], dict[str, Path]]:
    """The tensors of all safetensors files by their name in the network, and the file of each.

    own_name: what the network calls a stored tensor. Raises ModelError that names the file.
    """
    tensors: dict[str, mx.array] = {}
    files: dict[str, Path] = {}
    for path in sorted(directory.glob("*.safetensors")):
        try:
            stored: Any = mx.load(str(path))
        except (RuntimeError, OSError, ValueError) as error:
            raise ModelError(f"{path}: not a readable safetensors file: {error}") from error
        for stored_name, tensor in stored.items():
            name = own_name(stored_name)
            if name in tensors:
                raise ModelError(f"{path}: tensor {stored_name} is in {files[name]} as well")
            tensors[name], files[name] = tensor, path
    if not tensors:
        raise ModelError(f"{directory}: no tensors there; a drafter's directory has config.json and *.safetensors")
    return tensors, files


def check_tensors(network: Any, tensors: Mapping[str, mx.array], files: Mapping[str, Path], directory: Path) -> None:
    """Raise ModelError, with file, tensor and shapes, when `tensors` are not the parameters of `network`."""
    expected = {name: list(parameter.shape) for name, parameter in tree_flatten(network.parameters())}
    missing, unexpected = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or unexpected:
        found = [f"{kind} {_listed(names)}" for kind, names in (("no", missing), ("unexpected", unexpected)) if names]
        raise ModelError(f"{directory}: the tensors are not those that config.json describes: {'; '.join(found)}")
    for name, shape in expected.items():
        if list(tensors[name].shape) != shape:
            raise ModelError(f"{files[name]}: tensor {name} has shape {list(tensors[name].shape)}; expected {shape}")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
