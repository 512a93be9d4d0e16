"""Whoever can write to Redis can put any number into an event. None stops the recorder, and counts still add up."""

import json
from typing import Any

import pytest

from api.queue.results import FIELD, RESULTS_STREAM
from tests.api.recording.recording_station import Station, finished

NUMBERS = ("9" * 400, "9" * 19, "-" + "9" * 25, "-5", "NaN", "-Infinity", "1e999", "1e308", '"abc"', '"\\ud800"')
PLACES = (
    ("attempt",),
    ("at",),
    ("result", "usage", "prompt_tokens"),
    ("result", "usage", "completion_tokens"),
    ("stats", "wall_ms"),
    ("stats", "ttft_ms"),
    ("stats", "decode_tps"),
    ("stats", "passes"),
    ("stats", "drafted_tokens"),
    ("stats", "acceptance"),
    ("stats", "peak_memory_bytes"),
    ("stats", "repetition"),
    ("stats", "phases", "verify"),
)
USAGE = {"prompt_tokens": 1, "completion_tokens": 1}
MARK = '"the number"'


def forged(request_id: str, place: tuple[str, ...], number: str) -> str:
    event: dict[str, Any] = json.loads(finished(request_id).model_dump_json(exclude_defaults=True))
    event["result"]["usage"] = dict(USAGE)
    event["stats"] = {"wall_ms": 1.0, "phases": {}}
    *path, last = place
    inner = event
    for name in path:
        inner = inner[name]
    inner[last] = json.loads(MARK)
    return json.dumps(event).replace(MARK, number)


@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_no_number_of_an_event_stops_the_recorder(station: Station, place: tuple[str, ...]) -> None:
    batch = station.enter(len(NUMBERS) + 1)
    *bad, good = [f"{batch.id}-{index}" for index in range(len(NUMBERS) + 1)]
    for request_id, number in zip(bad, NUMBERS, strict=True):
        station.redis.xadd(RESULTS_STREAM, {FIELD: forged(request_id, place, number)})
    station.redis.xadd(RESULTS_STREAM, {FIELD: b"\xff\xfe"})
    station.publish(finished(good))
    assert station.recorder().step(block_ms=1) == len(NUMBERS) + 2
    assert (station.on_stream(), station.unacknowledged()) == (0, 0)
    assert station.happened(good) == ["finished"]
    counts = station.ledger.batch(batch.id).counts
    ends = [kind for request_id in bad for kind in station.happened(request_id)]
    assert counts.completed + counts.failed == 1 + len(ends)
    assert set(ends) <= {"finished"}
    assert len(list(station.ledger.results(batch.id))) == len(bad) + 1  # whoever looks can read them all
    station.ledger.stats(batch.id)
    assert len(list(station.ledger.history(batch.id, request_ids=bad, after=0))) == len(ends)
