"""A worker process with the scripted engine, for tests that kill it.

Arguments: a JSON object of settings, a JSON object of arguments of `serve`, seconds per token.
"""

import json
import logging
import sys
from pathlib import Path

from api.settings import load_settings
from tests.worker.scripted_engine import ScriptedEngine
from worker.process import serve


def main() -> None:
    settings_text, arguments_text, seconds_per_token, log = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    arguments = json.loads(arguments_text)
    settings = load_settings(**json.loads(settings_text))
    serve(
        settings,
        lambda: ScriptedEngine(
            seconds_per_token=float(seconds_per_token), log=Path(log), machine=arguments.get("host", "")
        ),
        **arguments,
    )


if __name__ == "__main__":
    main()
