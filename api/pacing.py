"""Waits that differ a little from one process to the next, so that a fleet does not ask its server in step."""

import random

SPREAD = 0.25


def spread(seconds: float) -> float:
    """A wait between three and five quarters of `seconds`; on average it is as long."""
    return seconds * random.uniform(1 - SPREAD, 1 + SPREAD)
