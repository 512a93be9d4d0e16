from tests.history.run import SHORT_PACE, missing
from tests.history.schedule import PHASES, SHARED_KINDS, WORKER_KINDS, plan


def test_a_seed_gives_the_same_faults_and_another_seed_others() -> None:
    plans = [plan(seed, seconds=60, workers=4, lease=2, pace=SHORT_PACE) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert [fault.at for fault in plans[0]] == sorted(fault.at for fault in plans[0])
    assert max(fault.at for fault in plans[0]) < 60


def test_a_run_of_three_minutes_has_every_fault_more_than_once() -> None:
    for seed in range(20):
        faults = plan(seed, seconds=180, workers=4, lease=2, pace=SHORT_PACE)
        kills = [fault.phase for fault in faults if fault.kind == "kill"]
        assert all(kills.count(phase) > 2 for phase in PHASES)
        kinds = [fault.kind for fault in faults]
        assert set(kinds) == {"kill", *WORKER_KINDS, *SHARED_KINDS}
        assert all(kinds.count(kind) > 1 for kind in (*WORKER_KINDS, *SHARED_KINDS))
        assert all(fault.seconds > 2 for fault in faults if fault.kind in ("stop", "redis_pause", "redis_hang"))


def test_a_fault_that_did_not_strike_is_named() -> None:
    kinds = [*(f"kill {phase}" for phase in PHASES), *WORKER_KINDS, *SHARED_KINDS]
    kills = dict.fromkeys((*PHASES, "committed", "poison"), 1)
    assert missing({"faults": dict.fromkeys(kinds, 1), "kills": kills}) == []
    assert missing({"faults": dict.fromkeys(kinds[1:], 1), "kills": kills | {"stored": 0}}) == [
        "kill dequeued",
        "no kill at stored",
    ]
