"""`--expires`: how long a batch may take."""

from __future__ import annotations

import re
from typing import Annotated

import typer

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_SECONDS = 3650 * 86_400


def seconds_of(text: str) -> float:
    """Seconds from a number and a unit, as in 90m, 24h, 7d or 1.5h. Raises typer.BadParameter."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])", text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no duration; give a number and s, m, h or d, as in 90m, 24h or 7d")
    seconds = float(found[1]) * _SECONDS[found[2]]
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise typer.BadParameter(f"{text!r} is out of range; give more than 0s and at most 3650d")
    return seconds


Expires = Annotated[
    float | None,
    typer.Option(
        "--expires",
        metavar="DURATION",
        parser=seconds_of,
        help="What has not run by then expires, as in 90m, 24h or 7d from now; without it, nothing does.",
        show_default=False,
    ),
]
