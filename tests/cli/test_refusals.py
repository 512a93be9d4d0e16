"""What cannot be used is refused with one sentence and its exit code, before a batch is made or anything is queued."""

import json
import os
import resource
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from mill import Mill, json_lines

from api.queue.server import PrivateServer

GOOD = {"prompt": "A good line.", "max_tokens": 2}


def refused(mill: Mill, *arguments: object, code: int, says: str, **options: object) -> str:
    """The sentence, once it is checked that nothing else was said or done."""
    done = mill.run(*arguments, **options)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    *details, sentence = done.stderr.splitlines()
    assert sentence.startswith("cidermill: ")
    assert says in sentence
    assert all(detail.startswith("line ") for detail in details), done.stderr
    assert mill.batches() == []
    assert PrivateServer.running(mill.data_dir) is None
    assert mill.workers() == []
    return done.stderr


# Inputs.


def written(content: bytes, name: str = "in.jsonl") -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return write


def a_folder(folder: Path) -> Path:
    (folder / "in.jsonl").mkdir()
    return folder / "in.jsonl"


BAD_INPUTS = {
    "missing": (lambda folder: folder / "in.jsonl", [], "in.jsonl: cannot be read: No such file"),
    "a folder": (a_folder, [], "in.jsonl: cannot be read: Is a directory"),
    "empty": (written(b""), [], "in.jsonl: empty_file"),
    "UTF-16": (written('{"prompt": "a"}\n'.encode("utf-16")), [], "in.jsonl: "),
    "unknown suffix": (written(b"a", "in.doc"), [], "unknown kind of file .doc"),
    "no line is good": (written(b"{\n[]\n"), ["--skip-invalid"], "2 of 2 requests are invalid, the first on line 1"),
    "unknown field": (written(b'{"prompt": "a", "max_tokns": 3}\n'), [], "max_tokns"),
    "template without a column": (written(b"text\na\n", "in.csv"), ["--template", "{txt}"], "txt"),
    "a table without a template": (written(b"text\na\n", "in.csv"), [], "--template 'Summarise: {text}'"),
    "a template for JSON lines": (written(b'{"prompt": "a"}\n'), ["--template", "{text}"], "a template goes with"),
    "parameter out of range": (written(b'{"prompt": "a"}\n'), ["--temperature", "inf"], "temperature"),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_a_bad_input(mill: Mill, name: str) -> None:
    make, options, says = BAD_INPUTS[name]
    refused(mill, "run", make(mill.folder), *options, code=1, says=says)


def test_a_broken_line_is_named_with_its_reason(mill: Mill) -> None:
    path = mill.folder / "in.jsonl"
    path.write_text(json.dumps(GOOD) + '\n{"prompt": \n{"messages": []}\n', "utf-8")
    said = refused(mill, "run", path, code=1, says="2 of 3 requests are invalid, the first on line 2")
    assert [line.partition(":")[0] for line in said.splitlines()] == ["line 2", "line 3", "cidermill"]
    assert "--skip-invalid" in said


def test_broken_lines_are_left_out_when_asked(working_mill: Mill) -> None:
    path = working_mill.folder / "in.jsonl"
    path.write_text('{"prompt": \n' + json.dumps(GOOD) + '\n{"custom_id": "x", "messages": []}\n', "utf-8")
    done = working_mill.run("run", path, "-o", "out.jsonl", "--skip-invalid")
    assert done.returncode == 3, done.stderr
    states = [(row["state"], row["line"], row["attempts"]) for row in working_mill.requests()]
    assert states == [("failed", 1, 0), ("completed", 2, 1), ("failed", 3, 0)]
    answers = json_lines((working_mill.folder / "out.jsonl").read_text("utf-8"))
    assert [answer["response"]["status_code"] for answer in answers] == [400, 200, 400]
    errors = json_lines((working_mill.folder / "out.errors.jsonl").read_text("utf-8"))
    assert [(error["line"], error["custom_id"]) for error in errors] == [(1, None), (3, "x")]
    assert "left out 2 invalid lines; see out.errors.jsonl\n" in done.stderr


# Models.


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("no-such-model", "model 'no-such-model' is not there"),
        ("smollm2@float8", "'float8' is not one of float32, bfloat16, float16"),
        ("nobody/nothing", "model nobody/nothing: not on this machine and not to be had from the hub"),
    ],
)
def test_a_model_that_is_not_to_be_had(mill: Mill, model: str, says: str) -> None:
    refused(mill, "run", mill.input([GOOD]), "--model", model, code=6, says=says)


def test_a_model_directory_without_a_model(mill: Mill) -> None:
    folder = mill.folder / "model"
    folder.mkdir()
    says = f"{folder}: no config.json there; an MLX model directory has config.json and model*.safetensors"
    refused(mill, "run", mill.input([GOOD]), "-m", folder, code=6, says=says)


def test_a_model_that_cannot_be_loaded_ends_the_run_with_the_workers_reason(mill: Mill) -> None:
    """Only the worker can tell; its batch is there, and goes on once the model is mended."""
    folder = mill.folder / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}', "utf-8")
    done = mill.run("run", mill.input([GOOD]), "-m", folder)
    assert done.returncode == 6, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"cidermill: model {folder}: mlx-lm cannot load {folder}: ")
    assert [row["state"] for row in mill.requests()] == ["queued"]
    assert PrivateServer.running(mill.data_dir) is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--drafter", "foo"], "drafter foo: model 'foo' is not there"),
        (["--drafter", "suffix:depth=4"], "drafter suffix: there is no option depth; this one has none"),
        (["--drafter", "suffix+suffix"], "each once, joined by +"),
        (["--drafter", "mtp:depth"], "'depth' is no option"),
        (["--model", "in.jsonl"], "in.jsonl: is no GGUF file"),
        (["--model", ""], "model '' has no name"),
    ],
)
def test_what_no_worker_could_do_is_refused_before_it_is_queued(mill: Mill, arguments: list[str], says: str) -> None:
    refused(mill, "run", mill.input([GOOD]), *arguments, code=6, says=says)
    assert mill.batches() == []


# Outputs.


def test_the_prompts_are_not_written_over(mill: Mill) -> None:
    prompts = mill.input([GOOD])
    before = prompts.read_bytes()
    (mill.folder / "alias.jsonl").symlink_to(prompts)
    for output in (prompts, "in.jsonl", "alias.jsonl"):
        refused(mill, "run", prompts, "-o", output, code=7, says="holds the prompts")
    assert prompts.read_bytes() == before


def unwritable(folder: Path) -> Path:
    """A folder that this user cannot write to; nothing is closed to root but what the system itself refuses."""
    if os.geteuid() == 0:
        return Path("/proc")
    (folder / "closed").mkdir(mode=0o500)
    return folder / "closed"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: folder / "nowhere" / "out.jsonl", "there is no folder"),
        (lambda folder: unwritable(folder) / "out.jsonl", "cannot be written"),
        (lambda folder: folder, "it is a folder"),
    ],
)
def test_an_output_that_cannot_be_written(mill: Mill, make: Callable[[Path], Path], says: str) -> None:
    refused(mill, "run", mill.input([GOOD]), "-o", make(mill.folder), code=7, says=says)


def test_a_full_disk_at_delivery_leaves_nothing_half_done(working_mill: Mill) -> None:
    """The batch was generated; the same command delivers it once there is room."""
    mill = working_mill
    bad = [{"custom_id": f"{number:0500}", "messages": []} for number in range(100)]
    command = ["run", mill.input([GOOD, *bad]), "-o", "out.jsonl", "--skip-invalid"]
    assert mill.run(*command).returncode == 3
    delivered = (mill.folder / "out.jsonl").read_bytes()
    before = mill.requests()
    (mill.folder / "out.jsonl").write_text("an older file", "utf-8")
    with sqlite3.connect(mill.data_dir / "ledger.sqlite3") as ledger:
        ledger.execute("UPDATE batches SET delivered_at = NULL")
    ledger.close()
    limit = 65536  # more than SQLite needs to read, less than the answers
    assert len(delivered) > limit
    full = mill.run(*command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert full.returncode == 7, full.stderr
    batch_id = before[0]["batch_id"]
    assert "Traceback" not in full.stderr
    assert full.stderr.endswith(f"the ledger has the answers: cidermill results {batch_id} -o FILE\n")
    assert (mill.folder / "out.jsonl").read_text("utf-8") == "an older file"
    assert list(mill.folder.glob(".out.jsonl*")) == []
    again = mill.run(*command)
    assert again.returncode == 3, again.stderr
    assert (mill.folder / "out.jsonl").read_bytes() == delivered
    assert mill.requests() == before


# Redis.


@pytest.mark.parametrize("command", [["run", "in.jsonl"], ["submit", "in.jsonl"], ["worker"], ["record"]])
def test_no_redis_at_the_url(mill: Mill, command: list[str]) -> None:
    mill.input([GOOD])
    url = f"unix://{mill.folder}/closed.sock"
    refused(mill, *command, "--redis", url, code=4, says=f"Redis at {url} does not answer")


@pytest.mark.parametrize("command", [["submit", "in.jsonl"], ["worker"], ["record"]])
def test_no_redis_is_configured(mill: Mill, command: list[str]) -> None:
    mill.input([GOOD])
    refused(mill, *command, code=4, says="no Redis is configured; give --redis URL or set CIDERMILL_REDIS_URL")


def test_a_submission_for_a_model_that_cannot_be(mill: Mill) -> None:
    """The model need not be on the producer's machine, but no worker has a type that does not exist."""
    mill.start_redis()
    refused(mill, "submit", mill.input([GOOD]), "-m", "smollm2@int3", code=6, says="'int3' is not one of")


def test_a_worker_for_a_model_that_nobody_asked_for(mill: Mill) -> None:
    mill.start_redis()
    submitted = mill.run("submit", mill.input([GOOD, GOOD]), "-m", "somebody/else")
    assert submitted.returncode == 0, submitted.stderr
    done = mill.run("worker")
    assert (done.returncode, done.stdout) == (8, "")
    assert done.stderr == (
        f"cidermill: no request waits for {mill.model}; requests wait for somebody/else (2): "
        "start with --model for one of these, or with --wait to wait all the same\n"
    )


def test_a_run_that_nobody_could_answer(mill: Mill) -> None:
    done = mill.run("run", mill.input([GOOD]), "--no-worker")
    assert done.returncode == 2
    assert "without --redis nobody else could answer" in done.stderr
    assert mill.batches() == []


# The ledger and its folder.


def test_a_ledger_of_a_newer_program(mill: Mill) -> None:
    assert mill.run("status").returncode == 0
    path = mill.data_dir / "ledger.sqlite3"
    with sqlite3.connect(path) as ledger:
        ledger.execute("UPDATE alembic_version SET version_num = '9999'")
    ledger.close()
    says = f"ledger {path} was written by a newer cidermill (revision 9999); upgrade cidermill"
    for command in (["run", mill.input([GOOD])], ["status"]):
        refused(mill, *command, code=5, says=says)


def test_a_ledger_that_is_no_database(mill: Mill) -> None:
    mill.data_dir.mkdir()
    path = mill.data_dir / "ledger.sqlite3"
    path.write_text("This is a text, and a long one.\n" * 100, "utf-8")
    done = mill.run("run", mill.input([GOOD]))
    assert (done.returncode, done.stdout) == (5, "")
    says = "is not a ledger: it is not an SQLite database; move it away or choose another data_dir"
    assert done.stderr == f"cidermill: {path} {says}\n"


def test_a_data_directory_that_is_a_file(mill: Mill) -> None:
    mill.data_dir.write_text("", "utf-8")
    done = mill.run("run", mill.input([GOOD]))
    assert (done.returncode, done.stdout) == (7, "")
    assert done.stderr.startswith(f"cidermill: data directory {mill.data_dir} cannot be used: ")


# Names.


UNKNOWN = "batch_01AAAAAAAAAAAAAAAAAAAAAAAA"


@pytest.mark.parametrize(
    "command", [["status", UNKNOWN], ["show", f"{UNKNOWN}-0"], ["results", UNKNOWN], ["stats"], ["cancel", UNKNOWN]]
)
def test_an_unknown_name(mill: Mill, command: list[str]) -> None:
    refused(mill, *command, code=8, says=UNKNOWN if len(command) > 1 else "there is no batch in this ledger yet")


def test_wrong_usage(mill: Mill) -> None:
    for command in (["run"], ["status", "--no-such"], ["run", "in.jsonl", "--format", "xml"], ["frobnicate"]):
        done = mill.run(*command)
        assert (done.returncode, done.stdout) == (2, "")
        assert "Traceback" not in done.stderr
