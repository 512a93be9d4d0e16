"""The kernels' texts, which stand beside this file."""

from pathlib import Path


def source(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="ascii")
