"""Workers serve prompts that begin alike together, from queues in which several batches lie mixed."""

import itertools
import signal

from tests.worker.queue.conftest import Station, wait_until

KINDS = 3
HEADERS = [f"These are the rules of batch {kind}, which all of its prompts begin with. " * 8 for kind in range(KINDS)]


def put_mixed(station: Station, requests: int) -> list[str]:
    return station.enqueue(*(f"{HEADERS[number % KINDS]}Question {number}" for number in range(requests)))


def kind(request_id: str) -> int:
    return int(request_id.rpartition("-")[2]) % KINDS


def changes(order: list[str]) -> int:
    return sum(kind(one) != kind(other) for one, other in itertools.pairwise(order))


def test_one_worker_changes_once_for_each_further_batch(station: Station) -> None:
    ids = put_mixed(station, 30)
    assert changes(ids) == 29
    station.start_worker()
    results = station.wait_for_results(30)
    served = [request_id for request_id, _ in station.starts()]
    assert served == ids[0::KINDS] + ids[1::KINDS] + ids[2::KINDS]
    assert [event.request_id for event in results] == served
    assert station.redis.keys("cidermill:round:*") == []


def test_several_workers_change_no_more_and_do_nothing_twice_when_one_dies(station: Station) -> None:
    ids = put_mixed(station, 60)
    workers = [station.start_worker(seconds_per_token=0.01) for _ in range(2)]
    wait_until(lambda: len(station.finished()) > 10, "some results")
    workers[0].kill()
    station.wait_for_results(60)
    starts = station.starts()
    assert sorted(event.request_id for event in station.finished()) == sorted(ids)
    assert len(starts) <= 61  # the one that was killed
    for worker in workers:
        # A kind that is not there any more does not come back, but for the one that the other worker had.
        assert changes([request_id for request_id, process in starts if process == worker.pid]) <= KINDS - 1 + 2


def test_a_request_that_is_handed_back_is_the_next(station: Station) -> None:
    ids = put_mixed(station, 9)
    first = station.start_worker(seconds_per_token=0.1, grace_seconds=0.1)
    wait_until(lambda: len(station.starts()) == 2, "the second of the first kind")
    first.send_signal(signal.SIGTERM)
    first.wait(10)
    station.start_worker()
    station.wait_for_results(9)
    served = [request_id for request_id, _ in station.starts()]
    assert served[:3] == [ids[0], ids[3], ids[3]]
    assert served[2:] == ids[3::KINDS] + ids[1::KINDS] + ids[2::KINDS]
