"""Loading an assistant's weights: names and shapes are checked before anything is computed with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import infer_quant_config

from api.errors import ModelError
from worker.engine.drafters.checkpoint import check_tensors, read_tensors
from worker.engine.drafters.gemma_assistant.config import AssistantConfig
from worker.engine.drafters.gemma_assistant.network import Assistant
from worker.engine.memory import ReadWeights, read_weights

Tensors = Mapping[str, mx.array]


def load_network(
    directory: Path, config: AssistantConfig, dtype: mx.Dtype, read: ReadWeights = read_weights
) -> Assistant:
    """The network of the checkpoint in `directory`, in the type `dtype`. read: reads its weights.

    Raises ModelError that names file and tensor.
    """
    tensors, files = read_tensors(directory)
    network = Assistant(config)
    _take_packing(network, tensors, files, directory)
    check_tensors(network, tensors, files, directory)
    network.load_weights(list(tensors.items()))
    network.set_dtype(dtype)
    network.eval()
    tensors.clear()  # so that each stored one goes when it has been converted
    read(network)
    return network


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
