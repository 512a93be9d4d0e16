"""Reading a drafter's checkpoint: its tensors, and whether they are those of the network that config.json describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import infer_quant_config

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


def take_packing(network: Any, tensors: Mapping[str, mx.array], where: Callable[[str], str]) -> None:
    """Make those modules of `network` quantised that are stored so: beside their weight is a tensor of scales.

    where: file and stored name of the tensor of a name. Raises ModelError for what is no packing of a module's inputs.
    """

    def packing(path: str, module: Any) -> bool | dict[str, Any]:
        if f"{path}.scales" not in tensors or not hasattr(module, "to_quantized"):
            return False
        inputs, groups = module.weight.shape[-1], tensors[f"{path}.scales"].shape[-1]
        weight = tensors.get(f"{path}.weight")
        name = where(f"{path}.scales" if weight is None else f"{path}.weight")
        shape = "no weight" if weight is None else f"weight {list(weight.shape)}"
        if weight is None or inputs % groups or weight.shape[-1] * 32 % inputs:
            raise ModelError(f"{name}: {shape} with scales of {groups} groups is no packing of {inputs} inputs")
        try:
            found: dict[str, Any] = infer_quant_config(path, module, tensors)
            module.to_quantized(**found)
        except ValueError as error:
            raise ModelError(f"{name}: {shape} with scales of {groups} groups cannot be unpacked: {error}") from error
        return found

    nn.quantize(network, class_predicate=packing)


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
