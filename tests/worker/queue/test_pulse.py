"""The pulse of a worker goes on, whatever a beat runs into: the lease of its run would end with it."""

import threading

import pytest
from redis import Redis

from api.schemas import WorkerInfo
from worker.duty import Duty
from worker.pulse import Pulse
from worker.run import Run
from worker.shutdown import Shutdown


@pytest.fixture
def pulse(redis: Redis) -> Pulse:
    info = WorkerInfo(
        name="w", model="m", state="idle", host="h", pid=1, chip="", drafter="", verification="", seen_at=0
    )
    return Pulse(redis, info, Duty("w", "h", 3, Shutdown(grace_seconds=60)), heartbeat_seconds=0.01)


def test_a_beat_that_fails_is_reported_once_and_the_next_renews(pulse: Pulse, caplog: pytest.LogCaptureFixture) -> None:
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


@pytest.mark.parametrize("told", [False, True])
def test_a_lease_that_is_gone_was_lost_unless_the_end_was_told(pulse: Pulse, told: bool) -> None:
    """The worker ends the lease itself then, in the moment in which its pulse renews it."""
    run = Run("batch_x-0", 60, lambda: False)
    run.told = told
    answers = iter([False, False])
    asked_twice = threading.Event()

    def renew(_: Redis) -> bool:
        answer = next(answers, None)
        if answer is None:
            asked_twice.set()
        return bool(answer)

    pulse.watch(run, renew)
    pulse.start()
    assert asked_twice.wait(20)
    pulse.end()
    assert run.lease_lost is not told
