"""Workers that are killed, stopped and asked to stop in the middle of a request."""

import signal

import pytest
from rq.command import send_stop_job_command
from rq.serializers import JSONSerializer

from api.queue.presence import live_workers
from api.queue.requests import RequestQueue
from tests.worker.queue.conftest import BATCH, Station, wait_until
from tests.worker.scripted_engine import scripted_text

pytestmark = pytest.mark.faults


def test_request_of_a_killed_worker_runs_on_another(station: Station) -> None:
    [request_id] = station.enqueue("a prompt", tokens=40)
    first = station.start_worker(seconds_per_token=0.05)
    wait_until(station.starts, "the start")
    first.kill()
    second = station.start_worker()
    [event] = station.wait_for_results(1)
    assert station.starts() == [(request_id, first.pid), (request_id, second.pid)]
    assert event.attempt == 2
    assert event.result is not None
    assert event.result.text == scripted_text("a prompt", 40)
    wait_until(lambda: station.queue.live([request_id]) == set(), "the end of the job")
    assert len(station.finished()) == 1


def test_request_that_kills_its_workers_is_set_aside_and_the_next_one_runs(station: Station) -> None:
    deadly, good = station.enqueue("die", "a prompt")
    names = []
    for number in range(2):
        worker = station.start_worker(name=f"victim-{number}")
        wait_until(lambda worker=worker: worker.poll() is not None, "the worker's death", 30)
        assert worker.returncode == -signal.SIGKILL
        names.append(f"victim-{number}")
    station.start_worker()
    assert [event.request_id for event in station.wait_for_results(1)] == [good]
    wait_until(lambda: station.queue.set_aside(station.model), "the request to be set aside")
    [aside] = station.queue.set_aside(station.model)
    assert aside.request_id == deadly
    assert aside.workers == tuple(names)
    assert aside.reason == "2 workers died while running it: victim-0, victim-1"
    station.queue.forget([deadly])
    assert station.queue.set_aside(station.model) == []
    assert station.redis.keys(f"*{deadly}*") == []


def test_stopped_worker_that_wakes_up_does_not_publish_a_second_result(station: Station) -> None:
    [request_id] = station.enqueue("a prompt", tokens=60)
    zombie = station.start_worker(seconds_per_token=0.05)
    wait_until(station.starts, "the start")
    zombie.send_signal(signal.SIGSTOP)
    other = station.start_worker(seconds_per_token=0.05)
    wait_until(lambda: len(station.starts()) == 2, "the second start")
    zombie.send_signal(signal.SIGCONT)
    [event] = station.wait_for_results(1)
    assert event.worker.rsplit("-", 2)[1] == str(other.pid)
    zombie.send_signal(signal.SIGTERM)
    assert zombie.wait(10) == 0
    assert len(station.finished()) == 1
    assert station.queue.live([request_id]) == set()


def test_first_signal_lets_the_running_request_finish(station: Station) -> None:
    station.enqueue("a prompt", "another", tokens=20)
    worker = station.start_worker(seconds_per_token=0.05)
    wait_until(station.starts, "the start")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(10) == 0
    [event] = station.wait_for_results(1)
    assert event.request_id == f"{BATCH}-0"
    assert station.queue.depth(station.model)["normal"] == 1


def test_grace_that_ends_hands_the_request_back_to_the_head_without_an_attempt(station: Station) -> None:
    first, _ = station.enqueue("a prompt", "another", tokens=2000)
    worker = station.start_worker(seconds_per_token=0.05, grace_seconds=0.2)
    wait_until(station.starts, "the start")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(10) == 0
    events = [(event.kind, event.attempt) for event in station.pull()]
    assert events == [("started", 1), ("handed_back", 1)]
    assert station.redis.lrange(f"rq:queue:{station.model}:normal", 0, 0) == [first.encode()]
    assert station.redis.hget(f"rq:job:{first}", "retries_left") == b"1"
    assert live_workers(station.redis) == []

    station.start_worker()
    results = station.wait_for_results(2)
    assert (results[0].request_id, results[0].attempt) == (first, 1)


def test_second_signal_hands_back_at_once(station: Station) -> None:
    station.enqueue("a prompt", tokens=2000)
    worker = station.start_worker(seconds_per_token=0.05, grace_seconds=3600)
    wait_until(station.starts, "the start")
    worker.send_signal(signal.SIGINT)
    wait_until(lambda: [w.state for w in live_workers(station.redis)] == ["stopping"], "the first signal")
    worker.send_signal(signal.SIGINT)
    assert worker.wait(10) == 0
    assert [event.kind for event in station.pull()] == ["started", "handed_back"]


def test_worker_ends_with_its_parent(station: Station) -> None:
    worker = station.start_worker(stop_with_parent=True)
    wait_until(lambda: [w.state for w in live_workers(station.redis)] == ["idle"], "the worker")
    assert worker.stdin is not None
    worker.stdin.close()
    worker.stdin = None
    assert worker.wait(10) == 0
    assert live_workers(station.redis) == []


def test_cancelled_batch_stops_its_running_request(station: Station) -> None:
    running, waiting = station.enqueue("a prompt", "another", tokens=2000)
    station.start_worker(seconds_per_token=0.05)
    wait_until(station.starts, "the start")
    station.queue.withdraw([running, waiting], batch_id=BATCH)
    [event] = station.wait_for_results(1)
    assert event.result is not None
    assert event.result.finish_reason == "cancelled"
    wait_until(lambda: not station.queue.live([running, waiting]), "an empty queue")
    assert len(station.starts()) == 1


def test_rq_stop_command_stops_the_running_request(station: Station) -> None:
    [request_id] = station.enqueue("a prompt", tokens=2000)
    station.start_worker(seconds_per_token=0.05)
    wait_until(station.starts, "the start")
    send_stop_job_command(station.redis, request_id, serializer=JSONSerializer)
    [event] = station.wait_for_results(1)
    assert event.result is not None
    assert event.result.finish_reason == "cancelled"
    wait_until(lambda: not station.queue.live([request_id]), "the end of the job")


def test_deadline_is_an_error_result_and_not_a_second_attempt(station: Station) -> None:
    queue = RequestQueue(station.redis, max_attempts=2, request_timeout_seconds=1, settling_seconds=0)
    [request_id] = station.enqueue("a prompt", tokens=2000, queue=queue)
    station.start_worker(seconds_per_token=0.05)
    [event] = station.wait_for_results(1)
    assert event.result is not None
    assert event.result.error is not None
    assert (event.result.error.code, event.result.error.status) == ("request_timeout", 408)
    wait_until(lambda: not station.queue.live([request_id]), "the end of the job")
    assert len(station.starts()) == 1


def test_busy_worker_shows_its_progress(station: Station) -> None:
    [request_id] = station.enqueue("a prompt", tokens=400)
    station.start_worker(seconds_per_token=0.05)
    wait_until(lambda: any(w.tokens > 3 for w in live_workers(station.redis)), "tokens")
    [worker] = live_workers(station.redis)
    assert (worker.state, worker.request_id, worker.chip) == ("busy", request_id, "paper")
    assert len(worker.tail) > 20
    assert worker.tail.strip() in scripted_text("a prompt", 400)
    assert worker.pid in {process.pid for process in station.processes}
