"""What a model needs beyond the rope hook and the tree caches: its recurrent mixers and its adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlx_lm.models.cache import ArraysCache, make_prompt_cache

from worker.engine.verify.adapters import Limit, apply_adapters, limits_of_model, reusable_positions
from worker.engine.verify.attention import install_attention_hook
from worker.engine.verify.caches import flat
from worker.engine.verify.positions import install_rope_hook
from worker.engine.verify.recurrent import instrument_mixers


@dataclass(frozen=True)
class Support:
    """mixers: class of a recurrent mixer -> how it follows a tree. adapters: their names. The rest: see `limits`."""

    mixers: Mapping[str, str] = field(default_factory=dict)
    adapters: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
    reusable: int | None = None


def support_of(model: Any) -> Support:
    """Instrument `model` for tree passes, once; outside a pass it runs as before."""
    support: Support | None = getattr(model, "_tree_support", None)
    if support is None:
        support = model._tree_support = _instrumented(model)
    return support


def limits_of(model: Any) -> Support:
    """What holds for `model` also where no tree is verified; it is left as mlx-lm wrote it."""
    limits = limits_of_model(model)
    return Support(limits=limits, reusable=reusable_positions(limits))


def _instrumented(model: Any) -> Support:
    install_rope_hook()
    install_attention_hook()
    adapters = apply_adapters(model)
    recurrent = any(isinstance(layer, ArraysCache) for layer in flat(make_prompt_cache(model)))
    mixers = instrument_mixers(model, lambda: make_prompt_cache(model)) if recurrent else {}
    return Support(mixers, adapters.names, adapters.limits, adapters.reusable)
