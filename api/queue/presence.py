"""Which workers are alive: each announces itself under a key that expires when it falls silent."""

from collections.abc import Sequence
from typing import Any, cast

from pydantic import ValidationError
from redis import Redis

from api.schemas import WorkerInfo

WORKERS_KEY = "cidermill:workers"
"""A set of names, so that nobody has to scan all keys of a queue of a million requests."""


def _key(name: str) -> str:
    return f"cidermill:worker:{name}"


def announce(connection: Redis, info: WorkerInfo, ttl_seconds: float) -> None:
    """Say that `info.name` is alive for the next `ttl_seconds`."""
    with connection.pipeline() as pipeline:
        pipeline.set(_key(info.name), info.model_dump_json(), px=max(1, int(ttl_seconds * 1000)))
        pipeline.sadd(WORKERS_KEY, info.name)
        pipeline.execute()


def withdraw(connection: Redis, name: str) -> None:
    """Take a worker that stops out of the list at once."""
    with connection.pipeline() as pipeline:
        pipeline.delete(_key(name))
        pipeline.srem(WORKERS_KEY, name)
        pipeline.execute()


def live_workers(connection: Redis) -> list[WorkerInfo]:
    """The workers that are alive, by name. An entry that cannot be read is left out."""
    members = cast(set[bytes], connection.smembers(WORKERS_KEY))
    names = sorted(member.decode("utf-8", "replace") for member in members)
    if not names:
        return []
    values = cast(Sequence[Any], connection.mget([_key(name) for name in names]))
    silent = [name for name, value in zip(names, values, strict=True) if value is None]
    if silent:
        connection.srem(WORKERS_KEY, *silent)
    return [info for value in values if value is not None and (info := _parse(value))]


def _parse(value: bytes) -> WorkerInfo | None:
    try:
        return WorkerInfo.model_validate_json(value)
    except ValidationError:
        return None
