"""A request that is answered is not run by a worker that finds it waiting still."""

import time

from api.queue.results import publish_result
from api.schemas import GenerationResult, RequestEvent
from tests.worker.queue.conftest import Station, wait_until


def answer(request_id: str) -> RequestEvent:
    result = GenerationResult(request_id=request_id, text="t", finish_reason="stop")
    return RequestEvent(kind="finished", request_id=request_id, worker="w", attempt=1, at=time.time(), result=result)


def test_an_answered_request_that_waits_again_is_skipped(station: Station) -> None:
    answered, other = station.enqueue("one", "two")
    publish_result(station.redis, answer(answered))
    assert station.queue.live([answered, other]) == {other}
    station.start_worker()
    wait_until(lambda: len(station.finished()) == 2, "the other's result")
    assert [request_id for request_id, _ in station.starts()] == [other]
