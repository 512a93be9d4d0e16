"""Keys of ours that hold something else than they should. Whoever wrote them, nothing works until they are gone."""

import logging
from collections.abc import Iterable
from typing import cast

from redis import Redis
from redis.exceptions import NoPermissionError

from api.queue.last_seen import SEEN_KEY
from api.queue.presence import WORKERS_KEY
from api.queue.quarantine import QUARANTINE_KEY
from api.queue.results import RESULTS_STREAM

logger = logging.getLogger("cidermill.queue")


def remove_impostors(connection: Redis, queue_names: Iterable[str], window_keys: Iterable[str] = ()) -> list[str]:
    """Delete the shared keys whose type is not theirs, with a line in the log for each; returns them.

    window_keys: marks and turns (api/queue/marks.py), of which workers know nothing.
    """
    expected = _expected(queue_names) | dict.fromkeys(window_keys, "string")
    with connection.pipeline(transaction=False) as pipeline:
        for key in expected:
            pipeline.type(key)
        found = cast(list[bytes], pipeline.execute())
    wrong = [
        (key, kind.decode())
        for (key, wanted), kind in zip(expected.items(), found, strict=True)
        if kind.decode() not in (wanted, "none")
    ]
    removed = []
    for key, kind in wrong:
        found_there = f"key {key} is a {kind} and not a {expected[key]}: forged, or of another program"
        try:
            connection.delete(key)
        except NoPermissionError:  # the results, to a worker; the recorder deletes it
            logger.error("%s; a coordinator has to delete it", found_there)
        else:
            logger.error("%s; deleted", found_there)
            removed.append(key)
    return removed


def _expected(queue_names: Iterable[str]) -> dict[str, str]:
    types = {RESULTS_STREAM: "stream", WORKERS_KEY: "set", QUARANTINE_KEY: "hash", "rq:queues": "set"}
    types["rq:workers"] = "set"
    types[SEEN_KEY] = "zset"
    for name in queue_names:
        types[f"rq:queue:{name}"] = types[f"rq:queue:{name}:intermediate"] = "list"
        types[f"rq:workers:{name}"] = "set"
        types[f"rq:clean_registries:{name}"] = "string"
        for registry in ("wip", "failed", "finished"):
            types[f"rq:{registry}:{name}"] = "zset"
    return types
