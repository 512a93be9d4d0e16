"""What memory there is for a model and its caches.

Whether a model fits is told before its weights are read: a machine that swaps answers nothing.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from api.errors import ModelError
from worker.engine.machine import memory_bytes

GIGABYTE = 2**30

# Beside the weights: key/value caches of a few thousand tokens and the activations of a prefill pass, which grow with
# the model, and the runtime's own buffers, which do not.
ROOM_SHARE = 0.1
ROOM_BYTES = 256 * 2**20

# Of what the weights leave. The rest is for the live cache, which a long context lets grow, and for everybody else.
PREFIX_CACHE_SHARE = 0.25

_SETTING = "memory_limit_gb allows it"


@dataclass(frozen=True)
class MemoryLimit:
    """What a model may take. source: who says so, as the start of a sentence that the amount ends."""

    size: int
    source: str

    @classmethod
    def of(cls, setting_gb: float | None) -> "MemoryLimit":
        """The device's limit, or the setting's `setting_gb` GB (2^30 bytes) in its place."""
        if setting_gb is None:
            return cls(memory_bytes(), "this device gives it")
        return cls(int(setting_gb * GIGABYTE), _SETTING)

    def check(self, model: str, weights: int) -> None:
        """Raises ModelError when `weights` bytes of weights, and the room beside them, are more than the limit."""
        needed = needed_bytes(weights)
        if needed > self.size:
            raise ModelError(
                f"model {model} needs about {_gb(needed)} of memory ({_gb(weights)} of weights, the rest for caches "
                f"and activations), and {self.source} {_gb(self.size)}; take a smaller quantization or a larger "
                f"machine, or {'raise' if self.source == _SETTING else 'set'} memory_limit_gb if there is more "
                "memory than that"
            )


def needed_bytes(weights: int) -> int:
    """What a model of `weights` bytes of weights takes while it works, estimated."""
    return int(weights * (1 + ROOM_SHARE)) + ROOM_BYTES


def prefix_cache_bytes(memory_limit_gb: float | None) -> int:
    """Memory for snapshots of prompts, as long as no setting names it; the weights have been read by now."""
    left = MemoryLimit.of(memory_limit_gb).size - mx.get_active_memory()
    return max(0, int(left * PREFIX_CACHE_SHARE))


def weight_bytes(model: Any) -> int:
    """Bytes of a model's parameters; they need not have been read yet."""
    return sum(int(parameter.nbytes) for _, parameter in tree_flatten(model.parameters()))


def _gb(size: int) -> str:
    return f"{size / GIGABYTE:.2f} GB"
