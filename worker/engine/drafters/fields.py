"""Reading a checkpoint's config.json: every wrong field is an error that names file, field and what was expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from api.errors import ModelError


class Fields:
    """The fields of the config.json at `path`. Those in its object `nested` come first; null is absence."""

    def __init__(self, path: Path, config: Mapping[str, Any], nested: str) -> None:
        self.path = path
        inner = config.get(nested) or {}
        if not isinstance(inner, Mapping):
            raise ModelError(f"{path}: {nested} is {inner!r}; expected an object of fields")
        self._values = {**config, **inner}

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def wrong(self, name: str, expected: str) -> ModelError:
        """The error to raise for the field `name`."""
        found = f"is {self._values[name]!r}" if name in self else "is missing"
        return ModelError(f"{self.path}: {name} {found}; expected {expected}")

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`. Raises ModelError, also for absence without a default."""
        value = self._values[name] if name in self else default
        if type(value) is not int or value < least:
            raise self.wrong(name, f"a whole number of at least {least}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number. Raises ModelError, also for absence without a default."""
        value = self._values[name] if name in self else default
        if type(value) not in (int, float) or not 0 < value < float("inf"):  # type: ignore[operator]
            raise self.wrong(name, "a positive number")
        return float(value)  # type: ignore[arg-type]

    def flag(self, name: str) -> bool | None:
        """true or false, None when absent. Raises ModelError."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """One of `choices`. Raises ModelError."""
        value = self._values[name] if name in self else default
        if value not in choices:
            raise self.wrong(name, f"one of {', '.join(choices)}")
        return str(value)

    def items(self, name: str, kind: type) -> list[Any] | None:
        """A list of values of one kind, None when absent. Raises ModelError."""
        value = self._values.get(name)
        if value is not None and (not isinstance(value, list) or any(type(item) is not kind for item in value)):
            raise self.wrong(name, f"a list of {kind.__name__} values")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """An object of fields, empty when absent; fields that are null are left out. Raises ModelError."""
        value = self._values.get(name) or {}
        if not isinstance(value, Mapping):
            raise self.wrong(name, "an object of fields")
        return {key: item for key, item in value.items() if item is not None}


def check_same(path: Path, sizes: Iterable[tuple[str, int, int | None]]) -> None:
    """Raise ModelError for a field, as the drafter's config.json at `path` has it, that differs from the target's.

    sizes: field, drafter's, target's; None = not known.
    """
    for field, found, wanted in sizes:
        if wanted is not None and found != wanted:
            raise ModelError(f"{path}: {field} is {found}, but the target has {wanted}: it is made for another target")
