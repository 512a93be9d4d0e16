"""The pulse of a worker goes on, whatever a beat runs into: the lease of its run would end with it."""

import threading

import pytest
from redis import Redis

from api.schemas import WorkerInfo
from worker.duty import Duty
from worker.pulse import Pulse
from worker.run import Run
from worker.shutdown import Shutdown


def test_a_beat_that_fails_is_reported_once_and_the_next_renews(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    info = WorkerInfo(
        name="w", model="m", state="idle", host="h", pid=1, chip="", drafter="", verification="", seen_at=0
    )
    pulse = Pulse(redis, info, Duty("w", "h", 3, Shutdown(grace_seconds=60)), heartbeat_seconds=0.01)
    run = Run("batch_x-0", 60, lambda: False)
    failures = [ValueError("a secret"), ValueError("a secret"), KeyError("a secret")]
    renewed = threading.Event()

    def renew(_: Redis) -> bool:
        if failures:
            raise failures.pop(0)
        renewed.set()
        return True

    pulse.watch(run, renew)
    pulse.start()
    assert renewed.wait(20)
    pulse.end()
    assert not run.lease_lost
    said = [record.getMessage() for record in caplog.records if "no heartbeat" in record.getMessage()]
    assert said == ["no heartbeat: ValueError; trying on", "no heartbeat: KeyError; trying on"]
