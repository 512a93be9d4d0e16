"""What was learned of a drafter outlives the process, and a broken file does no harm."""

import json
from pathlib import Path

import pytest

from worker.engine.draft_cost import DraftCost
from worker.engine.learned import REQUESTS_PER_WRITE, Learned
from worker.engine.tree import TokenTree

KEY = {"model": "tiny", "drafter": "suffix"}


def guess() -> TokenTree:
    tree = TokenTree(0)
    tree.add(0, 1, 0.65)
    return tree


def value(learned: Learned) -> float:
    tree = guess()
    learned.calibration.appraise(tree)
    return tree.values[1]


def taught(directory: Path) -> Learned:
    """Thirty outcomes, all wrong, and drafts of 3 ms."""
    learned = Learned(directory, KEY, print)
    cost = learned.costs.setdefault(1, DraftCost())
    cost.learn(4, 100.0)
    for _ in range(30):
        learned.calibration.learn(guess(), [2])
        cost.learn(4, 3.0)
    learned.calibration.start_request()
    return learned


def test_what_was_learned_is_there_in_the_next_process(tmp_path: Path) -> None:
    learned = taught(tmp_path)
    learned.request_ended()
    assert list(tmp_path.iterdir()) == []
    learned.save()
    again = Learned(tmp_path, KEY, print)
    assert value(again) == value(learned) < 0.15
    assert again.costs[1].typical(4) == 3.0
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["key"] == KEY


def test_another_pair_learns_for_itself(tmp_path: Path) -> None:
    learned = taught(tmp_path)
    learned.request_ended()
    learned.save()
    assert value(Learned(tmp_path, {**KEY, "drafter": "mtp"}, print)) == pytest.approx(0.65)


def test_it_is_written_every_so_many_requests(tmp_path: Path) -> None:
    learned = taught(tmp_path)
    for _ in range(REQUESTS_PER_WRITE - 1):
        learned.request_ended()
    assert list(tmp_path.iterdir()) == []
    learned.request_ended()
    (file,) = tmp_path.iterdir()
    file.unlink()
    learned.save()  # nothing new
    assert list(tmp_path.iterdir()) == []
    learned.request_ended()
    learned.save()
    assert file.exists()


RATES = {"tried": [[0.0] * 10] * 4, "accepted": [[0.0] * 10] * 4}
GOOD = {"greedy": {"1": RATES}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "\ufffd",
        json.dumps({"calibration": GOOD}),
        json.dumps({"calibration": {"1": RATES}, "draft_ms": {}}),
        json.dumps({"calibration": 3, "draft_ms": {}}),
        json.dumps({"calibration": GOOD, "draft_ms": []}),
        json.dumps({"calibration": GOOD, "draft_ms": {"4": [1.0]}}),
        json.dumps({"calibration": GOOD, "draft_ms": {"suffix": {"4": [1.0]}}}),
        json.dumps({"calibration": GOOD, "draft_ms": {"1": {"four": [1.0]}}}),
        json.dumps({"calibration": GOOD, "draft_ms": {"1": {"4": [-1.0]}}}),
        json.dumps({"calibration": GOOD, "draft_ms": {"1": {"4": ["long"]}}}),
    ],
)
def test_a_broken_file_is_ignored_with_a_notice_and_written_anew(tmp_path: Path, text: str) -> None:
    learned = taught(tmp_path)
    learned.request_ended()
    learned.save()
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    notices: list[str] = []
    broken = Learned(tmp_path, KEY, notices.append)
    assert [str(file) in notice for notice in notices] == [True]
    assert value(broken) == pytest.approx(0.65)
    broken.request_ended()
    broken.save()
    Learned(tmp_path, KEY, notices.append)
    assert len(notices) == 1


def test_a_directory_that_cannot_be_written_is_told_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "drafters").write_text("a file where the directory should be")
    notices: list[str] = []
    learned = Learned(tmp_path / "drafters", KEY, notices.append)
    learned.request_ended()
    learned.save()
    assert len(notices) == 2
    assert "cannot be written" in notices[1]
