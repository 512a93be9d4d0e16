"""The texts of the kernels."""

from importlib.resources import files


def source(file: str) -> str:
    """One of this folder's files."""
    return files(__package__).joinpath(file).read_text(encoding="ascii")
