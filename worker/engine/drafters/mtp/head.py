"""The MTP head: one more decoder layer, which guesses the token after the next.

From the embedding of token p + 1 and the hidden state of token p it predicts token p + 2 (multi-token prediction,
arXiv:2412.19437, section 2.2). Its decoder layer is mlx-lm's own, of the target's class; embedding and output head are
the target's.
"""

from __future__ import annotations

import copy
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from api.errors import ModelError
from worker.engine.verify.adapters.in_place import model_file
from worker.engine.verify.taps import head_and_inner


class MtpHead(nn.Module):  # type: ignore[misc]
    """A head with random weights, for a target whose decoder layers are of `layer_class`.

    args: of the target. place: of a target's layer with full attention, which this one is built as.
    """

    def __init__(self, args: Any, layer_class: type[Any], place: int) -> None:
        super().__init__()
        width, eps = args.hidden_size, args.rms_norm_eps
        self.pre_fc_norm_embedding = nn.RMSNorm(width, eps=eps)
        self.pre_fc_norm_hidden = nn.RMSNorm(width, eps=eps)
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.layers = [layer_class(args, place)]
        self.norm = nn.RMSNorm(width, eps=eps)
        attention = self.layers[0].self_attn
        attention.rope = _RowRope(attention.rope)

    def __call__(self, embedded: mx.array, hidden: mx.array, mask: Any, cache: Any) -> mx.array:
        """The normed outputs [N, H], for the target's head, of N pairs.

        embedded: [N, H] of the later tokens of the pairs. hidden: [N, H] of the earlier ones: the target's states, or
        this head's own outputs where the earlier tokens are guesses. mask: of the attention, None, "causal" or
        [N, rows]. cache: gives `offset`, the position of the first row or of each, and takes keys and values.
        """
        fused = mx.concatenate([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)], axis=-1)
        output = self.layers[0](self.fc(fused)[None], mask, cache)
        normed: mx.array = self.norm(output)[0]
        return normed


class _RowRope(nn.Module):  # type: ignore[misc]
    """Rotary embedding where `offset` may be [N], the position of each row: the nodes of a tree stand side by side."""

    def __init__(self, rope: Any) -> None:
        super().__init__()
        self.rope = rope

    def __call__(self, x: mx.array, offset: int | mx.array) -> mx.array:
        if isinstance(offset, int):
            rotated: mx.array = self.rope(x, offset=offset)
        else:
            # Rows become the batch axis, which has an offset per entry.
            rotated = self.rope(x.swapaxes(0, 2), offset=offset).swapaxes(0, 2)
        return rotated


def new_head(model: Any, experts: int) -> MtpHead:
    """A head with random weights for the target `model`; experts: of its MLP, 0 for a dense one.

    Raises ModelError for a target of another kind.
    """
    another = ModelError(f"an MTP head needs a target of the Qwen3.5 family, and this one is a {model.model_type}")
    try:
        outer, inner = head_and_inner(model)
    except ValueError as error:
        raise another from error
    args: Any = copy.copy(getattr(outer, "args", None))
    place = next((place for place, block in enumerate(inner.layers) if "self_attn" in block), None)
    if place is None or not hasattr(args, "full_attention_interval"):
        raise another
    args.num_experts = experts
    if experts and args.num_experts_per_tok > experts:
        raise ModelError(f"the MTP head has {experts} experts, and the target's tokens take {args.num_experts_per_tok}")
    return MtpHead(args, _written_class(inner.layers[place]), place)


def _written_class(block: Any) -> type[Any]:
    """The class of a decoder layer as its model file has it, without what adapters put before it."""
    written = vars(model_file(block))
    found: type[Any] = next(cls for cls in type(block).__mro__ if written.get(cls.__name__) is cls)
    return found
