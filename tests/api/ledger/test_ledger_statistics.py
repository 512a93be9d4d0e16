from collections.abc import Callable

import pytest
from ledger_samples import finished, measured, refused, started

from api.dataset.request_line import LineError
from api.ledger.ledger import Ledger
from api.ledger.records import WorkerShare
from api.schemas import Batch, Choice, Phases, RequestCounts, Usage

Enter = Callable[..., Batch]


def test_a_batch_without_results_has_nothing_to_tell(ledger: Ledger, enter: Enter) -> None:
    stats = ledger.stats(enter(2).id)
    assert stats.counts == RequestCounts(queued=2)
    assert stats.completion_tokens == stats.passes == stats.peak_memory_bytes == 0
    ratios = (stats.acceptance, stats.tokens_per_pass, stats.decode_tps, stats.e2e_tps, stats.wall_seconds)
    assert {*ratios, stats.ttft_mean_ms, stats.ttft_p50_ms, stats.ttft_p95_ms} == {None}
    assert stats.failures == stats.finish_reasons == stats.verification == stats.notes == {}
    assert stats.longest_repeat == stats.acceptance_collapses == 0
    assert stats.workers == []


def test_sums_and_ratios_by_hand(ledger: Ledger, enter: Enter) -> None:
    batch = enter(5)
    ids = [f"{batch.id}-{index}" for index in range(5)]
    drafted = {"passes": 10, "drafted_tokens": 40, "accepted_tokens": 11, "forced_tokens": 1}
    first = measured(
        100, 21, wall=3000.0, ttft=1000.0, **drafted, peak_memory_bytes=5, repetition=0.25, longest_repeat=8
    )
    first["stats"] = first["stats"].model_copy(update={"verification": "tree"})
    first["usage"] = Usage(prompt_tokens=100, completion_tokens=21, cached_prompt_tokens=64)
    second = measured(
        50,
        41,
        wall=5000.0,
        ttft=1000.0,
        first_pass_tokens=5,
        passes=10,
        drafted_tokens=60,
        accepted_tokens=31,
        longest_repeat=3,
    )
    second["stats"] = second["stats"].model_copy(update={"acceptance_collapsed_at": 0, "verification": "tree"})
    # One token: a first, and none after it. It must not count into the decoding rate but for its tiny time.
    third = measured(10, 1, wall=200.0, ttft=200.0, passes=0, peak_memory_bytes=9)
    ledger.record(
        [
            started(ids[0], worker="mac-1", at=1000.0),
            finished(ids[0], worker="mac-1", at=1003.0, **first),
            started(ids[1], worker="mac-2", at=1001.0),
            finished(ids[1], worker="mac-2", at=1006.0, finish_reason="length", **second),
            started(ids[2], worker="mac-1", at=1003.0),
            finished(ids[2], worker="mac-1", at=1003.2, **third),
            refused(ids[3], worker="mac-2", at=1004.0),
        ]
    )
    stats = ledger.stats(batch.id)
    assert stats.counts == RequestCounts(completed=3, failed=1, queued=1)
    assert (stats.prompt_tokens, stats.completion_tokens, stats.cached_prompt_tokens) == (160, 63, 64)
    assert (stats.drafted_tokens, stats.accepted_tokens, stats.forced_tokens, stats.passes) == (100, 42, 1, 20)
    assert stats.acceptance == pytest.approx(42 / 100)
    assert stats.tokens_per_pass == pytest.approx((21 + 41) / 20)
    # The second tells that five came with its first pass; of the others it is one at least.
    assert stats.decode_tps == pytest.approx((20 + 36 + 0) / (2 + 4 + 0))
    assert stats.e2e_tps == pytest.approx(63 / (3 + 5 + 0.2))
    assert stats.wall_seconds == pytest.approx(6.0)
    assert stats.ttft_mean_ms == pytest.approx((1000 + 1000 + 200) / 3)
    assert stats.phases_ms == {
        "prefill": 2200.0, "draft": 0.0, "verify": 6000.0, "sample": 0.0, "commit": 0.0, "other": 0.0
    }  # fmt: skip
    assert (stats.peak_memory_bytes, stats.repetition, stats.longest_repeat) == (9, 0.25, 8)
    assert stats.acceptance_collapses == 1
    assert stats.finish_reasons == {"stop": 2, "length": 1}
    assert stats.failures == {"context_length_exceeded": 1}
    assert stats.verification == {"tree": 2, "plain": 1}
    assert stats.workers == [
        WorkerShare("mac-1", 2, 22, pytest.approx(20 / 2)),
        WorkerShare("mac-2", 2, 41, pytest.approx(36 / 4)),
    ]


def test_every_phase_is_summed_into_its_own(ledger: Ledger, enter: Enter) -> None:
    batch = enter(2)
    phases = Phases(prefill=1, draft=2, verify=3, sample=4, commit=5, other=6)
    for index in range(2):
        result = measured(1, 1, wall=21.0, ttft=None)
        result["stats"] = result["stats"].model_copy(update={"phases": phases})
        ledger.record([finished(f"{batch.id}-{index}", **result)])
    expected = {"prefill": 2, "draft": 4, "verify": 6, "sample": 8, "commit": 10, "other": 12}
    assert ledger.stats(batch.id).phases_ms == expected


@pytest.mark.parametrize(("count", "p50", "p95"), [(1, 1, 1), (2, 1, 2), (20, 10, 19), (21, 11, 20), (100, 50, 95)])
def test_percentiles_are_values_that_occurred(ledger: Ledger, enter: Enter, count: int, p50: int, p95: int) -> None:
    """Of 1, 2, ..., count milliseconds, in an order that is not theirs."""
    batch = enter(count)
    order = sorted(range(count), key=lambda index: (7 * index) % 11)
    ledger.record([finished(f"{batch.id}-{n}", **measured(1, 1, wall=500.0, ttft=float(n + 1))) for n in order])
    stats = ledger.stats(batch.id)
    assert (stats.ttft_p50_ms, stats.ttft_p95_ms) == (p50, p95)


def test_failures_by_code_the_most_frequent_first(ledger: Ledger, enter: Enter) -> None:
    bad = LineError(9, "invalid_json", "no", None)
    batch = enter(lines_=[bad, bad, bad])
    other = enter(2)
    assert ledger.stats(batch.id).failures == {"invalid_json": 3}
    assert ledger.stats(batch.id).wall_seconds is None
    ledger.record([refused(f"{other.id}-0", code="b"), refused(f"{other.id}-1", code="a")])
    assert list(ledger.stats(other.id).failures.items()) == [("a", 1), ("b", 1)]


def test_texts_by_finish_reason_are_those_of_all_choices(ledger: Ledger, enter: Enter) -> None:
    batch, other = enter(3), enter(1)
    further = [Choice(finish_reason="time_limit"), Choice(finish_reason="stop")]
    ledger.record(
        [
            finished(f"{batch.id}-0", finish_reason="stop", further_choices=further),
            finished(f"{batch.id}-1", finish_reason="length", further_choices=[Choice(finish_reason="stop")]),
            refused(f"{batch.id}-2"),
            finished(f"{other.id}-0", finish_reason="stop", further_choices=further),
        ]
    )
    assert list(ledger.stats(batch.id).finish_reasons.items()) == [("stop", 3), ("length", 1), ("time_limit", 1)]


def test_the_most_frequent_notes_are_told(ledger: Ledger, enter: Enter) -> None:
    """Of seven kinds: one that six requests share, and six that one request each has."""
    batch, other = enter(6), enter(1)
    ledger.record([finished(f"{batch.id}-{n}", notes=["all", f"only {n}"]) for n in range(6)])
    ledger.record([finished(f"{other.id}-0", notes=["another batch's"])])
    expected = [("all", 6), ("only 0", 1), ("only 1", 1), ("only 2", 1), ("only 3", 1)]
    assert list(ledger.stats(batch.id).notes.items()) == expected


def test_another_batch_does_not_count(ledger: Ledger, enter: Enter) -> None:
    one, other = enter(1), enter(1)
    ledger.record([finished(f"{one.id}-0", **measured(3, 4, wall=10.0, ttft=5.0))])
    assert ledger.stats(one.id).completion_tokens == 4
    assert ledger.stats(other.id).completion_tokens == 0


def test_clocks_that_disagree_make_no_negative_wall(ledger: Ledger, enter: Enter) -> None:
    request = f"{enter(1).id}-0"
    ledger.record([started(request, at=1000.0), finished(request, at=999.0)])
    assert ledger.stats(request.rpartition("-")[0]).wall_seconds == 0.0
