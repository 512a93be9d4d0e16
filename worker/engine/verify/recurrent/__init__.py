"""Recurrent layers on trees: their state folds in every token, so a tree needs a form of its own for each kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from worker.engine.verify.recurrent.discovery import Mixer, Plan, find_mixers
from worker.engine.verify.recurrent.hooks import hook_convolutions
from worker.engine.verify.recurrent.mixer import Form, form_of, tree_mixer_class
from worker.engine.verify.recurrent.native import follow_by_tree_form
from worker.engine.verify.recurrent.plain import plain_pass
from worker.engine.verify.recurrent.unroll import follow_by_path_unroll

__all__ = ["Form", "instrument_mixers", "plain_pass"]


def instrument_mixers(model: Any, make_cache: Callable[[], Sequence[Any]]) -> dict[str, Form]:
    """Make the recurrent mixers of `model` follow trees; returns how, by the name of their class.

    make_cache: makes a new cache as mlx-lm does. The model runs two tokens. A second call changes nothing.
    """
    if not _forms(model):
        for mixer in find_mixers(model, make_cache):
            _instrument(mixer)
    return _forms(model)


def _instrument(mixer: Mixer) -> None:
    if mixer.plan is not None:
        hook_convolutions(mixer.module)
    stock: Any = type(mixer.module)
    mixer.module.__class__ = _tree_class(stock, mixer.plan)


@cache
def _tree_class(stock: type[Any], plan: Plan | None) -> type[Any]:
    if plan is None:
        return tree_mixer_class(stock, "path unroll", follow_by_path_unroll)
    return tree_mixer_class(stock, "tree form", partial(follow_by_tree_form, plan))


def _forms(model: Any) -> dict[str, Form]:
    """Class name -> form; of mixers of one class the one that costs more is named."""
    forms: dict[str, Form] = {}
    for module in model.modules():
        form = form_of(module)
        if form is not None and forms.get(type(module).__name__) != "path unroll":
            forms[type(module).__name__] = form
    return forms
