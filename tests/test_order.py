from tests.conftest import LONGEST_FIRST, TESTS


def test_the_files_that_come_first_exist() -> None:
    assert [name for name in LONGEST_FIRST if not (TESTS / name).exists()] == []
    assert len(set(LONGEST_FIRST)) == len(LONGEST_FIRST)
