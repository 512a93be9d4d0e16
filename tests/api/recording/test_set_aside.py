"""Requests that were set aside, and answered all the same before the ledger heard of either."""

from recording_station import MODEL, Station, finished

from api.queue import attempts
from api.states import RequestState


def test_an_answer_on_the_stream_is_recorded_and_not_a_failure(station: Station) -> None:
    batch = station.enter(3)  # one stays open
    answered, failed = f"{batch.id}-0", f"{batch.id}-1"
    station.queue.enqueue(station.ledger.open_requests(batch.id), model=MODEL, priority="normal")
    for request_id in (answered, failed):
        attempts.note_lost(station.redis, request_id, "mac-1")
        station.fail_in_redis(request_id)
    recorder = station.recorder()
    station.publish(finished(answered))
    recorder.housekeeping()
    assert station.ledger.request(answered).state is RequestState.QUEUED
    assert station.ledger.request(failed).state is RequestState.FAILED
    recorder.step(block_ms=1)
    recorder.housekeeping()
    assert station.ledger.request(answered).state is RequestState.COMPLETED
    assert station.happened(answered) == ["finished"]
    assert station.queue.set_aside(MODEL) == []
