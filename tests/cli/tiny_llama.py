"""A real model whose passes take a few milliseconds: a llama of random weights behind SmolLM2's tokenizer."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.llama import Model, ModelArgs

from worker.engine import gguf
from worker.engine.models import demo_gguf

LAYERS = 2
CONTEXT = 2048
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": LAYERS,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": 49152,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
}
# Logits of unit variance would give one token nearly all the mass; these leave the text varied.
EMBEDDING_SCALE = 0.05


def tiny_llama(directory: Path) -> Path:
    """The model's directory, made once: it appears whole or not at all, whoever makes it first."""
    if not (directory / "config.json").is_file():
        directory.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
        _write(draft)
        try:
            os.rename(draft, directory)
        except OSError:  # another run of the tests was faster
            shutil.rmtree(draft)
    return directory


def _write(directory: Path) -> None:
    mx.random.seed(7)
    model = Model(ModelArgs.from_dict(CONFIG))
    weights = {name: weight.astype(mx.float32) for name, weight in tree_flatten(model.parameters())}
    embedding = weights["model.embed_tokens.weight"]
    weights["model.embed_tokens.weight"] = EMBEDDING_SCALE * mx.random.normal(embedding.shape)
    mx.save_safetensors(str(directory / "model.safetensors"), weights, metadata={"format": "mlx"})
    source = demo_gguf()
    _, metadata = mx.load(str(source), return_metadata=True)
    facts = gguf._Facts(source, metadata)
    gguf._tokenizer(facts).save(str(directory / "tokenizer.json"))
    tokenizer_config = {**gguf._tokenizer_config(facts), "model_max_length": CONTEXT}
    ids = {f"{role}_token_id": facts[f"tokenizer.ggml.{role}_token_id"] for role in ("bos", "eos")}
    for name, content in (
        ("config.json", {**CONFIG, **ids}),
        ("tokenizer_config.json", tokenizer_config),
        ("generation_config.json", ids),
    ):
        (directory / name).write_text(json.dumps(content, indent=2), "utf-8")
