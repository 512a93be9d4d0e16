"""The network of a block drafter, with its tensors named as in published checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from worker.engine.drafters.dflash.attention import BlockAttention
from worker.engine.drafters.dflash.config import DFlashConfig
from worker.engine.drafters.dflash.context import append, new_layer
from worker.engine.drafters.dflash.convolution import BlockConvolution
from worker.engine.drafters.dflash.masks import Mask, block_mask
from worker.engine.drafters.dflash.selector import CandidateSelector
from worker.engine.drafters.dflash.settings import BlockMask

_ACTIVATIONS = {"silu": nn.silu, "gelu_pytorch_tanh": nn.gelu_approx}


class GatedMLP(nn.Module):  # type: ignore[misc]
    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.activation = _ACTIVATIONS[config.hidden_act]

    def __call__(self, x: mx.array) -> mx.array:
        output: mx.array = self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
        return output


class DraftLayer(nn.Module):  # type: ignore[misc]
    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = BlockAttention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMLP(config)
        self.convolved = config.second is not None
        if config.second:
            self.attention_conv = BlockConvolution(config.hidden_size, config.second)
            self.mlp_conv = BlockConvolution(config.hidden_size, config.second)

    def __call__(self, z: mx.array, position: int, layer: Any, mask: Mask) -> mx.array:
        """The residual stream z [slots, hidden] of a block through this layer."""

        def attend(x: mx.array) -> mx.array:
            return self.self_attn(x, position, layer, mask)

        x = self.input_layernorm(z)
        z = z + (self.attention_conv.around(attend, x) if self.convolved else attend(x))
        x = self.post_attention_layernorm(z)
        return z + (self.mlp_conv.around(self.mlp, x) if self.convolved else self.mlp(x))


class Backbone(nn.Module):  # type: ignore[misc]
    """Everything that a checkpoint holds; embedding and head are the target's."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.fc = nn.Linear(len(config.target_layer_ids) * hidden, hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(hidden, config.rms_norm_eps)
        self.layers = [DraftLayer(config) for _ in config.windows]
        self.norm = nn.RMSNorm(hidden, config.rms_norm_eps)
        if config.second:
            self.candidate_selector = CandidateSelector(hidden, config.vocab_size, config.second)

    @property
    def dtype(self) -> mx.Dtype:
        """The type that the network computes in."""
        dtype: mx.Dtype = self.norm.weight.dtype
        return dtype

    def new_context(self) -> list[Any]:
        return [new_layer(window) for window in self.config.windows]

    def append_context(self, hidden: mx.array, context: Sequence[Any]) -> None:
        """Append committed tokens to the context; hidden: what the target's blocks put out for them, [n, taps * H]."""
        # Projected first, then normed, and with no norm of the layers: only a block passes those.
        rows = self.hidden_norm(self.fc(hidden.astype(self.dtype)))
        for part, layer in zip(self.layers, context, strict=True):
            append(layer, part.self_attn.keys_values(rows, layer.offset))

    def block(self, embeddings: mx.array, position: int, context: Sequence[Any], mask: BlockMask) -> mx.array:
        """Normed hidden states [slots, hidden] of a block's embeddings [slots, hidden], the first at `position`."""
        z = embeddings.astype(self.dtype)
        masks: dict[tuple[int | None, bool], Mask] = {}
        for number, (part, layer) in enumerate(zip(self.layers, context, strict=True)):
            assert layer.offset == position, "the context holds all committed tokens and no other"
            window = self.config.windows[number]
            causal = self.config.causal(number) if mask == "checkpoint" else mask == "causal"
            if (window, causal) not in masks:
                seen = position if window is None else min(position, window - 1)
                masks[window, causal] = block_mask(seen, len(z), window, causal)
            z = part(z, position, layer, masks[window, causal])
        normed: mx.array = self.norm(z)
        return normed
