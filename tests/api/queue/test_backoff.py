from api.queue.connection import _retry


def test_waits_grow_are_bounded_differ_and_add_up_to_the_patience() -> None:
    retry = _retry(120)
    waits = [[retry._backoff.compute(failures) for failures in range(1, retry._retries + 1)] for _ in range(20)]
    assert all(0.05 <= wait <= 2 for one in waits for wait in one)
    assert all(wait >= 1 for one in waits for wait in one[5:])
    assert len({one[0] for one in waits}) == 20
    assert all(100 < sum(one) < 150 for one in waits)


def test_no_patience_is_no_second_try() -> None:
    assert _retry(0)._retries == 0
