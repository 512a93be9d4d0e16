"""The benches of kernels run here too, on problems that are small enough."""

from types import ModuleType

import pytest

from bench import attention, hybrid_passes, sampling


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
