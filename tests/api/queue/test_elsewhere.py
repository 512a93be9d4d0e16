"""Requests that failed on a machine: it passes them over, for a while, where others can take them."""

import pytest
from redis import Redis

from api.queue.elsewhere import AVOIDED_SECONDS, FAILED_FIELD, MOST_PASSED_OVER, Avoidance, Failure, read_failure
from api.queue.leases import server_time
from api.queue.presence import announce
from api.queue.requests import RequestQueue, queue_name
from api.queue.safe_queue import SafeQueue
from api.schemas import GenerationRequest, WorkerInfo, WorkerState

HERE, THERE = "mac-1", "mac-2"


def request(index: int) -> GenerationRequest:
    return GenerationRequest(request_id=f"batch_A-{index}", prompt="p")


def live(redis: Redis, host: str, *, model: str = "m", state: WorkerState = "idle") -> None:
    info = WorkerInfo(
        name=f"{host}-7", model=model, state=state, host=host, pid=7, chip="", drafter="", verification="", seen_at=0
    )
    announce(redis, info, 60)


def fail_on(redis: Redis, index: int, machine: str, *, age: float = 1.0) -> None:
    redis.hset(f"rq:job:batch_A-{index}", FAILED_FIELD, Failure(server_time(redis) - age, machine).written())


def taken_by(redis: Redis, machine: str) -> list[str]:
    """What a worker there takes, until it finds nothing."""
    queues = [
        SafeQueue(queue_name("m", priority), redis, avoids=Avoidance(redis, "m", machine).avoids)
        for priority in ("high", "normal")
    ]
    found = []
    while (taken := SafeQueue.dequeue_any(queues, None, redis)) is not None:
        found.append(taken[0].id.removeprefix("batch_A-"))
    return found


def waiting(redis: Redis, priority: str = "normal") -> list[str]:
    return [entry.decode().removeprefix("batch_A-") for entry in redis.lrange(f"rq:queue:m:{priority}", 0, -1)]


@pytest.fixture
def queue(redis: Redis) -> RequestQueue:
    found = RequestQueue(redis, max_attempts=2, request_timeout_seconds=60, settling_seconds=0)
    found.enqueue([request(index) for index in range(4)], model="m", priority="normal")
    return found


def test_what_failed_here_waits_at_the_head_for_others(redis: Redis, queue: RequestQueue) -> None:
    live(redis, HERE, state="busy")
    live(redis, THERE, state="busy")
    fail_on(redis, 0, HERE)
    fail_on(redis, 2, HERE)
    fail_on(redis, 3, THERE)
    assert taken_by(redis, HERE) == ["1", "3"]
    assert waiting(redis) == ["0", "2"]
    assert redis.lrange("rq:queue:m:normal:intermediate", 0, -1) == [b"batch_A-1", b"batch_A-3"]
    assert taken_by(redis, THERE) == ["0", "2"]


def test_what_failed_here_long_ago_is_taken_here(redis: Redis, queue: RequestQueue) -> None:
    live(redis, THERE)
    fail_on(redis, 0, HERE, age=AVOIDED_SECONDS + 1)
    fail_on(redis, 1, HERE, age=AVOIDED_SECONDS - 60)
    assert taken_by(redis, HERE) == ["0", "2", "3"]


@pytest.mark.parametrize("alone", ["nobody", "itself", "another model", "paused"])
def test_the_only_machine_of_a_model_takes_everything(redis: Redis, queue: RequestQueue, alone: str) -> None:
    if alone == "itself":
        live(redis, HERE)
    if alone == "another model":
        live(redis, THERE, model="other")
    if alone == "paused":
        live(redis, THERE, state="paused")
    fail_on(redis, 0, HERE)
    assert taken_by(redis, HERE) == ["0", "1", "2", "3"]


def test_lower_priorities_go_on_behind_what_is_passed_over(redis: Redis, queue: RequestQueue) -> None:
    live(redis, THERE)
    queue.enqueue([request(9)], model="m", priority="high")
    fail_on(redis, 9, HERE)
    assert taken_by(redis, HERE) == ["0", "1", "2", "3"]
    assert waiting(redis, "high") == ["9"]


def test_a_look_passes_over_so_many_and_no_more(redis: Redis) -> None:
    queue = RequestQueue(redis, max_attempts=2, request_timeout_seconds=60, settling_seconds=0)
    count = MOST_PASSED_OVER + 1
    queue.enqueue([request(index) for index in range(count)], model="m", priority="normal")
    live(redis, THERE)
    for index in range(MOST_PASSED_OVER):
        fail_on(redis, index, HERE)
    assert taken_by(redis, HERE) == []
    assert waiting(redis) == [str(index) for index in range(count)]
    assert redis.llen("rq:queue:m:normal:intermediate") == 0
    redis.hdel("rq:job:batch_A-5", FAILED_FIELD)
    assert taken_by(redis, HERE) == ["5", str(count - 1)]


FORGED = [b"", b"mac-1", b"1 ", b"-1 mac-1", b"1e9 mac-1", b"9" * 40 + b" m", b"1 " + b"m" * 999]


@pytest.mark.parametrize("field", FORGED)
def test_a_forged_note_is_none(field: bytes) -> None:
    assert read_failure(field) is None


def test_a_note_is_read_as_it_was_written() -> None:
    failure = Failure(1_796_000_000.0, "a Mac with a name")
    assert read_failure(failure.written().encode()) == failure
    assert read_failure(Failure(1.9, "m").written().encode()) == Failure(1.0, "m")  # never in the future


@pytest.mark.parametrize(("machine", "read"), [("", "nameless"), ("m" * 256, "m" * 255), ("m" * 255, "m" * 255)])
def test_a_note_of_any_machine_is_read_and_counts_there(
    redis: Redis, queue: RequestQueue, machine: str, read: str
) -> None:
    assert read_failure(Failure(5.0, machine).written().encode()) == Failure(5.0, read)
    live(redis, machine)
    live(redis, THERE)
    fail_on(redis, 0, machine)
    assert taken_by(redis, machine) == ["1", "2", "3"]
    assert taken_by(redis, THERE) == ["0"]
