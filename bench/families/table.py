"""Which family is verified how: the self-check's verdict on a tiny random model of each, as a Markdown table.

`python -m bench.families.table` writes worker/engine/verify/FAMILIES.md; a test compares that file with the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

import worker.engine.verify as verify
from bench.families.models import FAMILIES, tiny_model, vocabulary
from bench.report import table
from worker.engine.verify.selfcheck import Verdict, decide_mode
from worker.engine.verify.support import Support, support_of

PATH = Path(verify.__file__).with_name("FAMILIES.md")
HEADINGS = ["family", "kind", "verified by", "through"]
INTRODUCTION = """\
# How each family is verified

Made by `python -m bench.families.table` from the code: the self-check of a worker's start, run on a tiny random model
of every family that mlx-lm loads. *tree*: any tree of drafts in one pass. *chain*: one chain of drafts per pass, over
caches that are restored and replayed when a part is rejected. *plain*: one token per pass. Beside the rope hook and the
tree caches, *through* names the recurrent layers with the way they follow a tree, and the adapters.

A real model is checked again when a worker loads it for the first time, so a family that is missing here is served all
the same; `verification` in the statistics says how.
"""


def row(name: str) -> list[object]:
    """One family's line of the table."""
    family = FAMILIES[name]
    if family.cannot_run is not None:
        return [f"`{name}`", family.group, "not run here", family.cannot_run]
    model = tiny_model(name)
    verdict = decide_mode(model, vocabulary(name), mx.float32)
    support = support_of(model) if verdict.mode == "tree" else Support()
    return [f"`{name}`", family.group, verdict.mode, _through(verdict, support)]


def _through(verdict: Verdict, support: Support) -> str:
    parts = [f"{mixer}: {way}" for mixer, way in sorted(support.mixers.items())]
    parts += [*support.adapters, *(str(limit) for limit in support.limits)]
    # The sizes of errors are the machine's; that there is one is the family's.
    parts += [f"{mode}: {reason.partition(' by ')[0]}" for mode, reason in verdict.refused.items()]
    return "; ".join(parts)


def rows_of(names: Sequence[str]) -> list[str]:
    """The table's lines for `names`."""
    return table(HEADINGS, [row(name) for name in names]).splitlines()


def document() -> str:
    return "\n".join([INTRODUCTION, *rows_of(list(FAMILIES)), ""])


if __name__ == "__main__":
    PATH.write_text(document(), "utf-8")
    print(PATH)
