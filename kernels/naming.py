"""Names of kernels that change with their text."""

from hashlib import sha256


def named(name: str, *texts: str) -> str:
    """`name` with a digest of the texts.

    MLX finds compiled CUDA kernels, on disk too, by name and template values alone: after a change of the text under
    the same name, what was compiled before it would run.
    """
    return f"{name}_{sha256(chr(0).join(texts).encode()).hexdigest()[:12]}"
