"""Random MTP heads for the tiny Qwen3.5 targets, written in every layout that is published."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx

from bench.families import configuration, tiny_model
from worker.engine.drafters.mtp import MtpHead, find_mtp, load_mtp

FAMILIES = ("qwen3_5", "qwen3_5_moe")
Tensors = dict[str, mx.array]
Write = Callable[[Path, str], None]
"""write(directory, family): write a head of that family's target into `directory`."""

# Means of the zero-centred norms of published heads: of the 27B model, and of the 4B one where it is further off.
NORM_MEANS = {
    "layers.0.input_layernorm": 0.04,
    "layers.0.post_attention_layernorm": 0.21,
    "layers.0.self_attn.q_norm": 0.79,
    "layers.0.self_attn.k_norm": 0.78,
    "pre_fc_norm_hidden": -0.16,
    "pre_fc_norm_embedding": -0.46,
    "norm": 1.25,
}
PACKED = {"group_size": 32, "bits": 8}


@cache
def target(family: str) -> Any:
    return tiny_model(family)


@cache
def raw_tensors(family: str, experts: int = 4) -> Mapping[str, mx.array]:
    """A head as the raw checkpoints store it, without prefix: zero-centred norms, experts fused."""
    config = configuration(family)
    config = config.get("text_config", config)
    width, inner, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    mx.random.seed(7)
    tensors = {
        "fc.weight": _matrix(width, 2 * width),
        "layers.0.self_attn.q_proj.weight": _matrix(2 * heads * d, width),
        "layers.0.self_attn.k_proj.weight": _matrix(kv_heads * d, width),
        "layers.0.self_attn.v_proj.weight": _matrix(kv_heads * d, width),
        "layers.0.self_attn.o_proj.weight": _matrix(width, heads * d),
    }
    for name, mean in NORM_MEANS.items():
        size = d if name.endswith(("q_norm", "k_norm")) else width
        tensors[f"{name}.weight"] = mean + 0.1 * mx.random.normal((size,))
    if not config.get("num_experts"):
        tensors |= _mlp("layers.0.mlp", width, inner)
    else:
        inner, shared = config["moe_intermediate_size"], config["shared_expert_intermediate_size"]
        tensors |= _mlp("layers.0.mlp.shared_expert", width, shared)
        tensors["layers.0.mlp.shared_expert_gate.weight"] = _matrix(1, width)
        tensors["layers.0.mlp.gate.weight"] = _matrix(experts, width)
        tensors["layers.0.mlp.experts.gate_up_proj"] = _matrix(experts, 2 * inner, width)
        tensors["layers.0.mlp.experts.down_proj"] = _matrix(experts, width, inner)
    mx.eval(tensors)
    return tensors


def head_for(family: str, layout: str = "raw") -> MtpHead:
    """The head of one layout, read for the family's target."""
    with TemporaryDirectory() as directory:
        LAYOUTS[layout](Path(directory), family)
        source = find_mtp(Path(directory))
        assert source is not None
        return load_mtp(source, target(family))


def one_by_one(tensors: Mapping[str, mx.array]) -> Tensors:
    """With the experts as separate tensors, where there are any."""
    split = dict(tensors)
    if "layers.0.mlp.experts.down_proj" in split:
        down, gate_up = (split.pop(f"layers.0.mlp.experts.{name}") for name in ("down_proj", "gate_up_proj"))
        for expert, (both, out) in enumerate(zip(gate_up, down, strict=True)):
            half = both.shape[0] // 2
            parts = {"gate_proj": both[:half], "up_proj": both[half:], "down_proj": out}
            split |= {f"layers.0.mlp.experts.{expert}.{name}.weight": part for name, part in parts.items()}
    return split


def converted(tensors: Mapping[str, mx.array]) -> Tensors:
    """As MLX conversions have them: norms shifted, experts stacked by projection."""
    shifted = {name: tensor + 1 if tensor.ndim == 1 else tensor for name, tensor in tensors.items()}
    if "layers.0.mlp.experts.down_proj" in shifted:
        down, gate_up = (shifted.pop(f"layers.0.mlp.experts.{name}") for name in ("down_proj", "gate_up_proj"))
        half = gate_up.shape[1] // 2
        parts = {"gate_proj": gate_up[:, :half], "up_proj": gate_up[:, half:], "down_proj": down}
        shifted |= {f"layers.0.mlp.switch_mlp.{name}.weight": part for name, part in parts.items()}
    return shifted


def packed(tensors: Mapping[str, mx.array], **packing: Any) -> Tensors:
    """With the matrices of the decoder layer quantized."""
    result: Tensors = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 1 or name == "fc.weight":
            result[name] = tensor
        else:
            names = [name, *(name.removesuffix("weight") + part for part in ("scales", "biases"))]
            result |= zip(names, mx.quantize(tensor, **(packing or PACKED)), strict=False)
    return result


def unpacked(tensors: Mapping[str, mx.array]) -> Tensors:
    """What `packed` leaves of the values, under the names of before."""
    return {
        name: tensor
        if tensor.ndim == 1 or name == "fc.weight"
        else mx.dequantize(*mx.quantize(tensor, **PACKED), **PACKED)
        for name, tensor in tensors.items()
    }


def write(directory: Path, file: str, tensors: Mapping[str, mx.array], prefix: str = "") -> None:
    path = directory / file
    path.parent.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(path), {prefix + name: tensor for name, tensor in tensors.items()})


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    (directory / "config.json").write_text(json.dumps(config))


def raw_model(directory: Path, family: str) -> None:
    """A raw model: the head in two of its shards, among other tensors."""
    tensors = raw_tensors(family)
    names = sorted(tensors)
    write(directory, "model-00001-of-00002.safetensors", {name: tensors[name] for name in names[::2]}, "mtp.")
    rest = {f"mtp.{name}": tensors[name] for name in names[1::2]}
    rest["model.language_model.norm.weight"] = mx.zeros((64,))
    write(directory, "model-00002-of-00002.safetensors", rest)
    write_config(directory, configuration(family))


def raw_single_experts(directory: Path, family: str) -> None:
    write(directory, "model.safetensors", one_by_one(raw_tensors(family)), "mtp.")
    write_config(directory, configuration(family))


def kept_by_conversion(directory: Path, family: str) -> None:
    """A converted, packed model that kept its head."""
    write(directory, "model.safetensors", packed(converted(raw_tensors(family))), "language_model.mtp.")
    write_config(directory, configuration(family) | {"quantization": {"group_size": 64, "bits": 4}})


def stand_alone(directory: Path, family: str) -> None:
    """A repository that holds nothing but the head."""
    write(directory, "model.safetensors", packed(converted(raw_tensors(family))))
    write_config(directory, configuration(family) | {"model_type": "qwen3_5_mtp", "block_size": 3})


def pointed_sidecar(directory: Path, family: str) -> None:
    write(directory, "optiq/head.safetensors", packed(converted(raw_tensors(family))), "mtp.")
    _write_target(directory, family, {"mlx_lm_extra_tensors": {"mtp_file": "optiq/head.safetensors"}})


def named_sidecar(file: str) -> Write:
    """A sidecar that nothing points at, of a head copied from the raw model."""

    def write_it(directory: Path, family: str) -> None:
        write(directory, file, raw_tensors(family), "language_model.mtp.")
        _write_target(directory, family, {})

    return write_it


LAYOUTS: dict[str, Write] = {
    "raw": raw_model,
    "raw, single experts": raw_single_experts,
    "kept by a conversion": kept_by_conversion,
    "stand-alone": stand_alone,
    "pointed sidecar": pointed_sidecar,
    "optiq/mtp": named_sidecar("optiq/mtp.safetensors"),
    "mtp": named_sidecar("mtp.safetensors"),
    "mtp/weights": named_sidecar("mtp/weights.safetensors"),
    "model-mtp": named_sidecar("model-mtp.safetensors"),
}
PACKED_LAYOUTS = ("kept by a conversion", "stand-alone", "pointed sidecar")


def _write_target(directory: Path, family: str, entries: Mapping[str, Any]) -> None:
    """A target that says it has a head, beside the file that holds it."""
    write(directory, "model.safetensors", {"language_model.model.norm.weight": mx.ones((64,))})
    config = configuration(family, mtp_num_hidden_layers=1)
    write_config(directory, config | dict(entries))


def _mlp(path: str, width: int, inner: int) -> Tensors:
    return {
        f"{path}.gate_proj.weight": _matrix(inner, width),
        f"{path}.up_proj.weight": _matrix(inner, width),
        f"{path}.down_proj.weight": _matrix(width, inner),
    }


def _matrix(*shape: int) -> mx.array:
    return mx.random.normal(shape) * (2 / shape[-1] ** 0.5)
