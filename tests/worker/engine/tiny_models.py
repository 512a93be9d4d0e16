"""The tiny random models that the engine's tests use; all of them are in bench/families."""

from typing import Any

from bench.families import configuration, tiny_model, vocabulary

__all__ = ["ATTENTION_FAMILIES", "CONFIGS", "CONTEXT", "VOCABULARY", "tiny_model"]

VOCABULARY = vocabulary("llama")
ATTENTION_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "phi3")
CONFIGS: dict[str, dict[str, Any]] = {name: configuration(name) for name in ATTENTION_FAMILIES}
CONTEXT: int = CONFIGS["llama"]["max_position_embeddings"]
