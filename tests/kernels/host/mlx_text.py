"""The text that the installed MLX itself generates for a kernel, on a machine without Metal too."""

import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest


def generated_by_mlx(
    capfd: pytest.CaptureFixture[str], folder: Path, kernel: Any, inputs: list[mx.array], **call: Any
) -> str:
    """Traces one call for export, which needs no GPU, and takes what `verbose=True` prints."""
    capfd.readouterr()
    mx.export_function(
        str(folder / "traced.mlxfn"),
        lambda *arrays: kernel(inputs=list(arrays), grid=(32, 1, 1), threadgroup=(32, 1, 1), verbose=True, **call),
        *inputs,
    )
    printed = capfd.readouterr().out
    match = re.search(r"```\n(.*)\n```\n$", printed, re.DOTALL)
    assert match is not None, printed
    return match.group(1)
