"""What a block drafter's config.json says, in all its published variants.

DFlash's own fields stand in the object `dflash_config` or beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from api.errors import ModelError
from worker.engine.drafters.dflash.rope import Rope, read_rope
from worker.engine.drafters.fields import Fields, check_same
from worker.engine.drafters.metadata import TargetShape, read_config

ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
SECOND = "DFlash2DraftModel"
_SECOND_FIELDS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
_LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class SecondConfig:
    """What DFlash 2 adds.

    taps: slots that a convolution reads, this one included. group: channels that share a dynamic kernel. rank: width of
    the selector's codebooks. candidates: tokens of a slot that it weighs.
    """

    taps: int
    group: int
    rank: int
    candidates: int


@dataclass(frozen=True)
class DFlashConfig:
    """windows: of each layer, in tokens; None = full attention. is_causal: None = by layer, see `causal`.

    target_layer_ids: decoder blocks of the target whose outputs are the context. num_target_layers: None = not said.
    output_multiplier, final_logit_softcapping: how the target makes logits of what its head puts out.
    second: None for a DFlash of the first kind.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    hidden_act: str
    rope: Rope
    windows: tuple[int | None, ...]
    is_causal: bool | None
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    second: SecondConfig | None = None

    def causal(self, layer: int) -> bool:
        """Whether a slot sees no later slot in this layer; where nothing is said, sliding layers are causal."""
        return self.windows[layer] is not None if self.is_causal is None else self.is_causal

    def check_pair(self, path: Path, target: TargetShape) -> None:
        """Raise ModelError for what does not fit a target of this shape. path: of the config.json."""
        check_same(
            path,
            (
                ("hidden_size", self.hidden_size, target.hidden_size),
                ("vocab_size", self.vocab_size, target.vocab_size),
                ("num_target_layers", self.num_target_layers or target.layers or 0, target.layers),
            ),
        )
        if target.layers is not None and max(self.target_layer_ids) >= target.layers:
            taps = list(self.target_layer_ids)
            raise ModelError(f"{path}: target_layer_ids is {taps}; the target has {target.layers} blocks")
        if target.vocab_size is not None and self.mask_token_id >= target.vocab_size:
            found = f"{path}: mask_token_id is {self.mask_token_id}"
            raise ModelError(f"{found}; the target has {target.vocab_size} embeddings")


def read_dflash_config(directory: Path, target_layers: int | None = None) -> DFlashConfig:
    """What the config.json in `directory` says. target_layers: of the target, should the file not say.

    Raises ModelError that names the field, what was found and what was expected.
    """
    fields = Fields(directory / "config.json", read_config(directory), "dflash_config")
    _refuse_unsupported(fields)
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    key_heads = fields.integer("num_key_value_heads", heads)
    if heads % key_heads:
        raise fields.wrong("num_key_value_heads", f"a divisor of num_attention_heads, which is {heads}")
    causal = fields.flag("causal")
    return DFlashConfig(
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        head_dim=fields.integer("head_dim", hidden // heads),
        vocab_size=fields.integer("vocab_size"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        hidden_act=fields.choice("hidden_act", ACTIVATIONS, "silu"),
        rope=read_rope(fields),
        windows=_windows(fields),
        is_causal=fields.flag("is_causal") if causal is None else causal,
        block_size=fields.integer("block_size", least=2),
        mask_token_id=fields.integer("mask_token_id", least=0),
        target_layer_ids=_target_layer_ids(fields, target_layers),
        num_target_layers=fields.integer("num_target_layers") if "num_target_layers" in fields else None,
        input_embedding_scale=fields.number("input_embedding_scale", 1.0),
        output_multiplier=fields.number("output_multiplier", 1.0),
        final_logit_softcapping=_softcap(fields),
        second=_second(fields, hidden),
    )


def _refuse_unsupported(fields: Fields) -> None:
    for name in ("attention_bias", "mlp_bias", "fc_norm"):
        if fields.flag(name):
            raise fields.wrong(name, "false, the only form that is supported")
    if "draft_vocab_size" in fields and fields.integer("draft_vocab_size") != fields.integer("vocab_size"):
        raise fields.wrong("draft_vocab_size", "the same as vocab_size: no map between vocabularies is supported")


def _windows(fields: Fields) -> tuple[int | None, ...]:
    """The window of each layer. A window counts the token itself, so one of 1 would leave no context."""
    layers = fields.integer("num_hidden_layers")
    types = fields.items("layer_types", str)
    if types is None:
        if fields.flag("use_sliding_window"):
            raise fields.wrong("layer_types", "a list, as use_sliding_window is true")
        types = [_LAYER_TYPES[0]] * layers
    if len(types) != layers or not set(types) <= set(_LAYER_TYPES):
        raise fields.wrong("layer_types", f"{layers} of {' and '.join(_LAYER_TYPES)}")
    return tuple(fields.integer("sliding_window", least=2) if kind == _LAYER_TYPES[1] else None for kind in types)


def _target_layer_ids(fields: Fields, target_layers: int | None) -> tuple[int, ...]:
    """As stated, or else spread evenly from the second block of the target to the fourth from the end."""
    stated = fields.items("target_layer_ids", int)
    if stated is not None:
        if not stated or min(stated) < 0:
            raise fields.wrong("target_layer_ids", "numbers of decoder blocks of the target, from 0 on")
        return tuple(stated)
    blocks = fields.integer("num_target_layers", target_layers)
    layers = fields.integer("num_hidden_layers")
    if layers == 1:
        return (blocks // 2,)
    return tuple(round(1 + i * (blocks - 4) / (layers - 1)) for i in range(layers))


def _softcap(fields: Fields) -> float | None:
    return fields.number("final_logit_softcapping") if "final_logit_softcapping" in fields else None


def _second(fields: Fields, hidden: int) -> SecondConfig | None:
    architectures = fields.items("architectures", str) or []
    if SECOND not in architectures and not any(name in fields for name in _SECOND_FIELDS):
        return None
    second = SecondConfig(*(fields.integer(name) for name in _SECOND_FIELDS))
    if hidden % second.group:
        raise fields.wrong("conv_group_size", f"a divisor of hidden_size, which is {hidden}")
    return second
