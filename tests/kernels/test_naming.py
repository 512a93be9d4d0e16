"""A kernel's name changes whenever its text does."""

import hashlib

from kernels.naming import named


def test_a_name_follows_its_texts() -> None:
    digest = hashlib.sha256(b"a header\0a body").hexdigest()
    assert named("kernel", "a header", "a body") == f"kernel_{digest[:12]}"
    assert named("kernel", "a header", "a body") != named("kernel", "a header", "a body;")
    assert named("kernel", "a", "b") != named("kernel", "ab")
