"""What the summary of a batch says for people, and when it says more."""

from pathlib import Path
from typing import Any

from api.ledger.records import BatchStats, WorkerShare
from api.schemas import Batch, RequestCounts
from api.states import BatchState
from cli.summary import summary_lines

BATCH = Batch(
    id="batch_1",
    model="m",
    state=BatchState.COMPLETED,
    priority="normal",
    input_path="in.jsonl",
    input_sha256="00",
    output_path=None,
    created_at=0.0,
    finished_at=1.0,
    expires_at=None,
    counts=RequestCounts(completed=9, failed=1),
)


STATS: dict[str, Any] = {
    "counts": BATCH.counts,
    "prompt_tokens": 100,
    "completion_tokens": 50,
    "cached_prompt_tokens": 30,
    "drafted_tokens": 80,
    "accepted_tokens": 20,
    "forced_tokens": 0,
    "passes": 30,
    "acceptance": 0.25,
    "tokens_per_pass": 50 / 30,
    "decode_tps": 12.34,
    "e2e_tps": None,
    "wall_seconds": 4.0,
    "ttft_mean_ms": None,
    "ttft_p50_ms": None,
    "ttft_p95_ms": None,
    "phases_ms": {"prefill": 1.0, "verify": 3.0},
    "peak_memory_bytes": 0,
    "repetition": 0.5,
    "longest_repeat": 9,
    "acceptance_collapses": 0,
    "finish_reasons": {"stop": 8, "length": 1},
    "failures": {},
    "verification": {"tree": 10},
    "notes": {},
    "workers": [],
}


def lines(**changes: Any) -> dict[str, str]:
    return dict(summary_lines(BATCH, BatchStats(**{**STATS, **changes}), Path("out.jsonl")))


def test_a_batch_without_incident() -> None:
    shown = lines()
    assert list(shown) == ["batch", "requests", "tokens", "speed", "speculation", "phases", "wall", "output"]
    assert shown["requests"] == "9 completed, 1 failed"
    assert shown["tokens"] == "100 prompt (30 from the cache), 50 completion"
    assert shown["speed"] == "12.3 tok/s decoding, - tok/s end to end per worker"
    assert shown["speculation"] == "acceptance 25 % (20 of 80 drafted), 1.67 tokens per pass, verification tree"
    assert shown["phases"] == "prefill 25 %, verify 75 %"


def test_texts_that_a_limit_has_cut_short_are_counted() -> None:
    shown = lines(finish_reasons={"stop": 5, "repetition": 3, "time_limit": 1, "cancelled": 1}, failures={"bad": 2})
    assert shown["cut short"] == "3 repetition, 1 time_limit"
    assert shown["failures"] == "2 bad"


def test_tokens_taken_against_the_draw_are_told() -> None:
    assert lines(forced_tokens=3)["speculation"].startswith("acceptance 25 % (20 of 80 drafted, 3 against the draw), ")


def test_a_collapse_of_acceptance_is_told() -> None:
    assert lines(acceptance_collapses=1)["speculation"].endswith(" tree, acceptance collapsed in 1 request")
    assert lines(acceptance_collapses=2)["speculation"].endswith(" tree, acceptance collapsed in 2 requests")


def test_workers_that_verified_differently_are_told_apart() -> None:
    shown = lines(verification={"tree": 7, "plain": 3})["speculation"]
    assert shown.endswith(" 1.67 tokens per pass, verification 7 tree, 3 plain")
    assert lines(verification={})["speculation"].endswith(" 1.67 tokens per pass")


def test_notes_are_told_with_the_number_of_their_requests() -> None:
    assert lines(notes={"n 3 has no effect": 1})["note"] == "1 request: n 3 has no effect"


def test_workers_are_listed_when_there_are_several() -> None:
    one, two = WorkerShare("mac-1", 9, 450, 30.04), WorkerShare("mac-2", 1, 50, None)
    assert "worker" not in lines(workers=[one])
    stats = BatchStats(**{**STATS, "workers": [one, two]})
    shown = [value for name, value in summary_lines(BATCH, stats, None) if name == "worker"]
    assert shown == [
        "mac-1: 9 requests, 450 tokens, 30.0 tok/s decoding",
        "mac-2: 1 request, 50 tokens, - tok/s decoding",
    ]
