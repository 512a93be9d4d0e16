from api.pacing import spread


def test_waits_differ_within_a_quarter_and_are_as_long_on_average() -> None:
    waits = [spread(4) for _ in range(1000)]
    assert all(3 <= wait <= 5 for wait in waits)
    assert len(set(waits)) > 900
    assert 3.8 < sum(waits) / 1000 < 4.2  # of a mean whose standard error is 0.02
