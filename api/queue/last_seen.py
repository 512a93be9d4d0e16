"""Which workers were seen of late, so that one that died can be named, and its machine be found.

A worker that ends in good order is taken out. The latest MOST_SEEN names are kept, each for a day.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from pydantic import ValidationError
from redis import Redis
from redis.exceptions import ResponseError

from api.schemas import WorkerInfo

SEEN_KEY = "cidermill:seen"
"""A sorted set: name -> when the worker announced itself last, by its own clock."""
SEEN_SECONDS = 24 * 3600
MOST_SEEN = 200
MOST_BYTES = 64 * 1024
"""Of what one worker tells about itself."""
LONGEST_NAME = 255
"""Of a machine or a worker, in characters: it becomes part of a key."""


class Seen(NamedTuple):
    """seconds_ago: since the worker announced itself last, by the server's clock."""

    info: WorkerInfo
    seconds_ago: float


def seen_key(name: str) -> str:
    return f"cidermill:seen:{name}"


def remember(pipeline: Any, info: WorkerInfo) -> None:
    """Keep what a worker tells, but for the text it writes, as part of a transaction."""
    told = info.model_copy(update={"tail": ""}).model_dump_json()
    pipeline.set(seen_key(info.name), told, ex=SEEN_SECONDS)
    pipeline.zadd(SEEN_KEY, {info.name: info.seen_at})
    pipeline.zremrangebyrank(SEEN_KEY, 0, -MOST_SEEN - 1)


def forget(pipeline: Any, name: str) -> None:
    """Of a worker that ends in good order, as part of a transaction."""
    pipeline.delete(seen_key(name))
    pipeline.zrem(SEEN_KEY, name)


def last_seen(connection: Redis) -> list[Seen]:
    """The workers that were seen of late, alive or not, the latest first. What cannot be read is left out."""
    try:
        names = cast(list[bytes], connection.zrevrange(SEEN_KEY, 0, MOST_SEEN - 1))
    except ResponseError:
        return []  # somebody else wrote the key
    with connection.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.getrange(b"cidermill:seen:" + name, 0, MOST_BYTES)
            pipeline.pttl(b"cidermill:seen:" + name)
        answers = cast(Sequence[Any], pipeline.execute(raise_on_error=False))
    told = zip(names, answers[::2], answers[1::2], strict=True)
    found = [_seen(parse_info(name, value), left_ms) for name, value, left_ms in told]
    return sorted((seen for seen in found if seen is not None), key=lambda seen: seen.seconds_ago)


def of_worker(connection: Redis, name: str) -> WorkerInfo | None:
    """What a worker that was seen of late has told."""
    if not name or len(name) > LONGEST_NAME:
        return None
    try:
        value = cast(bytes, connection.getrange(seen_key(name), 0, MOST_BYTES))
    except ResponseError:
        return None
    info = parse_info(name.encode("utf-8", "replace"), value)
    return info if info and len(info.host) <= LONGEST_NAME else None


def parse_info(name: bytes, value: bytes | Exception) -> WorkerInfo | None:
    """None for what is no description of that worker, or too long for one."""
    if isinstance(value, Exception) or len(value) > MOST_BYTES:
        return None
    try:
        info = WorkerInfo.model_validate_json(value)
    except ValidationError:
        return None
    return info if info.name.encode("utf-8", "replace") == name else None


def _seen(info: WorkerInfo | None, left_ms: object) -> Seen | None:
    """None also for a key without an end, which is not ours."""
    if info is None or not isinstance(left_ms, int) or not 0 <= left_ms <= 1000 * SEEN_SECONDS:
        return None
    return Seen(info, SEEN_SECONDS - left_ms / 1000)
