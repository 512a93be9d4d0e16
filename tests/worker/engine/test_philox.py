"""The keyed noise: Random123's known answers, the Gumbel distribution, and what the noise is addressed by."""

import math

import numpy as np
import pytest

from worker.engine.philox import gumbel_noise, philox4x32, random_bits, token_noise

# Random123, kat_vectors: counter, key, expected words of philox4x32 with 10 rounds.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers_of_random123(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    words = philox4x32(tuple(np.array([word], dtype=np.uint64) for word in counter), key)  # type: ignore[arg-type]
    assert tuple(int(word[0]) for word in words) == expected
    assert philox4x32(counter, key) == expected  # type: ignore[arg-type]


def philox_by_hand(counter: list[int], key: list[int]) -> list[int]:
    """The published round function in Python integers."""
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * counter[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * counter[2], 2**32)
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (7, 41), (2**64 - 1, 131071), (1 << 40, 3)])
def test_bits_of_a_token_are_one_word_of_its_block(seed: int, position: int) -> None:
    tokens = np.array([0, 1, 2, 3, 4, 49151, 262143], dtype=np.int64)
    expected = [
        philox_by_hand([token // 4, position, 0, 0], [seed % 2**32, seed // 2**32])[token % 4]
        for token in tokens.tolist()
    ]
    assert random_bits(seed, position, tokens).tolist() == expected


def test_noise_follows_from_the_bits_step_by_step() -> None:
    tokens = np.array([0, 5, 49151])
    for token, noise in zip(tokens.tolist(), gumbel_noise(7, 41, tokens), strict=True):
        bits = philox_by_hand([token // 4, 41, 0, 0], [7, 0])[token % 4]
        assert noise == pytest.approx(-math.log(-math.log1p(-(2 * bits + 1) / 2**33)), rel=1e-14)


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (7, 41), (2**64 - 1, 131071), (1 << 40, 3)])
def test_noise_of_a_single_token_is_that_of_an_array(seed: int, position: int) -> None:
    tokens = np.arange(0, 262144, 4099)
    alone = [token_noise(seed, position, token) for token in tokens.tolist()]
    np.testing.assert_allclose(alone, gumbel_noise(seed, position, tokens), rtol=0, atol=1e-14)


def test_noise_of_a_token_does_not_depend_on_the_other_tokens_asked_for() -> None:
    everything = gumbel_noise(5, 17, np.arange(1000))
    for subset in ([3], [999, 0, 500], [7, 7, 8], list(range(1, 1000, 13))):
        np.testing.assert_array_equal(gumbel_noise(5, 17, np.array(subset)), everything[subset])


def test_noise_is_keyed_by_seed_position_and_token() -> None:
    tokens = np.arange(4096)
    base = random_bits(5, 17, tokens)
    assert np.unique(base).size > 4090
    for seed, position in ((6, 17), (5, 18), (5 + 2**32, 17), (5 + 2**63, 17)):
        other = random_bits(seed, position, tokens)
        # Two equal words of 32 bits among 4096 have a chance of one in a million.
        assert np.count_nonzero(other == base) == 0


def test_noise_follows_the_gumbel_distribution() -> None:
    noise = np.concatenate([gumbel_noise(11, position, np.arange(200)) for position in range(1000)])
    count, variance = noise.size, math.pi**2 / 6
    mean_error = math.sqrt(variance / count)
    # Kurtosis of the Gumbel distribution is 5.4, so its sample variance has this standard error.
    variance_error = variance * math.sqrt((5.4 - 1) / count)
    assert abs(noise.mean() - 0.5772156649) < 4 * mean_error
    assert abs(noise.var() - variance) < 4 * variance_error
    # Distribution function exp(-exp(-g)), at a few points (Kolmogorov-Smirnov bound at 1 in 10^4).
    for point in (-1.0, 0.0, 0.5, 2.0, 5.0):
        assert abs((noise <= point).mean() - math.exp(-math.exp(-point))) < 2.2 / math.sqrt(count)


def test_noise_of_neighbouring_positions_and_tokens_is_uncorrelated() -> None:
    grid = np.stack([gumbel_noise(3, position, np.arange(512)) for position in range(400)])
    bound = 4 / math.sqrt(grid.size)
    assert abs(np.corrcoef(grid[1:].ravel(), grid[:-1].ravel())[0, 1]) < bound
    assert abs(np.corrcoef(grid[:, 1:].ravel(), grid[:, :-1].ravel())[0, 1]) < bound


def test_noise_is_finite_at_both_ends_of_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = np.array([0, 2**32 - 1], dtype=np.uint32)
    monkeypatch.setattr("worker.engine.philox.random_bits", lambda *_: ends)
    high, low = gumbel_noise(0, 0, np.arange(2))
    assert high == pytest.approx(33 * math.log(2), rel=1e-6)
    assert low == pytest.approx(-math.log(33 * math.log(2)), rel=1e-6)
