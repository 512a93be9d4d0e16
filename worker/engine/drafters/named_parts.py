"""The choice of a drafter as its words: they are right or wrong before anything that they name is looked for."""

from __future__ import annotations

from api.errors import ModelError
from worker.engine.drafters.options import Options
from worker.engine.models import ModelSpec

AUTO, NONE, SUFFIX, MTP = "auto", "none", "suffix", "mtp"


def named_parts(choice: str) -> list[tuple[str, Options]]:
    """The name and the options of each part, in order; none for `none`. Raises ModelError for what makes no sense."""
    if choice == NONE:
        return []
    parts = [Options.split(part) for part in choice.split("+")]
    names = {name for name, _ in parts}
    if len(names) < len(parts) or {"", AUTO, NONE} & names:
        raise ModelError(
            f"drafter {choice!r}: give {AUTO}, {NONE}, or one or several of {SUFFIX}, {MTP} and checkpoints, "
            "each once, joined by +"
        )
    return parts


def check_choice(choice: str) -> None:
    """Raises ModelError for a choice that no target could have: bad words, options, or a checkpoint that is nowhere.

    A hub id passes: whether it is there is for the worker to find out.
    """
    for name, options in [] if choice == AUTO else named_parts(choice):
        if name == SUFFIX:
            options.close()
        elif name != MTP:
            try:
                _ = ModelSpec.parse(name).source
            except ModelError as error:
                raise ModelError(f"drafter {name}: {error}; or give {AUTO}, {NONE}, {SUFFIX} or {MTP}") from error
