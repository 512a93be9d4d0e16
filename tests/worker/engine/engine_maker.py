"""What the fixture `engine_for` is, for the tests that name its type."""

from collections.abc import Callable

from worker.engine.engine import Engine

EngineFor = Callable[..., Engine]
