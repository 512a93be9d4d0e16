"""Builds the tiny models that configs.json describes.

configs.json holds `shared` (named sets of common fields) and `families` (one entry each):

- `group`: what is particular about the family's attention, caches or state (`Group`)
- `type`: the module of `mlx_lm.models`; the entry's name where absent
- `like`, `with`, `config`: the configuration is that of the family `like`, then the shared sets `with`, then `config`,
  later ones over earlier ones; fields that a family does not know are dropped by mlx-lm
- `nested`: the configuration is the `text_config` of a multimodal wrapper; `wrapper` has the wrapper's own fields
- `seed`: of the weights, where text from the first seed repeats a few tokens
- `cannot_run`: why this family cannot be built or run on a CPU with the packages of this project
"""

import copy
import importlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

Group = Literal[
    "dense",
    "moe",
    "sliding window",
    "mla",
    "cross-layer kv",
    "gated delta hybrid",
    "mamba2 hybrid",
    "short convolution",
    "other recurrent",
    "learned positions",
    "position-scaled queries",
    "own mask",
    "indexer",
    "own cache",
    "upstream defect",
    "metal only",
    "needs another package",
]

# With these, 60 greedy tokens of every family hold a dozen different ones or more.
EMBEDDING_SCALE = 0.05
MATRIX_GAIN = 2.0
NOISE = 0.1


@dataclass(frozen=True)
class Family:
    """One tiny model. `config` is flat: the text model's own fields, also for a wrapper (`nested`)."""

    name: str
    type: str
    group: Group
    config: Mapping[str, Any]
    nested: bool = False
    wrapper: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1
    cannot_run: str | None = None


def _read() -> dict[str, Family]:
    stored = json.loads(Path(__file__).with_name("configs.json").read_text())
    families: dict[str, Family] = {}
    for name, entry in stored["families"].items():
        module = entry.pop("type", name)
        like = entry.pop("like", None)
        config = dict(families[like].config) if like else {"model_type": module}
        for shared in entry.pop("with", []):
            config |= stored["shared"][shared]
        config |= entry.pop("config", {})
        families[name] = Family(name, module, config=config, **entry)
    return families


FAMILIES = _read()


def vocabulary(name: str) -> int:
    """Number of token ids of the family's tiny model."""
    config = FAMILIES[name].config
    return int(config["num_vocab"] if "num_vocab" in config else config["vocab_size"])


def configuration(name: str, **changes: Any) -> dict[str, Any]:
    """What config.json of the tiny model says, as a copy. `changes` are fields of the text model."""
    family = FAMILIES[name]
    config = copy.deepcopy({**family.config, **changes})
    if not family.nested:
        return config
    wrapper = copy.deepcopy(dict(family.wrapper))
    return {"model_type": family.type, "vocab_size": config["vocab_size"], **wrapper, "text_config": config}


def tiny_model(name: str, *, dtype: mx.Dtype = mx.float32, seed: int | None = None, **changes: Any) -> Any:
    """The family's tiny model with random weights, whose greedy text wanders. `seed` is the family's own unless given.

    Small embeddings keep the residual stream from repeating its input. Matrices have a standard deviation of
    MATRIX_GAIN / sqrt(inputs), large enough that the logits depend on the whole context. Everything else (norms,
    biases, sinks, decay) is its initial value plus noise, since many families start such parameters at zero or one,
    where a mistake in their use would not show.
    """
    family = FAMILIES[name]
    architecture = importlib.import_module(f"mlx_lm.models.{family.type}")
    mx.random.seed(family.seed if seed is None else seed)
    model = architecture.Model(architecture.ModelArgs.from_dict(configuration(name, **changes)))
    embeddings = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    weights = [
        (path, _random(path, initial, id(initial) in embeddings)) for path, initial in tree_flatten(model.parameters())
    ]
    model.update(tree_unflatten(weights))
    model.set_dtype(dtype)
    model.eval()
    mx.eval(model.parameters())
    if family.type == "phi3small":
        # It bans ids of its own vocabulary; where that many logits do not exist, the write would corrupt memory.
        model._dummy_tokenizer_ids = mx.array([vocabulary(name) - 1])
    return model


def _random(path: str, initial: mx.array, embedding: bool) -> mx.array:
    if not mx.issubdtype(initial.dtype, mx.floating):
        # Packed low-bit weights: every bit pattern is a weight.
        return mx.random.randint(0, mx.iinfo(initial.dtype).max, initial.shape, dtype=initial.dtype)
    noise = mx.random.normal(initial.shape)
    if embedding or path.endswith(("scales", "biases")):
        return noise * EMBEDDING_SCALE
    if initial.ndim < 2 or path.endswith("A_log") or bool((initial == 1).all()):
        return initial + noise * NOISE
    # The last axis is the inputs; in a depthwise convolution it is 1 and the taps come before it.
    inputs = initial.shape[-1] if initial.shape[-1] > 1 else initial.shape[-2]
    return noise * (MATRIX_GAIN / math.sqrt(inputs))
