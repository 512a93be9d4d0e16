"""Tiny random models of every family that mlx-lm loads: the configurations, and the models built from them."""

from bench.families.models import FAMILIES, Family, configuration, tiny_model, vocabulary

__all__ = ["FAMILIES", "Family", "configuration", "tiny_model", "vocabulary"]
