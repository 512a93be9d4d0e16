"""Which workers are alive: each announces itself under a key that expires when it falls silent."""

import logging
from collections.abc import Sequence
from typing import Any, cast

from redis import Redis
from redis.exceptions import ResponseError

from api.queue.last_seen import MOST_BYTES, forget, parse_info, remember
from api.queue.orders import order_key
from api.schemas import WorkerInfo

logger = logging.getLogger("cidermill.queue")

WORKERS_KEY = "cidermill:workers"
"""A set of names, so that nobody has to scan all keys of a queue of a million requests."""


def _key(name: str) -> str:
    return f"cidermill:worker:{name}"


def announce(connection: Redis, info: WorkerInfo, ttl_seconds: float) -> None:
    """Say that `info.name` is alive for the next `ttl_seconds`."""
    with connection.pipeline() as pipeline:
        pipeline.set(_key(info.name), info.model_dump_json(), px=max(1, int(ttl_seconds * 1000)))
        pipeline.sadd(WORKERS_KEY, info.name)
        remember(pipeline, info)
        pipeline.execute()


def withdraw(connection: Redis, name: str) -> None:
    """Take a worker that stops out of the list at once, with the orders that it had."""
    with connection.pipeline() as pipeline:
        pipeline.delete(_key(name), order_key(name))
        pipeline.srem(WORKERS_KEY, name)
        forget(pipeline, name)
        pipeline.execute()


def live_workers(connection: Redis) -> list[WorkerInfo]:
    """The workers that are alive, by name. An entry that cannot be read is left out."""
    try:
        names = sorted(cast(set[bytes], connection.smembers(WORKERS_KEY)))
    except ResponseError:
        logger.error("key %s is no list of workers; somebody else wrote it: delete it", WORKERS_KEY)
        return []
    with connection.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.getrange(b"cidermill:worker:" + name, 0, MOST_BYTES)
        values = cast(Sequence[Any], pipeline.execute(raise_on_error=False))
    silent = [name for name, value in zip(names, values, strict=True) if value == b""]
    if silent:
        connection.srem(WORKERS_KEY, *silent)
    told = [parse_info(name, value) for name, value in zip(names, values, strict=True) if value != b""]
    found = [info for info in told if info is not None]
    if len(found) < len(told):
        logger.warning("%d entries of live workers are damaged or forged; left out", len(told) - len(found))
    return found
