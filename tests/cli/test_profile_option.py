"""Named sampling values: read by the producer, carried by each request, and kept by a batch that is resumed."""

import json
from pathlib import Path

import pytest
from mill import Mill, Row, json_lines

from api.queue.connection import connect

REASONING = (
    "[profiles.reasoning]\n"
    "temperature = 1.0\n"
    "top_p = 0.9\n"
    "frequency_penalty = 0.5\n"
    "logit_bias = { 42 = 2.5 }\n"
    "[profiles.plain]\n"
    "temperature = 0\n"
)
PROMPTS: list[Row] = [
    {"custom_id": "open", "prompt": "Say something.", "max_tokens": 12, "seed": 3, "ignore_eos": True},
    {"custom_id": "own", "prompt": "Say more.", "max_tokens": 12, "seed": 3, "ignore_eos": True, "temperature": 0.25},
]


def config_file(mill: Mill, text: str) -> Path:
    path = Path(mill.environment["HOME"]) / ".config" / "cidermill" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def sampling_of(row: Row) -> dict[str, tuple[object, str]]:
    return {name: (value["value"], value["source"]) for name, value in json.loads(row["sampling"]).items()}


def check_sampling(rows: list[Row]) -> None:
    open_line, own_line = map(sampling_of, rows)
    assert (open_line["temperature"], own_line["temperature"]) == ((1.0, "profile"), (0.25, "request"))
    for line in (open_line, own_line):
        assert (line["top_p"], line["frequency_penalty"]) == ((0.9, "profile"), (0.5, "profile"))
        assert line["top_k"] == (0, "default")


def test_a_run_answers_by_the_profile_and_by_a_lines_own_values(working_mill: Mill) -> None:
    mill = working_mill
    config_file(mill, REASONING)
    done = mill.run("run", mill.input(PROMPTS), "--profile", "reasoning", "-o", "out.jsonl")
    assert done.returncode == 0, done.stderr
    check_sampling(mill.requests())


def test_a_batch_keeps_the_producers_values(working_mill: Mill) -> None:
    """Neither a worker without the profile, nor an edit of the file before `resume`, changes a batch."""
    mill = working_mill
    redis = connect(mill.start_redis())
    path = config_file(mill, REASONING)
    done = mill.run("submit", mill.input(PROMPTS), "--profile", "reasoning")
    assert done.returncode == 0, done.stderr
    path.write_text("[profiles.reasoning]\ntemperature = 0.125\n", "utf-8")
    redis.flushall()
    resumed = mill.run("resume", "latest")
    assert "2 requests of" in resumed.stderr
    path.unlink()
    mill.start("record")
    mill.start("worker")
    rows = [mill.wait_for_state(index, "completed") for index in range(2)]
    check_sampling(rows)
    shown = mill.run("show", rows[0]["id"])
    (record,) = json_lines(shown.stdout)
    assert record["body"]["profile"]["name"] == "reasoning"


# What is refused, and what is shown.


def refused(mill: Mill, *arguments: object) -> str:
    done = mill.run(*arguments)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert done.stderr.startswith("cidermill: ")
    assert done.stderr.count("\n") == 1
    assert mill.batches() == []
    return done.stderr.removeprefix("cidermill: ").rstrip("\n")


def test_an_unknown_profile_lists_those_there_are(mill: Mill) -> None:
    path = config_file(mill, REASONING)
    assert refused(mill, "run", mill.input(PROMPTS), "--profile", "resoning") == (
        f"no profile 'resoning'; there are plain, reasoning (a profile is a table [profiles.NAME] in {path})"
    )


def test_without_any_profile_the_file_is_named(mill: Mill) -> None:
    path = config_file(mill, "")
    assert refused(mill, "run", mill.input(PROMPTS), "--profile", "reasoning") == (
        f"no profile 'reasoning'; there are none (a profile is a table [profiles.NAME] in {path})"
    )


@pytest.mark.parametrize(
    ("values", "field", "says"),
    [
        ("top_p = 1.5", "top_p", "1.5 is not at most 1"),
        ('temperature = "hot"', "temperature", 'number expected, found "hot"'),
        ("top_k = 20.5", "top_k", "integer expected, found 20.5"),
        ("temperature = inf", "temperature", "finite number expected, found Infinity"),
        ('reasoning_effort = "huge"', "reasoning_effort", '"huge" is not "none", "minimal", "low", "medium" or "high"'),
        ("logit_bias = { a = 1 }", "logit_bias", "a key is not a token id"),
        ("temprature = 1.0", "temprature", "a profile has no such value; it has temperature, top_p, top_k, "),
        ("max_tokens = 10", "max_tokens", "a profile has no such value"),
        ('name = "other"', "name", "a profile has no such value"),
    ],
)
def test_a_bad_value_is_named_with_profile_and_file(mill: Mill, values: str, field: str, says: str) -> None:
    path = config_file(mill, f"[profiles.reasoning]\n{values}\n")
    assert refused(mill, "config").startswith(f"setting profiles.reasoning.{field} ({path}): {says}")


def test_a_profile_that_is_no_table(mill: Mill) -> None:
    path = config_file(mill, "[profiles]\ntemperature = 1.0\n")
    assert refused(mill, "config") == (
        f"setting profiles.temperature ({path}): object expected, found 1.0; a profile is a table [profiles.NAME]"
    )


def test_profiles_of_the_environment_are_json(mill: Mill) -> None:
    mill.environment["CIDERMILL_PROFILES"] = "reasoning"
    assert refused(mill, "config") == (
        "setting profiles (environment): is not JSON (expecting value); "
        'it goes like {"reasoning": {"temperature": 1.0}}'
    )
    mill.environment["CIDERMILL_PROFILES"] = '{"a": {"top_k": 5}}'
    rows = {row["name"]: row for row in json_lines(mill.run("config").stdout)}
    assert (rows["profiles"]["value"], rows["profiles"]["source"]) == ('a: {"top_k":5}', "environment")


def test_config_shows_the_profiles(mill: Mill) -> None:
    path = config_file(mill, REASONING)
    rows = {row["name"]: row for row in json_lines(mill.run("config").stdout)}
    assert rows["profiles"]["source"] == str(path)
    assert rows["profiles"]["value"].splitlines() == [
        'reasoning: {"temperature":1.0,"top_p":0.9,"frequency_penalty":0.5,"logit_bias":{"42":2.5}}',
        'plain: {"temperature":0.0}',
    ]


def test_a_line_cannot_choose_a_profile(mill: Mill) -> None:
    config_file(mill, REASONING)
    path = mill.input([{"prompt": "a", "profile": "reasoning"}])
    assert refused(mill, "run", path) == (
        f"{path}: 1 of 1 requests is invalid, on line 1: profile: a line cannot choose one; give --profile NAME, or "
        "the values here; mend it"
    )
