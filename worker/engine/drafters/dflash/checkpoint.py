"""Loading a block drafter's weights: names and shapes are checked before anything is computed with them."""

from __future__ import annotations

from pathlib import Path

import mlx.nn as nn

from worker.engine.drafters.checkpoint import check_tensors, read_tensors, take_packing
from worker.engine.drafters.dflash.backbone import Backbone
from worker.engine.drafters.dflash.config import DFlashConfig
from worker.engine.memory import ReadWeights, read_weights

GROUP_SIZE = 64
# Small, and the drafts suffer most from their rounding.
_DENSE = ("kernel_projection", "hidden_projection")
_CODEBOOKS = ("predecessor_codebook", "successor_codebook")


def load_backbone(
    directory: Path, config: DFlashConfig, bits: int | None = None, read: ReadWeights = read_weights
) -> Backbone:
    """The network of the checkpoint in `directory`.

    bits: quantise its matrices that are stored dense, in groups of 64 inputs; norms and all that DFlash 2 adds stay as
    they are. read: reads the weights. Raises ModelError that names file and tensor.
    """
    tensors, files = read_tensors(directory, _own_name)
    backbone = Backbone(config)
    take_packing(backbone, tensors, lambda name: f"{files[name]}: tensor {name}")
    check_tensors(backbone, tensors, files, directory)
    backbone.load_weights(list(tensors.items()))
    if bits is not None:
        nn.quantize(backbone, GROUP_SIZE, bits, class_predicate=_is_quantised_at_load)
    backbone.eval()
    tensors.clear()  # so that each stored one goes when it has been quantised
    read(backbone)
    return backbone


def _own_name(stored: str) -> str:
    """Some converters put `model.` before all names, or `.weight` behind those of the codebooks."""
    name = stored.removeprefix("model.")
    bare = name.removesuffix(".weight")
    return bare if bare.endswith(_CODEBOOKS) else name


def _is_quantised_at_load(path: str, module: nn.Module) -> bool:
    return (
        isinstance(module, nn.Linear) and not path.endswith(_DENSE) and int(module.weight.shape[-1]) % GROUP_SIZE == 0
    )
