"""The texts of the kernels."""

from importlib.resources import files

from kernels.tree_attention.passes import Texts


def source(file: str) -> str:
    """One of this folder's files."""
    return files(__package__).joinpath(file).read_text(encoding="ascii")


def texts(back_end: str, ending: str) -> Texts:
    """back_end: what the names of its files begin with. ending: of the names."""
    return Texts(*(source(f"{back_end}_{part}.{ending}") for part in ("header", "walk", "span", "whole", "merge")))
