from tests.history.schedule import PHASES, Pace, plan

PACE = Pace(worker=1.2, shared=5.0)


def test_a_seed_gives_the_same_faults_and_another_seed_others() -> None:
    plans = [plan(seed, seconds=60, workers=4, lease=2, pace=PACE) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert [fault.at for fault in plans[0]] == sorted(fault.at for fault in plans[0])
    assert max(fault.at for fault in plans[0]) < 60


def test_a_run_of_a_minute_and_a_half_has_every_fault() -> None:
    for seed in range(20):
        faults = plan(seed, seconds=90, workers=4, lease=2, pace=PACE)
        assert {fault.phase for fault in faults if fault.kind == "kill"} == set(PHASES)
        assert {fault.kind for fault in faults} == {
            *("kill", "stop", "term", "term_twice"),
            *("redis_kill", "redis_wipe", "redis_pause", "redis_hang"),
            *("ledger_full", "outbox_full", "recorder_kill", "second_recorder", "cancel"),
        }
        assert all(fault.seconds > 2 for fault in faults if fault.kind in ("stop", "redis_pause", "redis_hang"))
