"""The measures of the queue run here too, on few requests."""

import pytest

from bench import queue_scale


def test_a_small_run_measures_everything(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", [queue_scale.__name__, "--small"])
    with pytest.raises(SystemExit) as ended:
        queue_scale.main()
    assert not ended.value.code
    printed = capsys.readouterr().out
    for line in [
        "| submit | 20 |",
        "| submit | 200 |",
        "| submit: until the end of queueing | 200 |",
        "| submit: another writer of the ledger waits at most | 200 |",
        "| submit: the server's peak | 200 |",
        "| cancel | 200 |",
        "| refuse: a file without a good line | 200 |",
        "| overhead: round trips to Redis | 20 | 7.00 |",
        "| overhead: end of a request to start of the next, median | 20 |",
        "| record: results from the stream into the ledger | 200 |",
        "| batches: the query | 500 |",
        "| batch: the query | 500 |",
        "| stats: the query | 500 |",
        "| status: processor time of the command, without imports | 500 |",
        "| stats: from the start of Python to its end | 500 |",
        "| results: peak memory | 200 |",
    ]:
        assert printed.count(line) == 2  # as it comes, and in the table at the end
