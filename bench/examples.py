"""The example prompts as engine requests."""

from pathlib import Path

from api.dataset.reader import Dataset, InputLine
from api.schemas import GenerationRequest

EXAMPLES = Path(__file__).parent.parent / "examples"
FILES = ("batch.jsonl", "short.jsonl", "prompts.txt", "demo.jsonl")
SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "seed")


def example_requests(files: tuple[str, ...] = FILES, **values: object) -> list[tuple[str, GenerationRequest]]:
    """(kind, request) of every example; `values` replace the line's own sampling fields."""
    requests = []
    for name in files:
        dataset = Dataset(EXAMPLES / name, template=None, defaults={}, max_line_bytes=2**20)
        for line in dataset:
            assert isinstance(line, InputLine), line
            body = line.body.model_dump(exclude_none=True, exclude=set(SAMPLING_FIELDS))
            kind = line.custom_id.partition("-")[0]
            kind = kind if kind in ("copy", "code", "chat") else "chat"
            identity = f"{Path(name).stem}-{line.line}"
            requests.append((kind, GenerationRequest.model_validate({**body, **values, "request_id": identity})))
    return requests
