"""What an assistant's config.json says. The fields of its network stand in the object `text_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from mlx_lm.models.rope_utils import initialize_rope

from worker.engine.drafters import metadata
from worker.engine.drafters.fields import Fields, check_same
from worker.engine.drafters.metadata import TargetShape

LayerType = Literal["sliding_attention", "full_attention"]
LAYER_TYPES: tuple[LayerType, ...] = ("sliding_attention", "full_attention")
# What holds where nothing is said of a type of layers.
_ROPE: Mapping[LayerType, Mapping[str, Any]] = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "proportional", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.25},
}
_ROPE_FIELDS = {"default": {"rope_theta"}, "proportional": {"rope_theta", "partial_rotary_factor", "factor"}}


@dataclass(frozen=True)
class Centroids:
    """Embeddings in `count` clusters of equal size, of which the `active` best are looked at."""

    count: int
    active: int


@dataclass(frozen=True)
class AssistantConfig:
    """backbone_hidden_size: of the target. head_dims: of each type of layers. rope: their forms, as mlx-lm takes them.

    centroids: None where the head scores every token.
    """

    backbone_hidden_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    head_dims: Mapping[LayerType, int]
    rms_norm_eps: float
    vocab_size: int
    layer_types: tuple[LayerType, ...]
    sliding_window: int
    rope: Mapping[LayerType, Mapping[str, Any]]
    centroids: Centroids | None

    def new_rope(self, kind: LayerType) -> Any:
        """The rotary embedding of a layer: (x [rows, heads, 1, head_dim], offset [rows]) -> the same shape."""
        scaling = dict(self.rope[kind])
        return initialize_rope(self.head_dims[kind], scaling["rope_theta"], traditional=False, scaling_config=scaling)

    def check_pair(self, path: Path, target: TargetShape) -> None:
        """Raise ModelError for what does not fit a target of this shape. path: of the config.json."""
        backbone = ("backbone_hidden_size", self.backbone_hidden_size, target.hidden_size)
        check_same(path, (backbone, ("vocab_size", self.vocab_size, target.vocab_size)))


def read_config(directory: Path) -> AssistantConfig:
    """The config.json in `directory`. Raises ModelError that names the field, what was found and what was expected."""
    fields = Fields(directory / "config.json", metadata.read_config(directory), "text_config")
    layers = fields.integer("num_hidden_layers")
    _refuse_unsupported(fields, layers)
    head_dim = fields.integer("head_dim")
    return AssistantConfig(
        backbone_hidden_size=fields.integer("backbone_hidden_size"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_attention_heads=fields.integer("num_attention_heads"),
        head_dims={"sliding_attention": head_dim, "full_attention": fields.integer("global_head_dim", head_dim)},
        rms_norm_eps=fields.number("rms_norm_eps"),
        vocab_size=fields.integer("vocab_size"),
        layer_types=_layer_types(fields, layers),
        # A window counts the token itself: one of 1 would leave no context.
        sliding_window=fields.integer("sliding_window", least=2),
        rope={kind: _rope(fields, kind) for kind in LAYER_TYPES},
        centroids=_centroids(fields),
    )


def _refuse_unsupported(fields: Fields, layers: int) -> None:
    """Parts of Gemma-4's text models that an assistant does not have."""
    for name in ("enable_moe_block", "use_double_wide_mlp", "attention_bias"):
        if fields.flag(name):
            raise fields.wrong(name, "false, the only form that is supported")
    if fields.integer("hidden_size_per_layer_input", 0, least=0):
        raise fields.wrong("hidden_size_per_layer_input", "0, the only form that is supported")
    if fields.flag("tie_word_embeddings") is False:
        raise fields.wrong("tie_word_embeddings", "true, the only form that is supported")
    if fields.integer("num_kv_shared_layers", layers, least=0) not in (0, layers):
        raise fields.wrong("num_kv_shared_layers", f"{layers}: no layer of an assistant has keys and values of its own")
    fields.choice("hidden_activation", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")


def _layer_types(fields: Fields, layers: int) -> tuple[LayerType, ...]:
    types = fields.items("layer_types", str)
    if types is None or len(types) != layers or not set(types) <= set(LAYER_TYPES):
        raise fields.wrong("layer_types", f"{layers} of {' and '.join(LAYER_TYPES)}")
    return tuple(cast(LayerType, kind) for kind in types)


def _rope(fields: Fields, kind: LayerType) -> Mapping[str, Any]:
    stated = fields.mapping("rope_parameters").get(kind)
    if stated is None:
        return _ROPE[kind]
    name = stated.get("rope_type", "default") if isinstance(stated, Mapping) else None
    if name not in _ROPE_FIELDS:
        raise fields.wrong("rope_parameters", f"{kind} with a rope_type of {' or '.join(_ROPE_FIELDS)}")
    # All of a head is what the plain form rotates.
    form = {key: value for key, value in stated.items() if key != "rope_type" and value is not None}
    if name == "default" and form.get("partial_rotary_factor") == 1:
        del form["partial_rotary_factor"]
    known = _ROPE_FIELDS[name]
    if "rope_theta" not in form or not form.keys() <= known or not all(map(_is_positive, form.values())):
        raise fields.wrong("rope_parameters", f"{kind} with no fields but {', '.join(sorted(known))}, positive numbers")
    return {"rope_type": name, **form}


def _is_positive(value: object) -> bool:
    return type(value) in (int, float) and value > 0  # type: ignore[operator]


def _centroids(fields: Fields) -> Centroids | None:
    """Larger assistants state counts of centroids as well, and have none."""
    if not fields.flag("use_ordered_embeddings"):
        return None
    centroids = Centroids(fields.integer("num_centroids"), fields.integer("centroid_intermediate_top_k"))
    tokens = fields.integer("vocab_size")
    if tokens % centroids.count:
        raise fields.wrong("num_centroids", f"a divisor of vocab_size, which is {tokens}")
    if centroids.active > centroids.count:
        raise fields.wrong("centroid_intermediate_top_k", f"at most num_centroids, which is {centroids.count}")
    return centroids
