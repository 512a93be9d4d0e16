"""Worker processes that are ordered about, and machines that take themselves out."""

import signal

import pytest
from redis import Redis

from api.queue import deaths, orders
from api.queue.deaths import Death
from api.queue.orders import Order
from api.queue.presence import live_workers
from api.schemas import WorkerInfo
from tests.worker.queue.conftest import Station, wait_until
from worker.duty import Duty
from worker.shutdown import Shutdown

pytestmark = pytest.mark.faults


def live(station: Station) -> dict[str, WorkerInfo]:
    return {info.name: info for info in live_workers(station.redis)}


def wait_for_state(station: Station, name: str, state: str) -> None:
    wait_until(lambda: (info := live(station).get(name)) and info.state == state, f"{name} to be {state}")


def test_paused_worker_finishes_its_request_takes_none_and_goes_on_when_resumed(station: Station) -> None:
    first, second = station.enqueue("a prompt", "another", tokens=20)
    worker = station.start_worker(seconds_per_token=0.05, name="w")
    wait_until(station.starts, "the start")
    orders.give(station.redis, ["w"], Order.PAUSE)
    wait_for_state(station, "w", "pausing")
    assert live(station)["w"].request_id == first
    assert not live(station)["w"].serves
    [event] = station.wait_for_results(1)
    assert (event.request_id, event.attempt) == (first, 1)
    wait_for_state(station, "w", "paused")
    shown = live(station)["w"]
    assert (shown.request_id, shown.completed, shown.chip) == (None, 1, "paper")
    assert shown.decode_tps is not None
    assert 0 < shown.decode_tps < 20
    assert station.queue.depth(station.model)["normal"] == 1
    orders.give(station.redis, ["w"], Order.WORK)
    assert [event.request_id for event in station.wait_for_results(2)] == [first, second]
    assert {pid for _, pid in station.starts()} == {worker.pid}


def test_drained_worker_finishes_its_request_beyond_the_grace_and_ends_well(station: Station) -> None:
    first, _ = station.enqueue("a prompt", "another", tokens=20)
    worker = station.start_worker(seconds_per_token=0.05, name="w", grace_seconds=0)
    wait_until(station.starts, "the start")
    orders.give(station.redis, ["w"], Order.DRAIN)
    wait_for_state(station, "w", "draining")
    orders.give(station.redis, ["w"], Order.WORK)  # a drain is not taken back
    assert worker.wait(10) == 0
    [event] = station.wait_for_results(1)
    assert (event.request_id, event.result.finish_reason if event.result else None) == (first, "length")
    assert station.queue.depth(station.model)["normal"] == 1
    assert station.redis.keys("cidermill:order:*") == []
    assert live(station) == {}
    # Another process of that name is not meant by what its forerunner was ordered.
    station.start_worker(name="w")
    assert len(station.wait_for_results(2)) == 2


def test_signals_count_anew_for_a_worker_that_drains(station: Station) -> None:
    first, _ = station.enqueue("a prompt", "another", tokens=2000)
    worker = station.start_worker(seconds_per_token=0.05, name="w", grace_seconds=3600)
    wait_until(station.starts, "the start")
    orders.give(station.redis, ["w"], Order.DRAIN)
    wait_for_state(station, "w", "draining")
    worker.send_signal(signal.SIGTERM)
    wait_for_state(station, "w", "stopping")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(10) == 0
    assert [event.kind for event in station.pull()] == ["started", "handed_back"]
    assert station.redis.lrange(f"rq:queue:{station.model}:normal", 0, 0) == [first.encode()]


def test_a_pause_outlives_the_server_and_what_it_held(station: Station) -> None:
    station.start_worker(name="w")
    wait_for_state(station, "w", "idle")
    orders.give(station.redis, ["w"], Order.PAUSE)
    wait_for_state(station, "w", "paused")
    station.kill_server()
    station.restart_server()
    station._connect()
    station.enqueue("a prompt")
    wait_for_state(station, "w", "paused")
    station.redis.flushall()
    station.enqueue("a prompt")
    wait_for_state(station, "w", "paused")
    station.redis.rpush(orders.order_key("w"), "nonsense of a wrong type")
    wait_until(lambda: "cannot be read" in station.logs(), "the report")
    station.redis.set(orders.order_key("w"), b"\xff" * 2**20)
    wait_until(lambda: "holds no order" in station.logs(), "the report")
    wait_for_state(station, "w", "paused")
    assert station.starts() == []
    orders.give(station.redis, ["w"], Order.WORK)
    station.wait_for_results(1)


def noted(redis: Redis, host: str, *requests: str) -> None:
    """One death after the other, of workers of one name."""
    with redis.pipeline() as pipeline:
        for request in requests:
            deaths.note(pipeline, host, Death(request, "v", 0, 0))
        pipeline.execute()


def test_a_machine_with_three_deaths_in_a_row_is_out_until_it_is_resumed(station: Station) -> None:
    """A worker that starts there sees it too, and other machines go on."""
    noted(station.redis, "sick", "batch_01DEAD-0", "batch_01DEAD-1")
    [request_id] = station.enqueue("a prompt", tokens=40)
    victim = station.start_worker(seconds_per_token=0.05, name="victim", host="sick")
    wait_until(station.starts, "the start")
    victim.kill()
    for name in ("second", "third"):
        station.start_worker(name=name, host="sick")
        wait_for_state(station, name, "out")
    assert [death[:2] for death in deaths.rows(station.redis, ["sick"])["sick"].deaths[2:]] == [(request_id, "victim")]
    line = (
        "machine sick takes no more requests: 3 workers in a row died on it "
        f"(v on batch_01DEAD-0, v on batch_01DEAD-1, victim on {request_id}); "
        "when it is well again: cidermill worker resume third"
    )
    assert line in station.logs()
    station.start_worker(name="elsewhere", host="well")
    [event] = station.wait_for_results(1)
    assert (event.request_id, event.worker, event.attempt) == (request_id, "elsewhere", 2)

    orders.give(station.redis, ["elsewhere"], Order.PAUSE)
    wait_for_state(station, "elsewhere", "paused")
    deaths.end_rows(station.redis, ["sick"])
    station.enqueue("one more", first=1)
    assert station.wait_for_results(2)[1].worker in ("second", "third")


def test_an_answer_ends_the_row_of_its_machine(station: Station) -> None:
    noted(station.redis, "h", "batch_01DEAD-0", "batch_01DEAD-1")
    noted(station.redis, "other", "batch_01DEAD-2")
    station.start_worker(name="w", host="h")
    wait_for_state(station, "w", "idle")
    station.enqueue("a prompt")
    station.wait_for_results(1)
    wait_until(lambda: station.redis.keys("cidermill:deaths:*") == [b"cidermill:deaths:other"], "the end of the row")


def test_what_is_no_answer_leaves_the_row_and_a_machine_that_is_out_stays_so(station: Station) -> None:
    duty = Duty("w", "h", 3, Shutdown(0))
    assert not duty.takes_requests  # it has not looked yet
    noted(station.redis, "h", "a", "a", "a", "a")
    duty.look(station.redis)
    assert duty.takes_requests  # one request alone
    noted(station.redis, "h", "b")
    duty.look(station.redis)
    assert (duty.takes_requests, duty.state(loaded=True, busy=False)) == (False, "out")
    assert duty.state(loaded=True, busy=True) == "busy"
    duty.answered(station.redis)
    duty.look(station.redis)
    assert not duty.takes_requests
    station.redis.expire("cidermill:deaths:h", 60)
    duty.look(station.redis)
    assert station.redis.ttl("cidermill:deaths:h") > 60  # not forgotten while somebody reads it
    station.redis.delete("cidermill:deaths:h")
    station.redis.set("cidermill:deaths:h", "forged")
    duty.look(station.redis)
    assert duty.takes_requests
    assert not station.redis.exists("cidermill:deaths:h")


def test_a_limit_of_0_is_none(station: Station) -> None:
    duty = Duty("w", "h", 0, Shutdown(0))
    noted(station.redis, "h", *"abcdef")
    duty.look(station.redis)
    assert duty.takes_requests


def test_a_worker_that_lives_takes_back_its_own_deaths_and_no_others(
    station: Station, caplog: pytest.LogCaptureFixture
) -> None:
    duty = Duty("w", "h", 3, Shutdown(0))
    for death in (Death("a", "w", 0, 0), Death("b", "v", 0, 0), Death("c", "v", 0, 0), Death("a", "w", 0, 0)):
        deaths.note(station.redis, "h", death)
    duty.look(station.redis)
    assert duty.takes_requests
    assert station.redis.lrange("cidermill:deaths:h", 0, -1) == [b"b v 0 0", b"c v 0 0"]
    assert "taken for dead on a, a, and lives" in caplog.text
    duty.answered(station.redis)  # the row is as it was left
    assert station.redis.exists("cidermill:deaths:h") == 0


def test_a_machine_that_slept_lets_itself_in_again(station: Station) -> None:
    names = ["w-0", "w-1", "w-2"]
    ids = station.enqueue("a", "b", "c", tokens=1000)
    workers = [station.start_worker(seconds_per_token=0.2, host="slept", name=name) for name in names]
    wait_until(lambda: len(station.starts()) == 3, "the starts")
    for worker in workers:
        worker.send_signal(signal.SIGSTOP)

    def handed_on() -> bool:
        station.queue.maintain(station.model)
        return {event.request_id for event in station.pull() if event.kind == "requeued"} == set(ids)

    wait_until(handed_on, "all to be handed on")
    row = deaths.rows(station.redis, ["slept"])["slept"]
    assert sorted(death.worker for death in row.deaths) == names
    assert row.in_a_row == 1
    station.queue.forget(ids)
    for worker in workers:
        worker.send_signal(signal.SIGCONT)
    for name in names:
        wait_for_state(station, name, "idle")
    wait_until(lambda: station.redis.exists("cidermill:deaths:slept") == 0, "the end of the row")
    assert station.logs().count("and lives: that does not count against machine slept") == 3
    [request_id] = station.enqueue("d", first=7)
    assert [event.request_id for event in station.wait_for_results(1)][-1] == request_id
