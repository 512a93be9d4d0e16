"""Options of a drafter, as a user writes them behind its name: NAME:OPTION=VALUE,OPTION=VALUE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from api.errors import ModelError

Word = TypeVar("Word", bound=str)


class Options:
    """The options of the drafter `name`. Whoever reads one makes it known; `close` refuses those that nobody read.

    All methods raise ModelError, which names drafter and option and says what is expected.
    """

    def __init__(self, name: str, values: Mapping[str, str]) -> None:
        self._name, self._values = name, dict(values)
        self._known: list[str] = []

    def __str__(self) -> str:
        """The same for the same options, in whatever order."""
        return ",".join(f"{option}={value}" for option, value in sorted(self._values.items()))

    @classmethod
    def split(cls, part: str) -> tuple[str, Options]:
        """The name and the options of one part of a choice. A path goes on behind a colon that a slash follows."""
        name, colon, listed = part.rpartition(":")
        if not colon or "/" in listed:
            return part, cls(part, {})
        values: dict[str, str] = {}
        for item in listed.split(","):
            option, equals, value = item.partition("=")
            if not equals or not option or not value or option in values:
                raise ModelError(
                    f"drafter {part!r}: {item!r} is no option; they go like {name or 'NAME'}:depth=4,beam=2, each once"
                )
            values[option] = value
        return name, cls(name, values)

    def integer(self, option: str, default: int, least: int, most: int) -> int:
        """A whole number from `least` to `most`."""
        value = self._read(option)
        if value is None:
            return default
        if not value.isdecimal() or not least <= int(value) <= most:
            raise self._wrong(option, f"a whole number from {least} to {most}")
        return int(value)

    def choice(self, option: str, choices: Sequence[Word]) -> Word | None:
        """One of `choices`; None when nothing was asked for."""
        value = self._read(option)
        found = next((choice for choice in choices if choice == value), None)
        if value is not None and found is None:
            raise self._wrong(option, " or ".join(choices))
        return found

    def close(self) -> None:
        """The drafter has read all options that it has."""
        for option in self._values:
            if option not in self._known:
                there = f"there are {', '.join(sorted(self._known))}" if self._known else "this one has none"
                raise ModelError(f"drafter {self._name}: there is no option {option}; {there}")

    def _read(self, option: str) -> str | None:
        self._known.append(option)
        return self._values.get(option)

    def _wrong(self, option: str, expected: str) -> ModelError:
        return ModelError(f"drafter {self._name}: {option} is {self._values[option]!r}; expected {expected}")
