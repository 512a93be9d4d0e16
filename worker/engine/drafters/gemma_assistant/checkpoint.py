"""Loading an assistant's weights: names and shapes are checked before anything is computed with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import infer_quant_config

from api.errors import ModelError
from worker.engine.drafters.gemma_assistant.config import AssistantConfig
from worker.engine.drafters.gemma_assistant.network import Assistant

Tensors = Mapping[str, mx.array]
_LISTED = 8


def load_network(directory: Path, config: AssistantConfig, dtype: mx.Dtype) -> Assistant:
    """The network of the checkpoint in `directory`, in the type `dtype`.

    Raises ModelError that names file and tensor.
    """
    tensors, files = _read(directory)
    network = Assistant(config)
    _take_packing(network, tensors, files, directory)
    _check(network, tensors, files, directory)
    network.load_weights(list(tensors.items()))
    network.set_dtype(dtype)
    network.eval()
    mx.eval(network.parameters())
    return network


def _read(directory: Path) -> tuple[Tensors, Mapping[str, Path]]:
    """The tensors by name, and the file of each."""
    tensors: dict[str, mx.array] = {}
    files: dict[str, Path] = {}
    for path in sorted(directory.glob("*.safetensors")):
        try:
            stored: Any = mx.load(str(path))
        except (RuntimeError, OSError, ValueError) as error:
            raise ModelError(f"{path}: not a readable safetensors file: {error}") from error
        tensors |= stored
        files |= dict.fromkeys(stored, path)
    if not tensors:
        raise ModelError(f"{directory}: no tensors there; an assistant's directory has config.json and *.safetensors")
    return tensors, files


def _take_packing(network: Assistant, tensors: Tensors, files: Mapping[str, Path], directory: Path) -> None:
    """Make those modules quantised that are stored so: beside their weight is a tensor of scales."""

    def packing(path: str, module: Any) -> Any:
        if f"{path}.scales" not in tensors or not hasattr(module, "to_quantized"):
            return False
        inputs, groups = module.weight.shape[-1], tensors[f"{path}.scales"].shape[-1]
        weight = tensors.get(f"{path}.weight")
        if weight is None or inputs % groups or weight.shape[-1] * 32 % inputs:
            found = "missing" if weight is None else list(weight.shape)
            where = f"{files[f'{path}.scales']}: tensor {path}.weight"
            raise ModelError(f"{where} is {found} beside scales of {groups} groups: no packing of {inputs} inputs")
        return infer_quant_config(path, module, tensors)

    try:
        nn.quantize(network, class_predicate=packing)
    except ValueError as error:
        raise ModelError(f"{directory}: how its tensors are packed cannot be read: {error}") from error


def _check(network: Assistant, tensors: Tensors, files: Mapping[str, Path], directory: Path) -> None:
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
