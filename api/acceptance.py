"""Acceptance rules by name: what a request may ask for, on the command line and in a file."""

from __future__ import annotations

import math
from dataclasses import dataclass

LOSSLESS = "lossless"
_RATIO = "ratio:theta="


@dataclass(frozen=True)
class AcceptanceRule:
    """`lossless`, or `ratio:theta=0.3`: how far a draw may be overruled. `theta` is None for lossless."""

    theta: float | None = None

    @classmethod
    def parse(cls, name: str) -> AcceptanceRule:
        """Raises ValueError, which says what the rules are."""
        if name == LOSSLESS:
            return cls()
        try:
            theta = float(name.removeprefix(_RATIO)) if name.startswith(_RATIO) else math.nan
        except ValueError:
            theta = math.nan
        if not 0 <= theta <= 1:
            raise ValueError(f'"{name}" is no acceptance rule: "lossless", or "ratio:theta=0.3" with theta from 0 to 1')
        return cls(theta)

    def __str__(self) -> str:
        return LOSSLESS if self.theta is None else f"{_RATIO}{self.theta}"
