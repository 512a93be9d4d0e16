"""The benches of kernels run here too, on problems that are small enough."""

from types import ModuleType
from typing import Any

import pytest

from bench import attention, hybrid_passes, pass_pieces, sampling
from worker.engine.verify.verifier import Verifier


@pytest.mark.parametrize(
    ("bench", "lines"),
    [
        (attention, [f"| 4/2 x 64 | {context} | {nodes} |" for context in (40, 300) for nodes in (1, 5)]),
        (sampling, [f"| 3001 | {rows} | {setting} | 20 |" for rows in (1, 4) for setting in sampling.SETTINGS]),
        (hybrid_passes, [f"| {context} | {nodes} |" for context in (16, 300) for nodes in (1, 2, 5)]),
    ],
    ids=lambda value: value.__name__ if isinstance(value, ModuleType) else "",
)
def test_a_small_run_prints_its_table(
    bench: ModuleType, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [bench.__name__, "--small"])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert not ended.value.code
    printed = capsys.readouterr().out
    for line in lines:
        assert printed.count(line) == 2  # as it comes, and in the table at the end


def test_passes_in_pieces(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--small", "--rounds", "1", "--context", "16", "--blocks", "0", "2", "--nodes", "1", "3"]
    monkeypatch.setattr("sys.argv", ["bench.pass_pieces", *arguments])
    made: list[int] = []

    def verifier(*of: Any, most_blocks: int, **options: Any) -> Verifier:
        made.append(most_blocks)
        return Verifier(*of, most_blocks=most_blocks, **options)

    monkeypatch.setattr(pass_pieces, "Verifier", verifier)
    pass_pieces.main()
    assert made == [0, 2]
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [line[:2] for line in lines] == [["| 0", "1"], ["| 0", "3"], ["| 2", "1"], ["| 2", "3"]]
    for one, three in (lines[:2], lines[2:]):
        assert one[4] == "1.00 |"
        assert float(three[4].removesuffix(" |")) == pytest.approx(float(three[2]) / float(one[2]), rel=0.05)
