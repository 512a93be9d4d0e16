"""Whoever can write to Redis can forge a queue entry. None runs anything, and the good request behind it still runs."""

import http.server
import json
import pickle
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis
from rq.job import Job
from rq.serializers import JSONSerializer

from api.queue.hardening import JOB_NAME, MAX_ENTRY_BYTES
from api.queue.impostors import remove_impostors
from api.queue.presence import announce, live_workers
from api.queue.results import ResultsReader
from api.schemas import GenerationRequest, WorkerInfo
from tests.worker.queue.conftest import Station, wait_until
from tests.worker.scripted_engine import ScriptedEngine
from worker.duty import Duty
from worker.job import GenerationJob
from worker.outbox import Outbox
from worker.pulse import Pulse
from worker.rq_worker import GenerationWorker
from worker.shutdown import Shutdown

BAD, GOOD = "batch_01TEST-0", "batch_01TEST-1"
KEY = f"rq:job:{BAD}"
LIST = "rq:queue:scripted:normal"

FIRED: list[str] = []


def trap(*arguments: object, **named: object) -> None:
    """What the forged entries try to call."""
    FIRED.append("called")


def note_unpickling() -> None:
    FIRED.append("unpickled")


class Bomb:
    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return note_unpickling, ()


TRAP = f"{__name__}.trap"


def _data(*parts: object) -> bytes:
    return zlib.compress(json.dumps(parts).encode())


def _set(**fields: object) -> Callable[[Redis], None]:
    return lambda redis: redis.hset(KEY, mapping=fields)


def _not_a_hash(redis: Redis) -> None:
    redis.delete(KEY)
    redis.set(KEY, "x")


def _bomb(redis: Redis) -> None:
    packer = zlib.compressobj(9)
    zeros = bytes(2**20)
    packed = b"".join(packer.compress(zeros) for _ in range(MAX_ENTRY_BYTES // 2**20 + 2)) + packer.flush()
    assert len(packed) < 2**20
    redis.hset(KEY, "data", packed)


FORGERIES: dict[str, Callable[[Redis], object]] = {
    "function": _set(data=_data(TRAP, None, [], {})),
    "system": _set(data=_data("os.system", None, ["exit 1"], {})),
    "instance": _set(data=_data("append", [], [1], {})),
    "instance of the right name": _set(data=_data(JOB_NAME, {"a": 1}, [{}], {})),
    "keyword arguments": _set(data=_data(JOB_NAME, None, [], {"run": None})),
    "success callback": _set(success_callback_name=TRAP, data=_data(TRAP, None, [], {})),
    "failure callback": _set(failure_callback_name=TRAP, data=_data(TRAP, None, [], {})),
    "stopped callback": _set(stopped_callback_name=TRAP),
    "pickled meta": _set(meta=pickle.dumps(Bomb())),
    "pickled data": _set(data=zlib.compress(pickle.dumps((TRAP, None, Bomb(), {})))),
    "pickled result": _set(result=pickle.dumps(Bomb())),
    "created_at": _set(created_at="yesterday"),
    "status": _set(status="flying"),
    "no status": lambda redis: redis.hdel(KEY, "status"),
    "timeout": _set(timeout="soon"),
    "negative timeout": _set(timeout="-1"),
    "no timeout": lambda redis: redis.hdel(KEY, "timeout"),
    "no data": lambda redis: redis.hdel(KEY, "data"),
    "data that is no JSON": _set(data=b"\xff\xfe"),
    "deep JSON": _set(data=zlib.compress(b"[" * 200_000)),
    "retries": _set(retries_left="many"),
    **{
        f"timeout of {len(value)} {value[:4]}": _set(timeout=value)
        for value in ("9" * 400, "9" * 19, "-5", "nan", "1e999", "1000000001")
    },
    "timeout that is no text": _set(timeout=b"\xff"),
    "retries of 400 digits": _set(retries_left="9" * 400, number_of_retries="9" * 19),
    "lifetimes of 400 digits": _set(result_ttl="9" * 400, failure_ttl="9" * 400),
    "numbers of the payload": _set(
        data=zlib.compress(
            json.dumps([JOB_NAME, None, [{"request_id": BAD, "prompt": "p", "expires_at": 1, "seed": 2}], {}])
            .replace('"expires_at": 1', '"expires_at": 1e999')
            .replace('"seed": 2', f'"seed": {"9" * 400}')
            .encode()
        )
    ),
    "other queue": _set(origin="scripted:high"),
    "rate limit": _set(rate_limit_key="x", rate_limit_concurrency="0"),
    "repeat": _set(repeats_left="9", repeat_intervals="[0]"),
    "group": _set(group_id="no-such-group"),
    "dependency": _set(dependency_ids="nonsense"),
    "not a hash": _not_a_hash,
    "bomb": _bomb,
    "id that is no text": lambda redis: redis.lpush(LIST, b"\xff\xfe/../x"),
    "id of nothing": lambda redis: redis.lpush(LIST, "batch_nothing-1"),
    "same id twice": lambda redis: redis.lpush(LIST, BAD),
    "forged lease": lambda redis: redis.zadd("rq:wip:scripted:normal", {b"\xff": 1, "nocolon": 2}),
    "forged lease that lasts": lambda redis: redis.zadd("rq:wip:scripted:normal", {b"\xff": 1e12, "nocolon": 1e12}),
    "lease on an unreadable job": lambda redis: (
        redis.hset(KEY, mapping={"status": "started", "created_at": "x"}),
        redis.zadd("rq:wip:scripted:normal", {f"{BAD}:e": 1}),
    ),
    "intermediate": lambda redis: redis.lpush(f"{LIST}:intermediate", b"\xff", "batch_nothing-1"),
    "meta that is huge": _set(meta=b"x" * 2**20),
    "garbage results": lambda redis: (
        redis.xadd("cidermill:results", {"event": "no JSON"}),
        redis.xadd("cidermill:results", {"other": b"\xff\xfe"}),
        redis.xadd("cidermill:results", {"event": pickle.dumps(Bomb())}),
        redis.xadd("cidermill:results", {"event": "[" * 100_000}),
        redis.xadd("cidermill:results", {"event": b"x" * 2**22}),
    ),
    "pickled result stream": lambda redis: redis.xadd(f"rq:results:{BAD}", {"return_value": pickle.dumps(Bomb())}),
    "pickled worker": lambda redis: (
        redis.sadd("rq:workers", "rq:worker:forged"),
        redis.sadd("rq:workers:scripted:normal", "rq:worker:forged"),
        redis.hset("rq:worker:forged", mapping={"birth": pickle.dumps(Bomb()), "state": b"\xff"}),
    ),
    "suspension": lambda redis: redis.set("rq:suspended", 1),
    **{
        f"counter of {len(value)} {value[:4]}": lambda redis, value=value: redis.set(f"cidermill:attempts:{BAD}", value)
        for value in ("many", "9" * 400, "9223372036854775807", "-5", "nan")
    },
    "counter that is no text": lambda redis: redis.set(f"cidermill:attempts:{BAD}", b"\xff"),
    "failed at a time of 400 digits": _set(failed_on="9" * 400 + " h"),
    "round": lambda redis: redis.hset("cidermill:round:scripted:normal", mapping={"left": "nan", "ends": "9" * 400}),
}

WRONG_TYPES = {
    "cidermill:quarantine": "list",
    "cidermill:results": "list",
    "cidermill:workers": "hash",
    "cidermill:seen": "list",
    "cidermill:seen:w": "list",
    "cidermill:order:w": "list",
    "cidermill:deaths:h": "hash",
    f"cidermill:attempts:{BAD}": "list",
    f"cidermill:lost:{BAD}": "hash",
    f"rq:executions:{BAD}": "list",
    f"rq:results:{BAD}": "list",
    "rq:queue:scripted:high": "hash",
    "rq:queue:scripted:high:intermediate": "set",
    f"{LIST}:intermediate": "hash",
    "rq:wip:scripted:normal": "list",
    "rq:failed:scripted:normal": "hash",
    "rq:finished:scripted:normal": "hash",
    "rq:clean_registries:scripted:normal": "hash",
    "rq:workers": "hash",
    "rq:workers:scripted:normal": "list",
    "rq:queues": "list",
}
MAKERS: dict[str, Callable[[Redis, str], object]] = {
    "list": lambda redis, key: redis.rpush(key, "x"),
    "hash": lambda redis, key: redis.hset(key, "x", "y"),
    "set": lambda redis, key: redis.sadd(key, "x"),
}


def _work_until_good_is_done(station: Station, folder: Path, meanwhile: Callable[[], object] = lambda: None) -> None:
    """One worker in this process; it stops when the good request has started and ended. meanwhile: called when the
    other one has started."""
    shutdown = Shutdown(grace_seconds=60)

    def on_start(request: GenerationRequest) -> None:
        if request.request_id == GOOD:
            shutdown.request()
        else:
            meanwhile()

    engine = ScriptedEngine(on_start=on_start)
    info = WorkerInfo(
        name="w", model="m", state="idle", host="h", pid=1, chip="", drafter="", verification="", seen_at=0
    )
    outbox = Outbox(folder / "outbox-w.sqlite3")
    # A good request that never starts fails the test, and does not hang it.
    timer = threading.Timer(15, shutdown.request)
    timer.start()
    duty = Duty("w", "h", 3, shutdown)
    duty.look(station.redis)
    worker = GenerationWorker(
        station.model,
        name="w",
        connection=station.redis,
        settings=station.settings(lease_seconds=2, heartbeat_seconds=0.1),
        job=GenerationJob(engine, station.redis, outbox, "w", lambda: False),
        pulse=Pulse(station.redis, info, duty, 0.1),
        shutdown=shutdown,
        patience_seconds=0,
    )
    for queue in worker.queues:
        queue._settling_seconds = 0  # type: ignore[attr-defined]
    worker.subscribe = lambda: None  # type: ignore[method-assign] # leaving it takes RQ up to a second
    worker.work(logging_level="WARNING")
    timer.cancel()
    outbox.close()


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES.keys())
def test_forged_entry_runs_nothing_and_stops_nobody(
    station: Station, tmp_path: Path, forge: Callable[[Redis], object]
) -> None:
    FIRED.clear()
    station.enqueue("a prompt", "the good one")
    forge(station.redis)
    _work_until_good_is_done(station, tmp_path)
    assert FIRED == []
    good = [event for event in station.finished() if event.request_id == GOOD]
    assert len(good) == 1
    assert good[0].result is not None
    assert good[0].result.error is None
    assert len([event for event in station.finished() if event.request_id == BAD]) <= 1
    assert station.redis.llen(f"{LIST}:intermediate") == 0


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("key", WRONG_TYPES)
def test_key_of_a_wrong_type_stops_nobody(station: Station, tmp_path: Path, key: str, when: str) -> None:
    FIRED.clear()
    station.enqueue("a prompt", "the good one")

    def plant() -> None:
        station.redis.delete(key)
        MAKERS[WRONG_TYPES[key]](station.redis, key)

    if when == "before":
        plant()
    _work_until_good_is_done(station, tmp_path, plant if when == "meanwhile" else lambda: None)
    remove_impostors(station.redis, [])
    station.queue.remove_impostors([station.model])
    station.queue.maintain(station.model)
    station.queue.set_aside(station.model)
    assert isinstance(live_workers(station.redis), list)
    station.reader = ResultsReader(station.redis, "test")
    good = [event for event in station.finished() if event.request_id == GOOD]
    assert len(good) == 1
    assert FIRED == []


def test_commands_over_the_channel_of_rq_stop_no_worker(station: Station) -> None:
    first, second = station.enqueue("a prompt", "another", tokens=20)
    worker = station.start_worker(seconds_per_token=0.05, name="w")
    wait_until(station.starts, "the start")
    forged: list[bytes] = [
        json.dumps({"command": name}).encode() for name in ("shutdown", "kill-horse", "stop-job", "x")
    ]
    forged += [b"\xff", b"[]", b"null", pickle.dumps(Bomb()), b"[" * 100_000]
    forged += [json.dumps({"command": "stop-job", "execution_id": "x", "job_id": second}).encode()]
    for message in forged:
        assert station.redis.publish("rq:pubsub:w", message) == 1
    events = station.wait_for_results(2)
    assert {event.request_id for event in events} == {first, second}
    assert all(event.result is not None and event.result.text for event in events)
    assert worker.poll() is None
    assert "only stop-job is obeyed" in station.logs()
    assert "cannot be read" in station.logs()


def test_forged_descriptions_of_workers_are_left_out_and_reported(
    station: Station, caplog: pytest.LogCaptureFixture
) -> None:
    info = WorkerInfo(
        name="good", model="m", state="idle", host="h", pid=1, chip="", drafter="", verification="", seen_at=0
    )
    announce(station.redis, info, 60)
    forged: dict[str, object] = {
        "garbage": "no JSON",
        "pickle": pickle.dumps(Bomb()),
        "deep": "[" * 50_000,
        "huge": info.model_copy(update={"name": "huge", "tail": "x" * 2**20}).model_dump_json(),
        "namesake": info.model_dump_json(),
    }
    for name, value in forged.items():
        station.redis.sadd("cidermill:workers", name)
        station.redis.set(f"cidermill:worker:{name}", value)  # type: ignore[arg-type]
    station.redis.sadd("cidermill:workers", "list", b"\xff\xfe")
    station.redis.rpush("cidermill:worker:list", "x")
    FIRED.clear()
    assert live_workers(station.redis) == [info]
    assert FIRED == []
    assert f"{len(forged) + 1} entries of live workers are damaged or forged" in caplog.text


def test_the_traps_do_fire_with_stock_rq(station: Station) -> None:
    FIRED.clear()
    station.enqueue("a prompt")
    fields = {"data": _data(TRAP, None, [], {}), "success_callback_name": TRAP}
    station.redis.hset(KEY, mapping=fields)
    stock = Job.fetch(BAD, connection=station.redis, serializer=JSONSerializer)
    stock.perform()
    assert stock.success_callback is trap
    assert FIRED == ["called"]
    station.redis.hset(KEY, "meta", pickle.dumps(Bomb()))
    Job.fetch(BAD, connection=station.redis)
    assert FIRED == ["called", "unpickled"]


@pytest.fixture
def listener() -> Iterator[tuple[int, list[str]]]:
    calls: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            calls.append(self.path)
            self.send_response(200)
            self.end_headers()

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port, calls
    server.shutdown()
    thread.join()
    server.server_close()


def test_webhooks_of_an_entry_are_not_called(station: Station, tmp_path: Path, listener: tuple[int, list[str]]) -> None:
    port, calls = listener
    station.enqueue("a prompt", "the good one")
    hooks = [{"url": f"http://127.0.0.1:{port}/{status}", "status": status} for status in ("finished", "failed")]
    for entry in (BAD, GOOD):
        station.redis.hset(f"rq:job:{entry}", "webhooks", json.dumps(hooks))
    _work_until_good_is_done(station, tmp_path)
    assert {event.request_id for event in station.finished()} == {BAD, GOOD}
    assert calls == []


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"request_id": BAD, "prompt": "secret words", "colour": "red"}, "colour: "),
        ({"request_id": BAD, "prompt": "secret words", "max_tokens": "secret"}, "max_tokens: "),
        ({"request_id": GOOD, "prompt": "secret words"}, "request_id"),
        ("secret words", "GenerationRequest"),
    ],
)
def test_payload_that_is_no_request_becomes_an_error_result(
    station: Station, tmp_path: Path, payload: object, said: str
) -> None:
    station.enqueue("a prompt", "the good one")
    station.redis.hset(KEY, "data", _data(JOB_NAME, None, [payload], {}))
    _work_until_good_is_done(station, tmp_path)
    [event] = [event for event in station.finished() if event.request_id == BAD]
    assert event.result is not None
    assert event.result.error is not None
    assert event.result.error.code == "invalid_request"
    assert said in event.result.error.message
    assert "secret" not in event.result.error.message


def test_engine_error_is_a_result_and_its_message_is_not_logged(
    station: Station, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    station.enqueue("raise secret", "the good one")
    _work_until_good_is_done(station, tmp_path)
    [event] = [event for event in station.finished() if event.request_id == BAD]
    assert event.result is not None
    assert event.result.error is not None
    assert (event.result.error.code, event.result.error.status) == ("internal_error", 500)
    assert "secret" in event.result.error.message
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text
