"""The parts of an order: what `run` and `submit` are asked to do with a file of prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from api.errors import InputError
from cli.options import canonical_model
from cli.output import counted

if TYPE_CHECKING:
    from api.choices import Format
    from api.dataset.reader import Dataset, LineError
    from cli.options import Workspace


def error_writer(path: Path, say: Callable[[str], None]) -> Callable[[Iterable[LineError]], None]:
    """Writes skipped lines to `path`, and says so."""

    def write(errors: Iterable[LineError]) -> None:
        from api.dataset.writer import write_errors

        count = write_errors(errors, path)
        say(f"left out {counted(count, 'invalid line')}; see {path}")

    return write


def dataset_of(
    workspace: Workspace, path: Path, template: str | None, profile: str | None, defaults: dict[str, Any]
) -> Dataset:
    """The dataset at `path`; parameters that were given on the command line fill in where a line has none.

    profile: name of a profile of the settings, whose values travel with every request.
    """
    from api.dataset.reader import Dataset

    given = {name: value for name, value in defaults.items() if value is not None}
    if profile is not None:
        given["profile"] = workspace.settings.profile(profile).model_dump(mode="json", exclude_none=True)
    return Dataset(path, template, given, workspace.settings.max_line_bytes)


def output_file(asked: Path | None, input_path: Path, output_format: Format) -> Path | None:
    """Where the answers go: what was asked for, None for standard output, else a name made of the input's."""
    if asked is not None:
        return None if str(asked) == "-" else asked
    suffix = {"openai": "jsonl", "jsonl": "jsonl", "text": "txt"}.get(output_format, output_format)
    return Path(f"out.{suffix}" if str(input_path) == "-" else f"{input_path.stem}.out.{suffix}")


def error_file(output: Path | None, input_path: Path) -> Path:
    """Where skipped lines go: beside the answers, else named after the input."""
    from api.dataset.writer import default_error_path

    return default_error_path(output or Path("out.jsonl" if str(input_path) == "-" else input_path.name))


def model_of(dataset: Dataset, flag: str | None, setting: str) -> str:
    """The model of a batch: the flag's, else the one that the lines name, else the setting's.

    A file written for another service names that service's model in every line; the flag then says what to run.
    """
    if flag is not None:
        return canonical_model(flag)
    from api.dataset.reader import InputLine

    named = sorted({line.body.model for line in dataset if isinstance(line, InputLine) and line.body.model})
    if len(named) > 1:
        raise InputError(
            f"{dataset.path} names {len(named)} models ({', '.join(named[:4])}), and one batch has one model; "
            "choose it with --model, or split the file"
        )
    return canonical_model(named[0]) if named else setting
