"""The text is plain decoding's with every drafter: families with windows, and with rows that layers share."""

import pytest
from engine_maker import EngineFor
from family_texts import assert_plain_texts, pairs


@pytest.mark.parametrize(("family", "drafter"), pairs("windows"))
def test_the_text_is_that_of_plain_decoding(engine_for: EngineFor, family: str, drafter: str) -> None:
    assert_plain_texts(engine_for, family, drafter)
