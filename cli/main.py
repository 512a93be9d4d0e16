"""`cidermill`: the application, its commands, and how an error ends it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from api.errors import CidermillError, ExitCode
from cli.commands import batches, fleet, history, machine, running, server, tuning, workers
from cli.interrupt import Interrupted, raise_on_signals
from cli.log import complain, log_printably

EXIT_CODES = """Exit codes: 0 done; 1 input refused; 2 wrong usage; 3 some requests failed; 4 no Redis;
5 ledger unusable; 6 model unusable; 7 a file cannot be written; 8 not found; 9 texts differ; 130 interrupted."""

app = typer.Typer(
    name="cidermill",
    help="Batch text generation on a fleet of Macs: a job queue whose workers decode speculatively, and exactly.\n\n"
    "One machine: cidermill run prompts.jsonl -o out.jsonl",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(asked: bool) -> None:
    if asked:
        from api import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def cidermill(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


for module in (running, batches, history, fleet, workers, server, machine, tuning):
    module.register(app)


def main() -> None:
    """Run the command line; a CidermillError becomes one sentence on stderr and its exit code."""
    raise_on_signals()
    log_printably()
    try:
        app()
    except CidermillError as error:
        for line in error.details:
            complain(line)
        if error.untold:
            complain(f"... and {error.untold} more")
        complain(f"cidermill: {error}")
        sys.exit(error.exit_code)
    except Interrupted:
        complain("cidermill: interrupted")
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:
        if not _is_of_redis(error):
            raise
        complain(f"cidermill: {_redis_failure(error)}")
        sys.exit(ExitCode.QUEUE_UNAVAILABLE)


def _is_of_redis(error: Exception) -> bool:
    """Whether Redis left, or refused something, in the middle of a command. Not every command has imported it."""
    redis = sys.modules.get("redis")
    return redis is not None and isinstance(error, redis.exceptions.RedisError)


def _redis_failure(error: Exception) -> str:
    if "permission" in str(error).lower():  # NOPERM, whose code redis-py leaves out
        return (
            f"this user of Redis may not do that ({error}); give the URL of the user for this command: "
            "worker, producer or coordinator (deploy/redis/README.md)"
        )
    return f"Redis failed ({error}); when it is well again, run the command again"


if __name__ == "__main__":
    main()
