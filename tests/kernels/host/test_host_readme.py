"""The page on the host emulator holds: its example runs, its table names every module."""

import re
from pathlib import Path

import mlx.core as mx

from kernels import host

FOLDER = Path(host.__file__).parent
PAGE = (FOLDER / "README.md").read_text("utf-8")


def test_the_example_gives_what_it_says() -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    assert mx.array_equal(names["out"], mx.arange(8.0) * 2)
    last, promised = re.findall(r"^(reports.*?)\s+# (\d+):", example, re.MULTILINE)[0]
    assert eval(last, names) == int(promised)


def test_every_module_is_in_the_table() -> None:
    named = set(re.findall(r"`(\w+\.py)`", PAGE))
    # What several steps share: element types, places in the text, and the front that the example shows.
    shared = {"__init__.py", "elements.py", "kernel.py", "site.py", "text.py"}
    assert named | shared == {path.name for path in FOLDER.glob("*.py")}
    assert all((FOLDER / folder).is_dir() for folder in re.findall(r"`(\w+)/`", PAGE))
