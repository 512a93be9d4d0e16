"""Several answers per prompt, from the command line to the output."""

import json

import pytest
from mill import Mill, Row, json_lines

PROMPTS: list[Row] = [
    {"custom_id": "asks for none", "prompt": "Say something.", "max_tokens": 6, "ignore_eos": True, "seed": 1},
    {"custom_id": "asks for one", "prompt": "Say more.", "max_tokens": 6, "ignore_eos": True, "n": 1},
]


def test_n_is_for_the_lines_that_name_none(working_mill: Mill) -> None:
    mill = working_mill
    done = mill.run("run", mill.input(PROMPTS), "--n", "3", "--temperature", "1", "-o", "out.jsonl")
    assert done.returncode == 0, done.stderr
    several, one = json_lines((mill.folder / "out.jsonl").read_text("utf-8"))
    choices = several["response"]["body"]["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in choices}) == 3
    assert several["response"]["body"]["usage"]["completion_tokens"] == 18
    assert len(one["response"]["body"]["choices"]) == 1
    row, _ = mill.requests()
    further = json.loads(row["further_choices"])
    assert [choice["text"] for choice in further] == [choice["message"]["content"] for choice in choices[1:]]
    (shown,) = json_lines(mill.run("show", row["id"]).stdout)
    assert len(shown["result"]["further_choices"]) == 2
    again = mill.run("results", "latest", "--format", "csv")
    assert again.stdout.count('"asks for none"') == 3


@pytest.mark.parametrize("number", ["0", "129", "abc"])
def test_a_number_of_choices_out_of_range_is_wrong_usage(mill: Mill, number: str) -> None:
    done = mill.run("run", mill.input(PROMPTS), "--n", number)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Invalid value for '--n'" in done.stderr
    assert mill.batches() == []


def test_the_help_tells_the_range(mill: Mill) -> None:
    assert "[1<=x<=128]" in mill.run("run", "--help").stdout
