"""The measure of hand-over runs here too, with short leases."""

import pytest

from api.settings import Settings
from bench import handover


def test_a_small_run_hands_over(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", [handover.__name__, "--small", "--pairs", "2"])
    with pytest.raises(SystemExit) as ended:
        handover.main()
    assert not ended.value.code
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if "kill to start" in line]
    assert [row[0] for row in rows] == [f"| kill to start elsewhere, {name}" for name in ("median", "min", "max")]
    median, shortest, longest = (float(row[2]) for row in rows)
    assert 0.5 < shortest <= median <= longest < 60  # a lease of 2 s, renewed half a second before at most


def test_it_measures_the_leases_that_a_fleet_has() -> None:
    fields = Settings.model_fields
    defaults = (fields["lease_seconds"].default, fields["heartbeat_seconds"].default)
    assert (handover.FLEET.lease, handover.FLEET.heartbeat) == defaults
    assert handover.FLEET.settling == 60
