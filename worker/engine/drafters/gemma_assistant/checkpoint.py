"""Loading an assistant's weights: names and shapes are checked before anything is computed with them."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx

from worker.engine.drafters.checkpoint import check_tensors, read_tensors, take_packing
from worker.engine.drafters.gemma_assistant.config import AssistantConfig
from worker.engine.drafters.gemma_assistant.network import Assistant
from worker.engine.memory import ReadWeights, read_weights


def load_network(
    directory: Path, config: AssistantConfig, dtype: mx.Dtype, read: ReadWeights = read_weights
) -> Assistant:
    """The network of the checkpoint in `directory`, in the type `dtype`. read: reads its weights.

    Raises ModelError that names file and tensor.
    """
    tensors, files = read_tensors(directory)
    network = Assistant(config)
    take_packing(network, tensors, lambda name: f"{files[name]}: tensor {name}")
    check_tensors(network, tensors, files, directory)
    network.load_weights(list(tensors.items()))
    network.set_dtype(dtype)
    network.eval()
    tensors.clear()  # so that each stored one goes when it has been converted
    read(network)
    return network
