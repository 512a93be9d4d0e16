"""What a worker says of a derivative's recipe as it loads: a line of its log, which `run` repeats."""

import json
import shutil
from pathlib import Path

from mill import Mill


def test_a_worker_says_which_values_may_be_the_base_models(mill: Mill, tiny_model: Path) -> None:
    directory = mill.folder / "derivative"
    shutil.copytree(tiny_model, directory)
    (directory / "README.md").write_text("---\nbase_model: org/base\n---\n", "utf-8")
    (directory / "generation_config.json").write_text(json.dumps({"temperature": 1.0, "top_k": 20}), "utf-8")
    # The worker ends before it reads the weights, and has said by then what it has to say.
    mill.environment["CIDERMILL_MEMORY_LIMIT_GB"] = "0.001"
    done = mill.run("run", mill.input([{"prompt": "A line."}]), "--model", directory, "-o", "out.jsonl")
    assert done.returncode == 6
    log = (mill.data_dir / "logs" / "worker.log").read_text("utf-8")
    notice = (
        f"{directory / 'README.md'}: this model is derived from org/base, and generation_config.json gives temperature "
        "1.0, top_k 20: perhaps the base model's values; where they are wrong, give others with --profile"
    )
    assert notice in log.splitlines()
