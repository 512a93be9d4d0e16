"""The norms' convention: a checkpoint stores an RMSNorm's weight w, or w - 1 (zero-centred), without saying which.

The raw models of the Qwen3.5 family store w - 1; MLX conversions store w. A head that is read the wrong way drafts
rubbish, and nothing else shows it. Single norms do not tell: the `pre_fc` norms average 0.3 to 0.5 as w, and
`mtp.norm` averages 1.3 to 2.6 as w - 1. The decoder layer's do. Of published heads (2026) `input_layernorm` averages
0.04 to 0.4 as w - 1 and `q_norm` 0.7 to 0.8, one more each as w; so the mean of the two stays within 0 to 0.6 of the
number of times that 1 was added.
"""

from collections.abc import Mapping
from math import floor
from pathlib import Path

import mlx.core as mx
import numpy as np

from api.errors import ModelError

_TELLING = ("layers.0.input_layernorm.weight", "layers.0.self_attn.q_norm.weight")


def with_multiplier_norms(
    tensors: Mapping[str, mx.array], zero_centred: bool | None, directory: Path
) -> dict[str, mx.array]:
    """The head's tensors with every norm stored as w. zero_centred: what the checkpoint states, None = nothing.

    Raises ModelError where the values fit neither convention, or contradict what is stated.
    """
    added = times_added(tensors)
    if added not in (0, 1):
        raise ModelError(
            f"{directory}: the MTP head's norms look as if 1 had been added to them {added} times, where 0 or 1 is "
            "right: a conversion went wrong; take another copy of the head"
        )
    if zero_centred is not None and zero_centred != (added == 0):
        stated, found = ("mlx_multiplier", "raw_hf_delta")[zero_centred], ("raw_hf_delta", "mlx_multiplier")[added]
        raise ModelError(
            f"{directory / 'mtplx_runtime.json'}: mtp_norm_layout is {stated}, and the head's norms look like {found}; "
            "correct or remove the entry"
        )
    if added:
        return dict(tensors)
    return {name: tensor + 1 if is_norm(name) else tensor for name, tensor in tensors.items()}


def times_added(tensors: Mapping[str, mx.array]) -> int:
    """How often 1 was added to the zero-centred norms of the head."""
    means = mx.stack([tensors[name].astype(mx.float32).mean() for name in _TELLING])
    return floor(float(np.mean(np.array(means))) + 0.2)


def is_norm(name: str) -> bool:
    return name.endswith(("norm.weight", "pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight"))
