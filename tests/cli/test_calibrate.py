"""`calibrate` measures the costs of passes and drafts again, shows them, and keeps them."""

import json
from pathlib import Path

import pytest
from mill import Mill, json_lines

from cli import cost_view
from cli.cost_plot import cost_plot
from cli.cost_view import PLOT_TITLE, show_costs, summary
from cli.prompts import shipped_prompts


def stored(mill: Mill, folder: str) -> list[Path]:
    return sorted((mill.data_dir / folder).glob("*.json"))


def test_it_measures_again_and_keeps_what_it_shows(mill: Mill) -> None:
    mill.environment["CIDERMILL_MAX_TREE_NODES"] = "4"
    done = mill.run("calibrate")
    assert done.returncode == 0, done.stderr
    rows = json_lines(done.stdout)
    passes = [row for row in rows if row["measured"] == "pass"]
    drafts = [row for row in rows if row["measured"] == "draft"]
    assert [row["nodes"] for row in passes] == [1, 2, 3, 4]
    assert passes[0]["ratio"] == 1
    assert [row["ratio"] for row in passes] == sorted(row["ratio"] for row in passes)
    assert all(row["model"] == mill.model and row["quantization"] == "float32" and row["chip"] for row in rows)
    assert drafts
    assert all((row["drafter"], row["passes"]) == ("suffix", 1) and row["milliseconds"] > 0 for row in drafts)
    (profile,) = stored(mill, "profiles")
    curve = json.loads(profile.read_text())["curve"]
    assert [round(milliseconds, 4) for milliseconds in curve["milliseconds"]] == [row["milliseconds"] for row in passes]
    assert len(stored(mill, "drafters")) == 1
    # The next process goes by what is stored; `calibrate` does not.
    curve["milliseconds"] = [1e6, 1e6, 1e6, 1e6]
    profile.write_text(json.dumps(json.loads(profile.read_text()) | {"curve": curve}))
    again = mill.run("calibrate")
    assert all(row["milliseconds"] < 1e6 for row in json_lines(again.stdout))
    assert json.loads(profile.read_text())["curve"] != curve


def test_a_model_that_is_not_there(mill: Mill) -> None:
    done = mill.run("calibrate", "--model", "nowhere")
    assert (done.returncode, done.stdout) == (6, "")
    assert "'nowhere' is not there" in done.stderr


FACTS = {"model": "m", "quantization": "4 bit in groups of 64", "verification": "tree", "chip": "Apple M5"}
FACTS |= {"power": "normal", "mlx": "0.32.4", "kernels": "stock"}


def test_people_get_a_table_and_a_plot(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cost_view, "piped", lambda: False)
    monkeypatch.setattr("cli.output.piped", lambda: False)
    monkeypatch.setenv("COLUMNS", "100")
    passes = [
        {"nodes": 1, "milliseconds": 20.0, "ratio": 1.0, **FACTS},
        {"nodes": 8, "milliseconds": 30.0, "ratio": 1.5, **FACTS},
    ]
    show_costs(passes, [])
    shown = capsys.readouterr().out
    assert "m (4 bit in groups of 64), verified in tree mode" in shown
    assert "Apple M5, power normal" in shown
    lines = shown.splitlines()
    assert [line.split() for line in lines[3:6]] == [
        ["nodes", "ms", "passes", "over", "one", "node"],
        ["1", "20.00", "1.00"],
        ["8", "30.00", "1.50"],
    ]
    assert lines[7] == PLOT_TITLE
    assert "\n".join(lines[8:]) == cost_plot([(1, 1.0), (8, 1.5)], 100)
    assert max(map(len, lines)) <= 100


def test_a_curve_of_one_point_has_no_plot(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cost_view, "piped", lambda: False)
    monkeypatch.setattr("cli.output.piped", lambda: False)
    show_costs([{"nodes": 1, "milliseconds": 20.0, "ratio": 1.0, **FACTS}], [])
    assert PLOT_TITLE not in capsys.readouterr().out


DRAFTS = [
    {"passes": 1, "milliseconds": 0.5, "ratio": 0.01, "drafts": 3, "drafter": "mtp"},
    {"passes": 4, "milliseconds": 4.0, "ratio": 0.0816, "drafts": 5, "drafter": "mtp"},
    {"passes": 5, "milliseconds": 3.0, "ratio": 0.06, "drafts": 1, "drafter": "mtp"},
    {"passes": 1, "milliseconds": 0.25, "ratio": 0.005, "drafts": 2, "drafter": "suffix"},
]


def test_drafts_are_summed_up_by_the_cheapest_and_the_dearest() -> None:
    said = {"drafter": "mtp", "drafts": 9, "milliseconds": "0.50 (1 pass) to 4.00 (4 passes)", "ratio": "8.2%"}
    assert summary(DRAFTS[:3]) == said
    assert summary(DRAFTS[3:])["milliseconds"] == "0.25 (1 pass)"


def test_each_drafter_has_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cost_view, "piped", lambda: False)
    monkeypatch.setattr("cli.output.piped", lambda: False)
    monkeypatch.setenv("COLUMNS", "100")
    show_costs([{"nodes": 1, "milliseconds": 50.0, "ratio": 1.0, **FACTS}], DRAFTS)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-3:]] == ["drafter", "mtp", "suffix"]
    assert max(map(len, lines)) <= 100


def test_the_prompts_that_come_with_the_program_are_of_two_kinds() -> None:
    prompts = shipped_prompts(max_tokens=7)
    assert [prompt.kind for prompt in prompts] == ["structured"] * 3 + ["open"] * 3
    assert all((prompt.request.temperature, prompt.request.max_tokens) == (0, 7) for prompt in prompts)
