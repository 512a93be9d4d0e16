"""What memory there is for a target, its drafters and their caches.

Whether they fit is told before weights are read: a machine that swaps answers nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from api.errors import ModelError
from kernels.words import says_no_memory
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
    """What models may take. source: who says so, as the start of a sentence that the amount ends."""

    size: int
    source: str

    @classmethod
    def of(cls, setting_gb: float | None) -> "MemoryLimit":
        """The device's limit, or the setting's `setting_gb` GB (2^30 bytes) in its place."""
        if setting_gb is None:
            return cls(memory_bytes(), "this device gives it")
        return cls(int(setting_gb * GIGABYTE), _SETTING)


class DoesNotFitError(ModelError):
    """A model, or it and its drafters, would take more memory than there is."""


ReadWeights = Callable[[Any], None]
"""Reads the weights of a model, which need not have been read yet."""


def read_weights(model: Any) -> None:
    """One tensor after the other, so that a conversion never holds the stored weights beside the converted ones.

    Nobody else may hold on to the stored ones.
    """
    for _, parameter in tree_flatten(model.parameters()):
        mx.eval(parameter)


class ModelMemory:
    """The memory that a target and its drafters share. The first model that is counted is the target."""

    def __init__(self, limit: MemoryLimit) -> None:
        self._limit = limit
        self._names: list[str] = []
        self._weights = 0

    def count(self, name: str, model: Any) -> None:
        """Count the weights of `model`. Raises DoesNotFitError."""
        weights = weight_bytes(model)
        self.check(name, weights)
        self._names.append(name)
        self._weights += weights

    def reader(self, name: str) -> ReadWeights:
        """What counts the weights of a model and, when they fit beside all others, reads them.

        It raises DoesNotFitError before it reads any.
        """

        def read(model: Any) -> None:
            self.count(name, model)
            read_weights(model)

        return read

    def check(self, name: str, weights: int) -> None:
        """Raises DoesNotFitError when `weights` bytes more, and the room beside all, are more than the limit."""
        limit, whole = self._limit, self._weights + weights
        needed = needed_bytes(whole)
        if needed <= limit.size:
            return
        model, *drafters = dict.fromkeys([*self._names, name])
        beside = f" with {' and '.join(f'drafter {drafter}' for drafter in drafters)}" if drafters else ""
        raise DoesNotFitError(
            f"model {model}{beside} needs about {_gb(needed)} of memory ({_gb(whole)} of weights, the rest for caches "
            f"and activations), and {limit.source} {_gb(limit.size)}; take "
            f"{'a smaller drafter or none, ' if drafters else ''}a smaller quantization or a larger machine, or "
            f"{'raise' if limit.source == _SETTING else 'set'} memory_limit_gb if there is more memory than that"
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


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says so. MLX raises RuntimeError where an allocator of Metal or CUDA refuses an array.

    It ends the process instead where Metal runs out within a pass, and on a CPU (0.32 on Linux): a lost worker.
    """
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and says_no_memory(str(error)))


def _gb(size: int) -> str:
    return f"{size / GIGABYTE:.2f} GB"
