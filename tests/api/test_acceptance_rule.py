"""The names of acceptance rules: which are taken, and what is said of the others."""

import pytest
from pydantic import ValidationError

from api.acceptance import AcceptanceRule
from api.dataset.request_line import InputLine, LineError, request_line
from api.schemas import GenerationRequest


@pytest.mark.parametrize(
    ("name", "theta"),
    [
        ("lossless", None),
        ("ratio:theta=0.3", 0.3),
        ("ratio:theta=0", 0.0),
        ("ratio:theta=1", 1.0),
        ("ratio:theta=2e-1", 0.2),
    ],
)
def test_a_rule_is_read_from_its_name(name: str, theta: float | None) -> None:
    assert AcceptanceRule.parse(name).theta == theta


@pytest.mark.parametrize("theta", [None, 0.0, 0.3, 0.123456789, 1.0])
def test_a_name_reads_back(theta: float | None) -> None:
    assert AcceptanceRule.parse(str(AcceptanceRule(theta))) == AcceptanceRule(theta)


def test_the_names_are_those_of_the_documentation() -> None:
    assert str(AcceptanceRule()) == "lossless"
    assert str(AcceptanceRule(0.3)) == "ratio:theta=0.3"


WRONG = [
    *("", "Lossless", "ratio", "ratio:", "ratio:theta", "ratio:theta=", "ratio:theta=x", "ratio:0.3", "theta=0.3"),
    *("ratio:theta=-0.1", "ratio:theta=1.01", "ratio:theta=nan", "ratio:theta=inf", "typical:eps=0.3"),
]


@pytest.mark.parametrize("name", WRONG)
def test_a_line_with_another_name_is_refused(name: str) -> None:
    outcome = request_line({"prompt": "a", "acceptance": name}, 3, {})
    assert isinstance(outcome, LineError)
    assert outcome.message == (
        f'acceptance: "{name}" is no acceptance rule: "lossless", or "ratio:theta=0.3" with theta from 0 to 1'
    )


def test_a_line_s_own_rule_goes_before_the_batch_s() -> None:
    batch = {"acceptance": "ratio:theta=0.3"}
    for line, expected in (({}, "ratio:theta=0.3"), ({"acceptance": "lossless"}, "lossless")):
        outcome = request_line({"prompt": "a", **line}, 1, batch)
        assert isinstance(outcome, InputLine)
        assert outcome.body.acceptance == expected


def test_a_worker_refuses_what_no_producer_has_checked() -> None:
    with pytest.raises(ValidationError, match="no acceptance rule"):
        GenerationRequest.model_validate({"request_id": "a-1", "prompt": "a", "acceptance": "ratio:theta=7"})
