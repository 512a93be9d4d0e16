"""Experts of an MTP head: stored one by one, or all in one with gate and up fused; mlx-lm stacks them by projection."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

import mlx.core as mx

_EXPERTS = "layers.0.mlp.experts."
_STACKED = "layers.0.mlp.switch_mlp."
_ONE = re.compile(re.escape(_EXPERTS) + r"(\d+)\.(.+)")


def stacked(tensors: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """The head's tensors with the experts as mlx-lm's `SwitchGLU` has them, [experts, outputs, inputs] each."""
    renamed: dict[str, mx.array] = {}
    single: defaultdict[str, list[mx.array]] = defaultdict(list)
    for name, tensor in sorted(tensors.items(), key=lambda item: _number(item[0])):
        if match := _ONE.fullmatch(name):
            single[match[2]].append(tensor)
        elif name == _EXPERTS + "gate_up_proj":
            gate, up = mx.split(tensor, 2, axis=-2)
            renamed |= {_STACKED + "gate_proj.weight": gate, _STACKED + "up_proj.weight": up}
        elif name == _EXPERTS + "down_proj":
            renamed[_STACKED + "down_proj.weight"] = tensor
        else:
            renamed[name] = tensor
    return renamed | {_STACKED + part: mx.stack(experts) for part, experts in single.items()}


def missing_experts(names: Iterable[str]) -> list[str]:
    """What lacks of experts that are stored one by one: each must have the parts that any of them has."""
    stored = {name: match for name in names if (match := _ONE.fullmatch(name))}
    parts = sorted({match[2] for match in stored.values()})
    count = max((int(match[1]) + 1 for match in stored.values()), default=0)
    expected = [f"{_EXPERTS}{expert}.{part}" for expert in range(count) for part in parts]
    return [name for name in expected if name not in stored]


def _number(name: str) -> int:
    match = _ONE.fullmatch(name)
    return int(match[1]) if match else 0
