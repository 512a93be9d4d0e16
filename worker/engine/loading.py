"""Loading a target: find it, convert a GGUF once, open it with mlx-lm, and read what it says about itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model

from api.errors import CidermillError, ModelError
from api.schemas import ResolvedValue
from worker.engine.drafters.metadata import refuse_helper
from worker.engine.gguf import CONVERSION, convert
from worker.engine.hub import downloaded
from worker.engine.kernel_set import STOCK, KernelSet
from worker.engine.linears import Installed
from worker.engine.memory import MemoryLimit, ModelMemory
from worker.engine.model_recipe import model_recipe
from worker.engine.models import DEMO_MODEL, ModelSpec

DEFAULT_CONTEXT = 4096


@dataclass(frozen=True)
class Target:
    """A loaded target model.

    directory: of its files. context: tokens of its window. recipe: the sampling values that the model's own files
    state, with their sources.
    identity: changes whenever the weights may have changed; part of the cost curve's key. kernels,
    products: what the model in memory computes with, see `with_kernels`.
    """

    spec: ModelSpec
    directory: Path
    model: Any
    tokenizer: Any
    context: int
    vocabulary: int
    dtype: mx.Dtype
    recipe: dict[str, ResolvedValue]
    identity: str
    kernels: KernelSet = STOCK
    products: Installed | None = None


def load_target(
    spec: ModelSpec,
    models_dir: Path,
    *,
    memory: ModelMemory | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> Target:
    """Load `spec`; a GGUF file is converted into `models_dir` the first time.

    memory: where it has to fit in; None = what the device gives. notify: told what the user should know of the model.
    Raises ModelError with the reason and the way out, before any weight is read if the model does not fit.
    """
    memory = memory or ModelMemory(MemoryLimit.of(None))
    directory = resolve(spec, models_dir, memory, notify)
    refuse_helper(directory, str(spec))
    recipe = model_recipe(directory, notify)
    try:
        model, tokenizer, config = mlx_lm.load(str(directory), lazy=True, return_config=True)
        if spec.dtype and not _converted(spec):
            model = _dense(model, config, getattr(mx, spec.dtype))
        memory.reader(str(spec))(model)
    except CidermillError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"model {spec}: mlx-lm cannot load {directory}: {reason}") from error
    text_config = config.get("text_config", config)
    return Target(
        spec=spec,
        directory=directory,
        model=model,
        tokenizer=tokenizer,
        context=int(text_config.get("max_position_embeddings") or DEFAULT_CONTEXT),
        vocabulary=int(text_config.get("vocab_size") or len(tokenizer)),
        dtype=_float_type(model),
        recipe=recipe,
        identity=contents_identity(directory, directory.glob("model*.safetensors")),
    )


def resolve(
    spec: ModelSpec,
    models_dir: Path,
    memory: ModelMemory | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> Path:
    """The directory that mlx-lm opens: converted from GGUF or downloaded if need be. Raises ModelError, StorageError.

    memory: where a conversion has to fit in; None = what the device gives.
    """
    source = spec.source
    if isinstance(source, str):
        return downloaded(source, notify)
    if source.suffix == ".gguf":
        return _converted_directory(spec, source, models_dir, memory or ModelMemory(MemoryLimit.of(None)))
    return source


def _converted(spec: ModelSpec) -> bool:
    return spec.name == DEMO_MODEL or spec.name.endswith(".gguf")


def _converted_directory(spec: ModelSpec, gguf: Path, models_dir: Path, memory: ModelMemory) -> Path:
    size = gguf.stat().st_size
    version = hashlib.sha256(f"{CONVERSION}:{gguf.name}:{size}".encode()).hexdigest()[:8]
    name = DEMO_MODEL if spec.name == DEMO_MODEL else gguf.stem
    directory = models_dir / f"{name}-{spec.dtype or f'packed-{mx.default_device().type.name}'}-{version}"
    if not (directory / "config.json").is_file():
        memory.check(str(spec), size)  # the conversion holds all of it
        convert(gguf, directory, spec.dtype)
    return directory


def _dense(model: Any, config: dict[str, Any], dtype: mx.Dtype) -> Any:
    if config.get("quantization"):
        model = dequantize_model(model)
    model.set_dtype(dtype)
    return model


def _float_type(model: Any) -> mx.Dtype:
    """The type the model computes in: that of most of its floating-point parameters' tensors."""
    types = [p.dtype for _, p in tree_flatten(model.parameters()) if mx.issubdtype(p.dtype, mx.floating)]
    commonest: mx.Dtype = max(set(types), key=types.count)
    return commonest


def contents_identity(directory: Path, weights: Iterable[Path]) -> str:
    """Changes whenever the config.json in `directory`, or one of the files `weights`, may have changed."""
    files = sorted([directory / "config.json", *weights])
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr((str(directory.resolve()), facts)).encode()).hexdigest()[:16]
