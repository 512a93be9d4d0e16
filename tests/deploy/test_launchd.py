"""The property lists for launchd: their command lines are cidermill's, and they hold no secret."""

import plistlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from api.settings import Settings
from cli.main import app
from worker.process import GRACE_SECONDS

FOLDER = Path(__file__).parents[2] / "deploy" / "launchd"
FILES = sorted(FOLDER.glob("*.plist"))
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def job(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        found: dict[str, Any] = plistlib.load(file)
    return found


def texts(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in texts(part)]
    if isinstance(value, list):
        return [text for part in value for text in texts(part)]
    return [str(value)]


def parse(words: list[str]) -> None:
    name, *arguments = words
    COMMANDS[name].make_context(name, arguments)


def test_there_is_one_for_a_worker_and_one_for_the_recorder() -> None:
    assert [(path.name, job(path)["ProgramArguments"][1]) for path in FILES] == [
        ("cidermill.record.plist", "record"),
        ("cidermill.worker.plist", "worker"),
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_command_line_and_the_environment_are_cidermills(path: Path) -> None:
    found = job(path)
    program, *arguments = found["ProgramArguments"]
    assert Path(program).is_absolute()  # launchd searches nowhere, and knows no ~
    assert Path(program).name == "cidermill"
    parse(arguments)
    settings = {f"CIDERMILL_{name.upper()}" for name in Settings.model_fields}
    assert found["EnvironmentVariables"].keys() <= settings
    assert found["Label"] == path.stem


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_stopped_in_good_order_and_stays_down_when_drained(path: Path) -> None:
    found = job(path)
    assert found["ExitTimeOut"] > GRACE_SECONDS
    assert found["KeepAlive"] == {"SuccessfulExit": False}
    assert found["ProcessType"] != "Background"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_names_a_file_with_the_url_and_holds_none(path: Path) -> None:
    found = job(path)
    assert list(found["EnvironmentVariables"]) == ["CIDERMILL_REDIS_URL_FILE"]
    assert not any("://" in text for text in texts(found))
    assert "--redis" not in found["ProgramArguments"]


def test_commands_of_the_page_parse() -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    found = re.findall(r"^cidermill .+$", page, re.MULTILINE) + re.findall(r"`(cidermill [^`]+)`", page)
    assert len(found) >= 5
    for line in found:
        parse(shlex.split(line)[1:])


def test_the_page_names_every_key_that_has_to_be_changed() -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    for path in FILES:
        for word in set(re.findall(r"\b[A-Z]{4,}\b", " ".join(job(path)["ProgramArguments"]))):
            assert f"s|{word}|" in page
