"""Loading a block drafter's weights: names and shapes are checked before anything is computed with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import infer_quant_config

from api.errors import ModelError
from worker.engine.drafters.dflash.backbone import Backbone
from worker.engine.drafters.dflash.config import DFlashConfig

GROUP_SIZE = 64
# Small, and the drafts suffer most from their rounding.
_DENSE = ("kernel_projection", "hidden_projection")
_CODEBOOKS = ("predecessor_codebook", "successor_codebook")
_LISTED = 8


def load_backbone(directory: Path, config: DFlashConfig, bits: int | None = None) -> Backbone:
    """The network of the checkpoint in `directory`.

    bits: quantise its matrices that are stored dense, in groups of 64 inputs; norms and all that DFlash 2 adds stay as
    they are. Raises ModelError that names file and tensor.
    """
    tensors, files = _read(directory)
    backbone = Backbone(config)
    _match_quantisation(backbone, tensors)
    _check(backbone, tensors, files, directory)
    backbone.load_weights(list(tensors.items()))
    if bits is not None:
        nn.quantize(backbone, GROUP_SIZE, bits, class_predicate=_is_quantised_at_load)
    backbone.eval()
    for _, parameter in tree_flatten(backbone.parameters()):
        mx.eval(parameter)  # one after the other: never the stored weights beside the quantised ones
    return backbone


def _read(directory: Path) -> tuple[dict[str, mx.array], dict[str, Path]]:
    """The tensors by their name in the network, and the file of each."""
    tensors: dict[str, mx.array] = {}
    files: dict[str, Path] = {}
    for path in sorted(directory.glob("*.safetensors")):
        try:
            stored: Any = mx.load(str(path))
        except (RuntimeError, OSError, ValueError) as error:
            raise ModelError(f"{path}: not a readable safetensors file: {error}") from error
        for stored_name, tensor in stored.items():
            name = _own_name(stored_name)
            if name in tensors:
                raise ModelError(f"{path}: tensor {stored_name} is in {files[name]} as well")
            tensors[name], files[name] = tensor, path
    if not tensors:
        raise ModelError(f"{directory}: no tensors there; a drafter's directory has config.json and *.safetensors")
    return tensors, files


def _own_name(stored: str) -> str:
    """Some converters put `model.` before all names, or `.weight` behind those of the codebooks."""
    name = stored.removeprefix("model.")
    bare = name.removesuffix(".weight")
    return bare if bare.endswith(_CODEBOOKS) else name


def _match_quantisation(backbone: Backbone, tensors: Mapping[str, mx.array]) -> None:
    """Make those matrices quantised that are stored so: beside their weight is a tensor of scales."""

    def stored(path: str, module: nn.Module) -> bool | dict[str, Any]:
        if not isinstance(module, nn.Linear) or f"{path}.scales" not in tensors or f"{path}.weight" not in tensors:
            return False
        form: dict[str, Any] = infer_quant_config(path, module, tensors)
        return form

    nn.quantize(backbone, class_predicate=stored)


def _is_quantised_at_load(path: str, module: nn.Module) -> bool:
    return (
        isinstance(module, nn.Linear) and not path.endswith(_DENSE) and int(module.weight.shape[-1]) % GROUP_SIZE == 0
    )


def _check(backbone: Backbone, tensors: Mapping[str, mx.array], files: Mapping[str, Path], directory: Path) -> None:
    expected = {name: tuple(parameter.shape) for name, parameter in tree_flatten(backbone.parameters())}
    missing, unexpected = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or unexpected:
        found = [f"{kind} {_listed(names)}" for kind, names in (("no", missing), ("unexpected", unexpected)) if names]
        raise ModelError(f"{directory}: the tensors are not those that config.json describes: {'; '.join(found)}")
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            found_shape = list(tensors[name].shape)
            raise ModelError(f"{files[name]}: tensor {name} has shape {found_shape}; expected {list(shape)}")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
