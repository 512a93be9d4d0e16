"""Orders to workers: data in Redis that each worker reads on its pulse, about once a second.

An order is for one process, by a name that is never used twice. So a worker that was drained and is started again
works, and one that is started later is not meant. The last order stands: a worker that finds none, because Redis lost
its data, keeps to the one it has read, and `work` is an order like the others.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from redis import Redis

KEEP_SECONDS = 7 * 24 * 3600
MOST_BYTES = 16


class Order(StrEnum):
    """work: take requests. pause: finish the running one, take none, keep the model. drain: finish it and end."""

    WORK = "work"
    PAUSE = "pause"
    DRAIN = "drain"


def order_key(name: str) -> str:
    return f"cidermill:order:{name}"


def give(connection: Redis, names: Iterable[str], order: Order) -> None:
    """Order the workers of these names; whatever was in their keys is gone."""
    with connection.pipeline() as pipeline:
        for name in names:
            pipeline.set(order_key(name), order.value, ex=KEEP_SECONDS)
        pipeline.execute()


def ask(pipeline: Any, name: str) -> None:
    """Read the order of a worker, as part of a pipeline; `parse` takes its answer."""
    pipeline.getrange(order_key(name), 0, MOST_BYTES)


def parse(answer: bytes) -> Order | None:
    """None: there is no order. Raises ValueError for what is none."""
    return Order(answer.decode("utf-8", "replace")) if answer else None
