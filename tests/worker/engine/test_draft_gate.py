"""The gate: when a drafter is not even run, and how it gets another chance."""

from collections.abc import Callable

from worker.engine.draft_gate import FIRST_PAUSE, LONGEST_PAUSE, PROBE_ROUNDS, DraftGate


def drafted(gate: DraftGate, rounds: int, tokens: Callable[[int], float], cost: float) -> list[bool]:
    """Whether each of `rounds` rounds drafted, each of which promises tokens(round) for `cost` plain passes."""
    admitted = []
    for number in range(rounds):
        admitted.append(gate.admits())
        if admitted[-1]:
            gate.record(tokens(number), cost)
    return admitted


def runs(flags: list[bool]) -> list[tuple[bool, int]]:
    """Lengths of the runs of equal flags."""
    found: list[tuple[bool, int]] = []
    for flag in flags:
        if found and found[-1][0] == flag:
            found[-1] = (flag, found[-1][1] + 1)
        else:
            found.append((flag, 1))
    return found


def test_a_drafter_that_pays_is_always_run() -> None:
    assert all(drafted(DraftGate(), 1000, lambda _: 1.6, cost=1.3))


def test_a_drafter_that_costs_as_good_as_nothing_is_always_run() -> None:
    assert all(drafted(DraftGate(), 1000, lambda _: 1.0, cost=1.01))


def test_a_dear_drafter_that_never_pays_is_stopped_within_a_few_rounds_and_probed_ever_more_seldom() -> None:
    gate = DraftGate()
    lengths = runs(drafted(gate, 4000, lambda _: 1.0, cost=1.5))
    first, *rest = lengths
    # Eight neutral rounds to begin with: 8 + 1 < 0.98 * (8 + 1.5) at once.
    assert first == (True, 1)
    assert [length for on, length in rest if not on][:7] == [16, 32, 64, 128, 256, 256, 256]
    assert {length for on, length in rest[:-1] if on} == {PROBE_ROUNDS}
    share = sum(length for on, length in lengths if on) / 4000
    assert share < 0.025


def test_a_drafter_that_pays_a_little_less_than_plain_decoding_is_stopped_later() -> None:
    # Without fading: 8 + 1.2 k < 0.98 * (8 + 1.26 k) from k = 5 on.
    (first, *_) = runs(drafted(DraftGate(), 200, lambda _: 1.2, cost=1.26))
    assert first in [(True, 4), (True, 5)]


def test_a_probe_that_pays_opens_the_gate_for_good() -> None:
    gate = DraftGate()
    drafted(gate, 1 + FIRST_PAUSE, lambda _: 1.0, cost=1.5)
    assert gate.state == "closed"
    assert all(drafted(gate, 500, lambda _: 2.0, cost=1.5))
    assert gate.state == "open"


def test_after_it_was_open_again_the_pause_is_short_again() -> None:
    gate = DraftGate()
    drafted(gate, 2000, lambda _: 1.0, cost=1.5)
    while gate.state != "open":
        drafted(gate, 1, lambda _: 3.0, cost=1.5)
    lengths = runs(drafted(gate, 200, lambda _: 1.0, cost=1.5))
    assert lengths[1] == (False, FIRST_PAUSE)


def test_no_pause_is_longer_than_the_longest() -> None:
    lengths = runs(drafted(DraftGate(), 10_000, lambda _: 1.0, cost=3.0))
    assert max(length for on, length in lengths if not on) == LONGEST_PAUSE


def test_a_new_request_gets_a_probe_soon() -> None:
    gate = DraftGate()
    drafted(gate, 1 + 16 + 4 + 32 + 4 + 5, lambda _: 1.0, cost=1.5)
    assert gate.state == "closed"  # 5 rounds into a pause of 64
    gate.start_request()
    lengths = runs(drafted(gate, 60, lambda _: 1.0, cost=1.5))
    assert lengths[:3] == [(False, FIRST_PAUSE), (True, PROBE_ROUNDS), (False, 2 * FIRST_PAUSE)]


def test_a_new_request_does_not_lengthen_a_pause_that_is_nearly_over() -> None:
    gate = DraftGate()
    drafted(gate, 1 + FIRST_PAUSE - 3, lambda _: 1.0, cost=1.5)
    gate.start_request()
    assert runs(drafted(gate, 4, lambda _: 1.0, cost=1.5))[0] == (False, 3)


def test_a_pause_goes_on_until_a_probe_is_allowed() -> None:
    gate = DraftGate()
    drafted(gate, 1, lambda _: 1.0, cost=1.5)
    assert not any(gate.admits(may_probe=False) for _ in range(5 * FIRST_PAUSE))
    assert gate.state == "closed"
    assert gate.admits()
    assert gate.state == "probing"


def test_a_gate_that_restarts_forgets_what_was() -> None:
    worn, fresh = DraftGate(), DraftGate()
    drafted(worn, 60, lambda _: 1.2, cost=1.22)
    worn.restart()
    assert runs(drafted(worn, 30, lambda _: 1.0, cost=1.1)) == runs(drafted(fresh, 30, lambda _: 1.0, cost=1.1))


def test_a_closed_gate_does_not_restart() -> None:
    gate = DraftGate()
    drafted(gate, 1, lambda _: 1.0, cost=1.5)
    gate.restart()
    assert runs(drafted(gate, FIRST_PAUSE + 1, lambda _: 1.0, cost=1.5)) == [(False, FIRST_PAUSE), (True, 1)]
