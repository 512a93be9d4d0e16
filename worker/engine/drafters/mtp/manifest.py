"""What a checkpoint's files state of its MTP head beside the tensors.

`config.json` may hold `mtplx_mtp_contract` and `mtplx_mtp_quantization`, and `mtplx_runtime.json` beside it
`mtp_contract` and `mtp_norm_layout`. All of it is optional. A wiring that is stated and not supported is refused; a
norm layout that is not known is found out from the tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from api.errors import ModelError

RUNTIME = "mtplx_runtime.json"
HiddenState = Literal["normed", "residual"]
"""Of the target: the output of its final norm, or of its last decoder block."""

_HIDDEN: dict[str, HiddenState] = {"post_norm": "normed", "pre_norm": "residual"}
_ZERO_CENTRED = {"raw_hf_delta": True, "mlx_multiplier": False}
# How every known head is wired: [embedding, hidden] into `fc`, and its own normed output into the next step.
_WIRING = {"concat_order": "embedding_hidden", "hidden_variant": "post_norm"}


@dataclass(frozen=True)
class Quantization:
    """What `mlx.nn.quantize` takes."""

    bits: int
    group_size: int
    mode: str


@dataclass(frozen=True)
class Contract:
    """hidden: the target's state that the head reads. zero_centred: whether norms are stored as weight - 1, None where
    nothing is said. quantization: of the head's decoder layer, if it is stored without.
    """

    hidden: HiddenState = "normed"
    zero_centred: bool | None = None
    quantization: Quantization | None = None


def contract_of(directory: Path, config: Mapping[str, Any]) -> Contract:
    """Raises ModelError, which names file and entry, for a wiring that is not supported."""
    runtime = json_object(directory / RUNTIME)
    hidden: HiddenState = "normed"
    stated = {"config.json": config.get("mtplx_mtp_contract"), RUNTIME: runtime.get("mtp_contract")}
    for file, contract in stated.items():
        for name, supported in _WIRING.items():
            _one_of({supported: None}, contract, name, directory / file)
        hidden = _one_of(_HIDDEN, contract, "base_hidden_variant", directory / file) or hidden
    return Contract(hidden, _ZERO_CENTRED.get(runtime.get("mtp_norm_layout", "")), _quantization(config))


def json_object(file: Path) -> dict[str, Any]:
    """The content of a JSON file, empty when there is none. Raises ModelError."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{file}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file}: not a JSON object")
    return content


def _one_of(known: Mapping[str, Any], contract: Mapping[str, Any] | None, name: str, file: Path) -> Any:
    """What `known` has for the entry's value; None without the entry."""
    value = (contract or {}).get(name)
    if value is not None and value not in known:
        raise ModelError(f"{file}: the MTP head's {name} is {value!r}; supported: {', '.join(known)}")
    return known.get(value or "")


def _quantization(config: Mapping[str, Any]) -> Quantization | None:
    stated = config.get("mtplx_mtp_quantization") or {}
    if not stated.get("bits"):
        return None
    return Quantization(int(stated["bits"]), int(stated.get("group_size", 64)), stated.get("mode", "affine"))
