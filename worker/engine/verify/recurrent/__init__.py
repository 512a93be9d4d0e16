"""Recurrent layers on trees."""

from collections.abc import Callable
from typing import Any


def instrument_mixers(model: Any, make_cache: Callable[[], Any]) -> dict[str, str]:
    """Make the recurrent mixers of `model` follow trees."""
    raise NotImplementedError("recurrent layers have no tree form yet")
