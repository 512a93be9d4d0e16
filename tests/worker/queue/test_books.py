"""What a worker books of a request's life: taken, answered, handed back, lost, cancelled. In one process, on both kinds
of Redis."""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis
from rq.executions import Execution

from api.queue.attempts import attempts_key, begin, lost_key
from api.queue.leases import LeaseRegistry
from api.queue.requests import RequestQueue, cancel_key
from api.queue.results import ResultsReader, publish_result
from api.schemas import GenerationRequest, GenerationResult, RequestEvent, WorkerInfo
from api.settings import Settings
from tests.worker.queue.conftest import BATCH
from tests.worker.scripted_engine import ScriptedEngine
from worker.books import GenerationRqJob
from worker.duty import Duty
from worker.job import GenerationJob
from worker.outbox import Outbox
from worker.pulse import Pulse
from worker.rq_worker import GenerationWorker
from worker.shutdown import Shutdown

ONE, TWO = f"{BATCH}-0", f"{BATCH}-1"
LIST, LEASES = "rq:queue:m:normal", "rq:wip:m:normal"
NO_DELETION = "CREATE TRIGGER t BEFORE DELETE ON outbox BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
NO_TEXT = "INSERT INTO outbox (event) VALUES (CAST(x'ff' AS TEXT))"
Event = tuple[str, str, int]


class Bench:
    """A queue of two requests, and a worker that stops after one."""

    def __init__(self, redis: Redis, folder: Path) -> None:
        self.redis, self._folder = redis, folder
        self.queue = RequestQueue(redis, max_attempts=2, request_timeout_seconds=60, settling_seconds=0)
        requests = [GenerationRequest(request_id=one, prompt="p", max_tokens=3) for one in (ONE, TWO)]
        self.queue.enqueue(requests, model="m", priority="normal")
        self._reader = ResultsReader(redis, "c")
        self.shutdown = Shutdown(grace_seconds=60)

    def work(self, meanwhile: Callable[[], object]) -> None:
        """Run the first request; meanwhile: called when its generation starts."""

        def on_start(_: GenerationRequest) -> None:
            self.shutdown.request()
            meanwhile()

        info = WorkerInfo(
            name="w", model="m", state="idle", host="h", pid=1, chip="", drafter="", verification="", seen_at=0
        )
        outbox = Outbox(self._folder / "outbox-w.sqlite3")
        duty = Duty("w", "h", 3, self.shutdown)
        duty.look(self.redis)
        worker = GenerationWorker(
            "m",
            name="w",
            connection=self.redis,
            settings=Settings(data_dir=self._folder, model="m", lease_seconds=45, heartbeat_seconds=5),
            job=GenerationJob(ScriptedEngine(on_start=on_start), self.redis, outbox, "w", lambda: False),
            pulse=Pulse(self.redis, info, duty, 5),
            shutdown=self.shutdown,
            patience_seconds=0,
        )
        worker.subscribe = lambda: None  # type: ignore[method-assign] # leaving it takes RQ up to a second
        worker.work(logging_level="WARNING")
        outbox.close()

    def damage_outbox(self, statement: str) -> None:
        database = sqlite3.connect(self._folder / "outbox-w.sqlite3")
        with database:
            database.execute(statement)
        database.close()

    def events(self) -> list[Event]:
        return [(e.kind, e.request_id, e.attempt) for _, e in self._reader.read(block_ms=1) if e is not None]

    def waiting(self) -> list[str]:
        return [entry.decode() for entry in self.redis.lrange(LIST, 0, -1)]

    def left_behind(self) -> list[bytes]:
        """Leases, executions, and requests on their way."""
        return [
            *self.redis.zrange(LEASES, 0, -1),
            *self.redis.lrange(f"{LIST}:intermediate", 0, -1),
            *self.redis.keys("rq:execution:*"),
        ]


@pytest.fixture
def bench(redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("CIDERMILL_CONFIG", str(tmp_path / "none.toml"))
    return Bench(redis, tmp_path)


def test_a_running_request_is_under_a_lease_of_its_worker(bench: Bench) -> None:
    seen: list[object] = []

    def look() -> None:
        [(member, ends)] = bench.redis.zrange(LEASES, 0, -1, withscores=True)
        job = bench.redis.hmget(f"rq:job:{ONE}", "status", "worker_name")
        seen.extend([member.decode().partition(":")[0], 43 < ends - bench.redis.time()[0] <= 46, job])
        seen.append(bench.redis.llen(f"{LIST}:intermediate"))

    bench.work(look)
    assert seen == [ONE, True, [b"started", b"w"], 0]


def test_an_answer_ends_lease_count_and_entry(bench: Bench) -> None:
    bench.work(lambda: None)
    assert bench.events() == [("started", ONE, 1), ("finished", ONE, 1)]
    assert bench.waiting() == [TWO]
    assert bench.left_behind() == []
    assert bench.redis.exists(attempts_key(ONE)) == 0
    assert bench.queue.live([ONE, TWO]) == {TWO}


def test_what_is_handed_back_is_next_again_and_no_attempt_is_used_up(bench: Bench) -> None:
    bench.work(bench.shutdown.request)  # the second time: at once
    assert bench.events() == [("started", ONE, 1), ("handed_back", ONE, 1)]
    assert bench.waiting() == [ONE, TWO]
    assert bench.left_behind() == []
    assert bench.redis.get(attempts_key(ONE)) == b"0"
    assert bench.redis.hmget(f"rq:job:{ONE}", "status", "retries_left") == [b"queued", b"1"]


def test_what_cannot_be_handed_back_at_once_is_once_the_forged_queue_is_gone(bench: Bench) -> None:
    def forge() -> None:
        bench.redis.set(LIST, "forged")
        bench.shutdown.request()

    bench.work(forge)
    assert bench.waiting() == [ONE]
    assert bench.left_behind() == []
    assert bench.redis.hget(f"rq:job:{ONE}", "status") == b"queued"


def test_an_answer_after_the_lease_was_taken_away_is_offered_and_ends_the_other_run(bench: Bench) -> None:
    def take_away() -> None:
        for member in bench.redis.zrange(LEASES, 0, -1):
            bench.redis.zadd(LEASES, {member: 1})
        bench.queue.maintain("m")
        assert bench.waiting() == [ONE, TWO]

    bench.work(take_away)
    assert bench.events() == [("started", ONE, 1), ("requeued", ONE, 1), ("finished", ONE, 1)]
    assert bench.left_behind() == []
    assert bench.redis.hget(f"rq:job:{ONE}", "status") == b"finished"
    assert bench.queue.live([ONE, TWO]) == {TWO}


def test_what_was_lost_is_not_handed_back(bench: Bench) -> None:
    def forget() -> None:
        bench.queue.forget([ONE])
        bench.shutdown.request()

    bench.work(forget)
    assert bench.events() == [("started", ONE, 1)]
    assert bench.waiting() == [TWO]
    assert bench.left_behind() == []
    assert bench.redis.exists(f"rq:job:{ONE}") == 0


def test_what_ran_elsewhere_while_the_machine_slept_is_not_generated(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_start = LeaseRegistry.tell_start

    def tell_and_sleep(
        registry: LeaseRegistry, execution: Execution, job: GenerationRqJob, event: RequestEvent
    ) -> bool:
        told = tell_start(registry, execution, job, event)
        assert job.run is not None
        job.run._renewed_at = time.monotonic() - 60, time.time() - 60
        for member in bench.redis.zrange(LEASES, 0, -1):
            bench.redis.zadd(LEASES, {member: 1})
        bench.queue.maintain("m")
        bench.shutdown.request()
        return told

    monkeypatch.setattr(LeaseRegistry, "tell_start", tell_and_sleep)
    generated: list[bool] = []
    bench.work(lambda: generated.append(True))
    assert not generated
    assert bench.events() == [("started", ONE, 1), ("requeued", ONE, 1)]
    assert bench.waiting() == [ONE, TWO]
    assert bench.left_behind() == []


@pytest.mark.parametrize("when", ["before it tells its start", "after that, while the machine slept"])
def test_what_another_worker_answers_between_lease_and_start_is_not_generated(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    tell_start = LeaseRegistry.tell_start
    result = GenerationResult(request_id=ONE, text="t", finish_reason="stop")
    answer = RequestEvent(kind="finished", request_id=ONE, worker="late", attempt=1, at=1.0, result=result)

    def tell(registry: LeaseRegistry, execution: Execution, job: GenerationRqJob, event: RequestEvent) -> bool:
        told = when.startswith("after") and tell_start(registry, execution, job, event)
        publish_result(bench.redis, answer)
        bench.shutdown.request()
        assert job.run is not None
        job.run._renewed_at = time.monotonic() - 30, time.time() - 30  # the lease of 45 s holds
        return told or tell_start(registry, execution, job, event)

    monkeypatch.setattr(LeaseRegistry, "tell_start", tell)
    generated: list[bool] = []
    bench.work(lambda: generated.append(True))
    assert not generated
    assert [event for event in bench.events() if event[0] != "started"] == [("finished", ONE, 1)]
    assert bench.waiting() == [TWO]
    assert bench.left_behind() == []
    assert bench.queue.live([ONE, TWO]) == {TWO}


def test_a_run_that_was_lost_books_no_end_where_a_lease_is_there_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a server that came back without its last second, in which the lease was taken away."""

    def lost(registry: LeaseRegistry, execution: Execution, job: GenerationRqJob, event: RequestEvent) -> bool:
        bench.shutdown.request()
        return False

    monkeypatch.setattr(LeaseRegistry, "tell_start", lost)
    bench.work(lambda: None)
    assert bench.redis.hget(f"rq:job:{ONE}", "status") == b"started"
    assert bench.redis.zcard(LEASES) == 1


def test_a_run_whose_request_another_worker_answers_loses_its_lease(bench: Bench) -> None:
    result = GenerationResult(request_id=ONE, text="t", finish_reason="stop")
    answer = RequestEvent(kind="finished", request_id=ONE, worker="late", attempt=1, at=1.0, result=result)
    leases: list[int] = []

    def answered_elsewhere() -> None:
        leases.append(bench.redis.zcard(LEASES))
        publish_result(bench.redis, answer)
        leases.append(bench.redis.zcard(LEASES))

    bench.work(answered_elsewhere)
    assert leases == [1, 0]
    assert bench.events()[:2] == [("started", ONE, 1), ("finished", ONE, 1)]
    assert bench.left_behind() == []
    assert bench.redis.exists(attempts_key(ONE), lost_key(ONE)) == 0
    assert bench.queue.live([ONE, TWO]) == {TWO}


def test_a_request_of_a_cancelled_batch_does_not_start(bench: Bench) -> None:
    bench.redis.set(cancel_key(BATCH), 1)
    for request_id in (ONE, TWO):
        bench.redis.hset(f"rq:job:{request_id}", "status", "queued")
    bench.shutdown.wait = lambda seconds: bench.shutdown.request() or True  # type: ignore[method-assign]
    bench.work(lambda: pytest.fail("it started"))
    assert bench.events() == []
    assert bench.waiting() == []
    assert bench.left_behind() == []


@pytest.mark.parametrize("damage", [NO_DELETION, NO_TEXT, "DROP TABLE outbox"])
def test_a_damaged_outbox_makes_no_request_run_twice_or_fail(bench: Bench, damage: str) -> None:
    bench.work(lambda: bench.damage_outbox(damage))
    assert bench.events() == [("started", ONE, 1), ("finished", ONE, 1)]
    assert bench.waiting() == [TWO]
    assert bench.left_behind() == []
    assert bench.queue.set_aside("m") == []
    assert bench.redis.hget(f"rq:job:{ONE}", "status") == b"finished"


def test_a_request_is_answered_whatever_its_books_run_into_after_that(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle_job_success = GenerationWorker.handle_job_success

    def fail_once(self: GenerationWorker, *arguments: object) -> None:
        monkeypatch.setattr(GenerationWorker, "handle_job_success", handle_job_success)
        raise RuntimeError("whatever")

    monkeypatch.setattr(GenerationWorker, "handle_job_success", fail_once)
    bench.work(lambda: None)
    assert bench.events() == [("started", ONE, 1), ("finished", ONE, 1)]
    assert bench.waiting() == [TWO]
    assert bench.left_behind() == []
    assert bench.queue.set_aside("m") == []


@pytest.mark.parametrize("forged", [b"abc", b"9" * 30, b"-7", b"1.5", b"", None])
def test_a_forged_count_of_attempts_is_replaced(bench: Bench, forged: bytes | None) -> None:
    if forged is None:
        bench.redis.rpush(attempts_key(ONE), "x")
    else:
        bench.redis.set(attempts_key(ONE), forged)
    bench.work(lambda: None)
    assert bench.events() == [("started", ONE, 1), ("finished", ONE, 1)]
    assert bench.redis.exists(lost_key(ONE)) == 0


def test_a_start_that_is_told_again_is_counted_once(redis: Redis) -> None:
    """As by a client whose answer was lost."""
    redis.hset("rq:execution:a-0:e", "job_id", "a-0")
    redis.hset("rq:execution:a-0:f", "job_id", "a-0")
    counted: list[object] = []
    with redis.pipeline() as pipeline:
        for execution in ("e", "e", "f", "f", "e"):
            begin(pipeline, "a-0", f"rq:execution:a-0:{execution}")
        counted = pipeline.execute()
    assert counted == [1, 1, 2, 2, 1]
