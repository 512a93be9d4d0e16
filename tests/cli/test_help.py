"""Every command explains itself, and its example is a command line that parses."""

import re
import shlex

import pytest
import typer
from mill import Mill

from api.errors import ExitCode
from cli.main import EXIT_CODES, app

TOP = typer.main.get_command(app).commands  # type: ignore[attr-defined]
BELOW = {
    f"{name} {below}": command
    for name, group in TOP.items()
    for below, command in getattr(group, "commands", {}).items()
}
COMMANDS = TOP | BELOW
EXAMPLE = "Example: "


def example(name: str) -> list[str]:
    """The words of a command's example after its environment variables."""
    epilog = COMMANDS[name].epilog
    assert epilog.startswith(EXAMPLE), f"{name} has no example"
    words = shlex.split(epilog.removeprefix(EXAMPLE))
    return words[next(index for index, word in enumerate(words) if "=" not in word) :]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_parses(name: str) -> None:
    program, *words = example(name)
    depth = len(name.split())
    assert (program, " ".join(words[:depth])) == ("cidermill", name)
    arguments = words[depth:]
    # An unknown option, a missing argument, a choice that does not exist or a word too many raises.
    with COMMANDS[name].make_context(name, arguments) as context:
        assert context.args == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_and_each_of_its_parameters_have_a_sentence(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    assert command.help.partition("\n")[0].endswith((".", ":"))
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            assert parameter.help, f"{name}: {parameter.name}"


@pytest.mark.parametrize("name", ["run", "worker", "worker drain"])
def test_help_is_shown_with_the_example(name: str, mill: Mill) -> None:
    arguments = example(name)[1:]
    done = mill.run(*arguments, "--help")
    assert done.returncode == 0
    assert "Usage: " in done.stdout
    assert EXAMPLE in done.stdout
    assert "--stop-with-parent" not in done.stdout


def test_without_arguments_the_commands_are_listed(mill: Mill) -> None:
    done = mill.run()
    shown = done.stdout + done.stderr
    assert all(re.search(rf"^  {name} +\S", shown, re.M) for name in TOP)
    assert not mill.data_dir.exists()


def test_every_exit_code_is_in_the_help(mill: Mill) -> None:
    done = mill.run("--help")
    assert done.returncode == 0
    assert " ".join(EXIT_CODES.split()) in " ".join(done.stdout.split())
    named = re.findall(r"(?:: |; )(\d+) ", " ".join(EXIT_CODES.split()))
    assert [int(code) for code in named] == sorted(int(code) for code in ExitCode)


def test_the_version_is_that_of_the_package(mill: Mill) -> None:
    from importlib.metadata import version

    done = mill.run("--version")
    assert (done.returncode, done.stdout) == (0, f"{version('cidermill')}\n")
