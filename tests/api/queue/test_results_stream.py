import pytest
from redis import Redis

from api.queue import results
from api.queue.results import RESULTS_STREAM, ResultsReader, answered, publish
from api.schemas import GenerationResult, JobStats, Phases, RequestEvent, ResolvedValue, TokenLogprob, Usage


def _event(index: int) -> RequestEvent:
    request_id = f"batch_x-{index}"
    result = GenerationResult(request_id=request_id, text="é")
    return RequestEvent(kind="finished", request_id=request_id, worker="w", attempt=1, at=1.5, result=result)


def _read(reader: ResultsReader) -> list[RequestEvent | None]:
    return [event for _, event in reader.read(block_ms=1)]


def test_what_was_published_before_the_first_reader_is_read(redis: Redis) -> None:
    publish(redis, _event(0))
    assert _read(ResultsReader(redis, "a")) == [_event(0)]


def test_unacknowledged_entries_come_again_first_also_after_a_restart(redis: Redis) -> None:
    reader = ResultsReader(redis, "a")
    publish(redis, _event(0))
    [(first, _)] = reader.read()
    publish(redis, _event(1))
    assert _read(reader) == [_event(0)]
    assert _read(ResultsReader(redis, "a")) == [_event(0)]
    reader.acknowledge([first])
    assert _read(reader) == [_event(1)]


def test_acknowledged_entries_leave_the_stream(redis: Redis) -> None:
    reader = ResultsReader(redis, "a")
    for index in range(3):
        publish(redis, _event(index))
    entries = reader.read(count=2)
    assert [event for _, event in entries] == [_event(0), _event(1)]
    reader.acknowledge([entry_id for entry_id, _ in entries])
    assert redis.xlen(RESULTS_STREAM) == 1
    assert _read(reader) == [_event(2)]


def test_entries_of_a_dead_consumer_are_claimed(redis: Redis) -> None:
    publish(redis, _event(0))
    [(entry_id, _)] = ResultsReader(redis, "dead").read()
    other = ResultsReader(redis, "other")
    assert other.read(block_ms=1) == []
    redis.xclaim(RESULTS_STREAM, "recorder", "dead", 0, [entry_id], idle=61_000)
    assert _read(other) == [_event(0)]


def test_entry_that_does_not_parse_is_none(redis: Redis) -> None:
    reader = ResultsReader(redis, "a")
    redis.xadd(RESULTS_STREAM, {"event": b"\xff{"})
    redis.xadd(RESULTS_STREAM, {"other": "x"})
    entries = reader.read()
    assert [event for _, event in entries] == [None, None]
    reader.acknowledge([entry_id for entry_id, _ in entries])
    assert redis.xlen(RESULTS_STREAM) == 0


def test_reader_survives_a_server_that_lost_its_data(redis: Redis) -> None:
    reader = ResultsReader(redis, "a")
    reader.read(block_ms=1)
    redis.flushall()
    publish(redis, _event(0))
    assert reader.read(block_ms=1) == []
    assert _read(reader) == [_event(0)]


def test_event_survives_the_way_whole(redis: Redis) -> None:
    result = GenerationResult(
        request_id="batch_x-0",
        text="t",
        finish_reason="stop",
        matched_stop=7,
        token_ids=[1, 2],
        usage=Usage(prompt_tokens=1, completion_tokens=2),
        sampling={"top_k": ResolvedValue(value=5, source="request")},
    )
    stats = JobStats(wall_ms=3, budgets={4: 2, 1: 9}, acceptance=0.5, phases=Phases(draft=1.0))
    event = RequestEvent(
        kind="finished", request_id="batch_x-0", worker="w", attempt=2, at=1.5, result=result, stats=stats
    )
    publish(redis, event)
    assert _read(ResultsReader(redis, "a")) == [event]


def test_answered_are_those_with_a_result_on_the_stream(redis: Redis) -> None:
    for index in range(3):
        publish(redis, _event(index))
    publish(redis, RequestEvent(kind="started", request_id="batch_x-9", worker="w", attempt=1, at=1.0))
    reader = ResultsReader(redis, "a")
    [(first, _), *_others] = reader.read(count=1)
    reader.acknowledge([first])
    assert answered(redis) == {"batch_x-1", "batch_x-2"}


def test_a_log_probability_of_minus_infinity_arrives(redis: Redis) -> None:
    sure = TokenLogprob(token_id=1, token="a", logprob=float("-inf"))
    event = _event(0)
    assert event.result is not None
    event.result.logprobs = [sure]
    publish(redis, event)
    assert _read(ResultsReader(redis, "a")) == [event]


def test_large_results_are_read_a_few_at_a_time(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MOST_BYTES", 2500)
    reader = ResultsReader(redis, "a")
    sizes = [1000, 1000, 1000, 9000, 10, 10]
    for index, size in enumerate(sizes):
        event = _event(index)
        large = GenerationResult(request_id=event.request_id, text="t" * size)
        publish(redis, event.model_copy(update={"result": large}))
    assert answered(redis) == {f"batch_x-{index}" for index in range(len(sizes))}
    read = []
    while entries := reader.read(block_ms=1):
        read.append([len(event.result.text) for _, event in entries if event and event.result])
        reader.acknowledge([entry_id for entry_id, _ in entries])
    # Each with some 150 bytes around its text: the third, and the fourth alone, reach the limit.
    assert read == [[1000, 1000, 1000], [9000], [10, 10]]


def test_what_was_claimed_and_not_read_at_once_is_read_next(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    dead, other = ResultsReader(redis, "dead"), ResultsReader(redis, "other")
    for index in range(3):
        publish(redis, _event(index))
    entry_ids = [entry_id for entry_id, _ in dead.read()]
    redis.xclaim(RESULTS_STREAM, "recorder", "dead", 0, entry_ids, idle=61_000)
    monkeypatch.setattr(results, "MOST_BYTES", 1)
    for index in range(3):
        entries = other.read(block_ms=1)
        assert [event for _, event in entries] == [_event(index)]
        other.acknowledge([entry_id for entry_id, _ in entries])
    assert other.read(block_ms=1) == []
