"""Where a checkpoint keeps its MTP head.

Three layouts are published: tensors named `mtp.*` in the model's own files, a sidecar file beside them, and a
stand-alone repository whose tensors have no prefix. The tensors decide: configurations go on announcing a head
(`mtp_num_hidden_layers`) after a conversion has dropped it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from api.errors import ModelError
from worker.engine.drafters.mtp.manifest import Contract, HiddenState, Quantization, contract_of, json_object

SIDECARS = ("optiq/mtp.safetensors", "mtp.safetensors", "mtp/weights.safetensors", "model-mtp.safetensors")
_PREFIXED = re.compile(r"(?:.*\.)?mtp\.(.+)")
# The parts that only this kind of head has; other models use the prefix for heads of their own.
_PARTS = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden")


@dataclass(frozen=True)
class Stored:
    """One tensor: the file it is in, and its name there."""

    file: Path
    name: str

    def __str__(self) -> str:
        return f"{self.file}: tensor {self.name}"


@dataclass(frozen=True)
class MtpSource:
    """A head as it is stored. tensors: by their name within the head, such as `fc.weight`."""

    directory: Path
    tensors: Mapping[str, Stored]
    contract: Contract

    @property
    def hidden(self) -> HiddenState:
        """Which hidden state of the target the checkpoint says that its head reads."""
        return self.contract.hidden

    @property
    def quantization(self) -> Quantization | None:
        """How to quantize a head that is stored unquantized; None = leave it."""
        stored_quantized = any(name.endswith(".scales") for name in self.tensors)
        return None if stored_quantized else self.contract.quantization

    @property
    def files(self) -> list[Path]:
        return sorted({stored.file for stored in self.tensors.values()})


def find_mtp(directory: Path) -> MtpSource | None:
    """The MTP head that `directory` carries: a model's, or a stand-alone head's.

    Raises ModelError for a file that cannot be read, a configuration that points at a missing one, and a head that is
    wired in a way that is not supported.
    """
    config = json_object(directory / "config.json")
    for files in _places(directory, config):
        tensors = _head_tensors(files)
        if tensors:
            return MtpSource(directory, tensors, contract_of(directory, config))
    return None


def _places(directory: Path, config: Mapping[str, Any]) -> Iterable[list[Path]]:
    """The files to look in: the one that the configuration points at, else each sidecar, then the model's own."""
    pointer = (config.get("mlx_lm_extra_tensors") or {}).get("mtp_file")
    if pointer is not None:
        if not (directory / pointer).is_file():
            raise ModelError(
                f"{directory / 'config.json'}: mlx_lm_extra_tensors.mtp_file names {pointer}, and there is no such "
                "file; download it too, or remove the entry"
            )
        yield [directory / pointer]
    yield from ([directory / name] for name in SIDECARS if (directory / name).is_file())
    yield sorted(directory.glob("*.safetensors"))


def _head_tensors(files: list[Path]) -> dict[str, Stored]:
    """The head's tensors in `files`; none when they hold no head of this kind."""
    stored = [Stored(file, name) for file in files for name in tensors_of(file)]
    prefixed = {match[1]: tensor for tensor in stored if (match := _PREFIXED.fullmatch(tensor.name))}
    found = prefixed or {tensor.name: tensor for tensor in stored}
    return found if any(name.split(".")[0] in _PARTS for name in found) else {}


def tensors_of(file: Path) -> dict[str, mx.array]:
    """The tensors of a safetensors file; their data is read when it is used. Raises ModelError."""
    try:
        tensors = mx.load(str(file))
    except Exception as error:
        raise ModelError(f"{file}: not a safetensors file that can be read: {' '.join(str(error).split())}") from error
    assert isinstance(tensors, dict)
    return tensors
