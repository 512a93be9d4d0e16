"""A model that does not fit the machine: one sentence and the exit code of an unusable model, and nothing is lost."""

from mill import Mill

SENTENCE = (
    "model {model} needs about 0.26 GB of memory (0.01 GB of weights, the rest for caches and activations), and "
    "memory_limit_gb allows it 0.20 GB; take a smaller quantization or a larger machine, or raise memory_limit_gb "
    "if there is more memory than that"
)


def test_a_worker_refuses_with_one_sentence(mill: Mill) -> None:
    mill.start_redis()
    mill.environment["CIDERMILL_MEMORY_LIMIT_GB"] = "0.2"
    done = mill.run("worker")
    assert (done.returncode, done.stdout) == (6, "")
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == f"cidermill: {SENTENCE.format(model=mill.model)}"


def test_a_run_refuses_with_its_workers_sentence_and_keeps_the_batch(mill: Mill) -> None:
    mill.environment["CIDERMILL_MEMORY_LIMIT_GB"] = "0.2"
    done = mill.run("run", mill.input([{"prompt": "A line.", "max_tokens": 2}]), "-o", "out.jsonl")
    assert (done.returncode, done.stdout) == (6, "")
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == f"cidermill: {SENTENCE.format(model=mill.model)}"
    assert [row["state"] for row in mill.requests()] == ["queued"]
    assert mill.workers() == []
