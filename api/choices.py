"""Choices that flags and schemas share. This module imports nothing heavy: the command line's help needs it."""

from typing import Literal

Priority = Literal["high", "normal", "low"]
PRIORITIES: tuple[Priority, ...] = ("high", "normal", "low")

Format = Literal["openai", "jsonl", "csv", "parquet", "text"]

MAX_CHOICES = 128
"""Answers to one prompt at most."""
