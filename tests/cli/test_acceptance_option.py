"""The acceptance rule of a batch: from a flag or a setting, through the requests, to the ledger."""

from mill import Mill, Row, json_lines

PROMPTS: list[Row] = [
    {"custom_id": "open", "prompt": "Say something.", "max_tokens": 24, "temperature": 1, "seed": 1},
    {"custom_id": "own", "prompt": "Say more.", "max_tokens": 24, "temperature": 1, "acceptance": "lossless"},
]
NO_RULE = '"strict" is no acceptance rule: "lossless", or "ratio:theta=0.3" with theta from 0 to 1\n'


def test_the_flag_is_for_the_lines_that_name_no_rule(working_mill: Mill) -> None:
    mill = working_mill
    mill.environment["CIDERMILL_ACCEPTANCE"] = "ratio:theta=0.1"
    done = mill.run("run", mill.input(PROMPTS), "--acceptance", "ratio:theta=0.25", "-o", "out.jsonl")
    assert done.returncode == 0, done.stderr
    rows = mill.requests()
    assert [row["acceptance_rule"] for row in rows] == ["ratio:theta=0.25", "lossless"]
    assert rows[1]["forced_tokens"] == 0


def test_submit_takes_the_rule_of_the_settings(mill: Mill) -> None:
    mill.start_redis()
    mill.environment["CIDERMILL_ACCEPTANCE"] = "ratio:theta=0.1"
    done = mill.run("submit", mill.input(PROMPTS))
    assert done.returncode == 0, done.stderr
    rules = [json_lines(row["body"])[0]["acceptance"] for row in mill.requests()]
    assert rules == ["ratio:theta=0.1", "lossless"]


def test_another_rule_is_refused_where_it_was_given(mill: Mill) -> None:
    done = mill.run("run", mill.input(PROMPTS), "--acceptance", "strict")
    assert (done.returncode, done.stderr) == (1, f"cidermill: setting acceptance (flag): {NO_RULE}")
    mill.environment["CIDERMILL_ACCEPTANCE"] = "strict"
    done = mill.run("run", mill.input(PROMPTS))
    assert (done.returncode, done.stderr) == (1, f"cidermill: setting acceptance (environment): {NO_RULE}")
