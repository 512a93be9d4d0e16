"""What the summary of a batch says for people, and when it says more."""

from pathlib import Path
from typing import Any

from api.ledger.records import BatchStats
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
    counts=RequestCounts(completed=9, failed=1),
)


def lines(**changes: Any) -> dict[str, str]:
    stats: dict[str, Any] = {
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
        "workers": [],
    }
    return dict(summary_lines(BATCH, BatchStats(**{**stats, **changes}), Path("out.jsonl")))


def test_a_batch_without_incident() -> None:
    shown = lines()
    assert list(shown) == ["batch", "requests", "tokens", "speed", "speculation", "phases", "wall", "output"]
    assert shown["requests"] == "9 completed, 1 failed"
    assert shown["tokens"] == "100 prompt (30 from the cache), 50 completion"
    assert shown["speed"] == "12.3 tok/s decoding, - tok/s end to end per worker"
    assert shown["speculation"] == "acceptance 25 % (20 of 80 drafted), 1.67 tokens per pass"
    assert shown["phases"] == "prefill 25 %, verify 75 %"


def test_texts_that_a_limit_has_cut_short_are_counted() -> None:
    shown = lines(finish_reasons={"stop": 5, "repetition": 3, "time_limit": 1, "cancelled": 1}, failures={"bad": 2})
    assert shown["cut short"] == "3 repetition, 1 time_limit"
    assert shown["failures"] == "2 bad"


def test_a_collapse_of_acceptance_is_told() -> None:
    assert lines(acceptance_collapses=1)["speculation"].endswith(" per pass, acceptance collapsed in 1 request")
    assert lines(acceptance_collapses=2)["speculation"].endswith(" per pass, acceptance collapsed in 2 requests")
