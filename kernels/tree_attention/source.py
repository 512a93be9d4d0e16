"""The texts of the kernels."""

from kernels.texts import text_beside
from kernels.tree_attention.passes import Texts


def source(file: str) -> str:
    """One of this folder's files."""
    return text_beside(__file__, file)


def texts(back_end: str, ending: str) -> Texts:
    """back_end: what the names of its files begin with. ending: of the names."""
    return Texts(*(source(f"{back_end}_{part}.{ending}") for part in ("header", "walk", "span", "whole", "merge")))
