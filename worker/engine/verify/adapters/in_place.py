"""The two ways in which adapters change a model in place: a module's class, and a function of a model file."""

import sys
from collections.abc import Callable
from functools import cache, wraps
from types import ModuleType
from typing import Any


def extend(module: Any, mixin: type) -> None:
    """Let the methods of `mixin` come before those of the module's class; parameters and `isinstance` stay as they are.

    Nothing is hung on the module itself: mlx.nn counts arrays and lists of its attributes among the parameters.
    """
    if not isinstance(module, mixin):
        cls: type = type(module)
        module.__class__ = _extended(cls, mixin)


def model_file(module: Any) -> ModuleType:
    """The Python module in which the module's class is written, whose functions its code looks up by name.

    It is empty for code that a model directory brings along: mlx-lm runs that without importing it.
    """
    name = type(module).__module__
    return sys.modules.get(name) or ModuleType(name)


def hook(namespace: ModuleType, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Exchange a function of a model file, once and for good, by `make(function)`.

    Removing it could strip it from under another thread's pass.
    """
    function = getattr(namespace, name)
    if not hasattr(function, "hooked_by_adapter"):
        hooked = wraps(function)(make(function))
        vars(hooked)["hooked_by_adapter"] = True
        setattr(namespace, name, hooked)


@cache
def _extended(cls: type, mixin: type) -> type:
    return type(f"Tree{cls.__name__}", (mixin, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__})
