"""Loading a target: find it, convert a GGUF once, open it with mlx-lm, and read what it says about itself."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model, hf_repo_to_path

from api.errors import CidermillError, ModelError
from worker.engine.gguf import CONVERSION, convert
from worker.engine.models import DEMO_MODEL, ModelSpec

DEFAULT_CONTEXT = 4096


@dataclass(frozen=True)
class Target:
    """A loaded target model.

    context: tokens of its window. generation_defaults: the model's own sampling settings (generation_config.json).
    identity: changes whenever the weights may have changed; part of the cost curve's key.
    """

    spec: ModelSpec
    model: Any
    tokenizer: Any
    context: int
    vocabulary: int
    dtype: mx.Dtype
    generation_defaults: dict[str, Any]
    identity: str


def load_target(spec: ModelSpec, models_dir: Path) -> Target:
    """Load `spec`; a GGUF file is converted into `models_dir` the first time.

    Raises ModelError with the reason and the way out.
    """
    path = resolve(spec, models_dir)
    try:
        model, tokenizer, config = mlx_lm.load(str(path), return_config=True)
        directory = path if isinstance(path, Path) else Path(hf_repo_to_path(path))
    except CidermillError:
        raise
    except Exception as error:
        raise ModelError(_explanation(spec, path, error)) from error
    if spec.dtype and not _converted(spec):
        model = _dense(model, config, getattr(mx, spec.dtype))
    text_config = config.get("text_config", config)
    return Target(
        spec=spec,
        model=model,
        tokenizer=tokenizer,
        context=int(text_config.get("max_position_embeddings") or DEFAULT_CONTEXT),
        vocabulary=int(text_config.get("vocab_size") or len(tokenizer)),
        dtype=_float_type(model),
        generation_defaults=_generation_defaults(directory),
        identity=_identity(directory),
    )


def resolve(spec: ModelSpec, models_dir: Path) -> Path | str:
    """A directory that mlx-lm opens, or a hub id."""
    source = spec.source
    if isinstance(source, Path) and source.suffix == ".gguf":
        return _converted_directory(spec, source, models_dir)
    return source


def _converted(spec: ModelSpec) -> bool:
    return spec.name == DEMO_MODEL or spec.name.endswith(".gguf")


def _converted_directory(spec: ModelSpec, gguf: Path, models_dir: Path) -> Path:
    stat = gguf.stat()
    version = hashlib.sha256(f"{CONVERSION}:{gguf.name}:{stat.st_size}".encode()).hexdigest()[:8]
    name = DEMO_MODEL if spec.name == DEMO_MODEL else gguf.stem
    directory = models_dir / f"{name}-{spec.dtype or f'packed-{mx.default_device().type.name}'}-{version}"
    if not (directory / "config.json").is_file():
        convert(gguf, directory, spec.dtype)
    return directory


def _dense(model: Any, config: dict[str, Any], dtype: mx.Dtype) -> Any:
    if config.get("quantization"):
        model = dequantize_model(model)
    model.set_dtype(dtype)
    mx.eval(model.parameters())
    return model


def _float_type(model: Any) -> mx.Dtype:
    """The type the model computes in: that of most of its floating-point parameters' tensors."""
    types = [p.dtype for _, p in tree_flatten(model.parameters()) if mx.issubdtype(p.dtype, mx.floating)]
    commonest: mx.Dtype = max(set(types), key=types.count)
    return commonest


def _generation_defaults(directory: Path) -> dict[str, Any]:
    path = directory / "generation_config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: not JSON ({error}); repair or delete it") from error
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    defaults = {name: config[name] for name in names if config.get(name) is not None}
    if config.get("do_sample") is False:
        defaults["temperature"] = 0.0
    return defaults


def _identity(directory: Path) -> str:
    files = sorted([directory / "config.json", *directory.glob("model*.safetensors")])
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr((str(directory), facts)).encode()).hexdigest()[:16]


def _explanation(spec: ModelSpec, path: Path | str, error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    if isinstance(path, Path):
        return f"model {spec}: mlx-lm cannot load {path}: {reason}"
    return (
        f"model {spec}: not on this machine and not to be had from the hub ({reason}); check the id and the network, "
        "or give a local MLX directory"
    )
