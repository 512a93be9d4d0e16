"""The noise of many draws at once, by the definition in `worker.engine.philox`."""

import numpy as np
import numpy.typing as npt

from worker.engine.philox import philox4x32

Noise = npt.NDArray[np.float64]


def noise_table(seeds: int, positions: int, vocabulary: int) -> Noise:
    """Noise [seeds, positions, vocabulary] of the draws under seeds 0, 1, ..."""
    blocks = -(-vocabulary // 4)
    position, block = (grid.ravel().astype(np.uint64) for grid in np.mgrid[:positions, :blocks])
    zero = np.zeros_like(block)
    words = [np.stack(philox4x32((block, position, zero, zero), (seed, 0)), axis=-1) for seed in range(seeds)]
    bits = np.array(words).reshape(seeds, positions, 4 * blocks)[:, :, :vocabulary]
    return -np.log(-np.log1p(-(bits.astype(np.float64) + 0.5) / 2**32))
