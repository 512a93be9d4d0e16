"""Where a text ends, and that its text, ids and reported pieces agree; over a decoder of bytes, as tokens are."""

from collections.abc import Sequence

import pytest

from worker.engine.completion import Completion, EndRules
from worker.engine.detokenizer import Detokenizer

END, STOP = 90, 91


class Pieces:
    """A vocabulary by hand: token = index of a piece of UTF-8 bytes."""

    def __init__(self, *pieces: str | bytes) -> None:
        self.pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]

    @property
    def tokens(self) -> list[int]:
        return list(range(len(self.pieces)))

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(self.pieces[token] for token in tokens).decode("utf-8", "replace")


class Run:
    """A completion fed token by token; `rounds` gives the sizes of the passes after which text is reported."""

    def __init__(
        self,
        vocabulary: Pieces,
        tokens: Sequence[int],
        stops: Sequence[str] = (),
        max_tokens: int = 100,
        round_size: int = 1,
    ) -> None:
        rules = EndRules(max_tokens, frozenset({END}), frozenset({STOP}), tuple(stops))
        self.completion = Completion(rules, vocabulary.decode)
        self.reported: list[str] = []
        for start in range(0, len(tokens), round_size):
            for token in tokens[start : start + round_size]:
                if self.completion.push(token):
                    break
            self.reported.append(self.completion.new_text())
            if self.completion.finished:
                return


def assert_ended(run: Run, text: str, tokens: Sequence[int], reason: str, matched: str | int | None = None) -> None:
    completion = run.completion
    assert completion.text == text
    assert completion.tokens == list(tokens)
    assert completion.finish_reason == reason
    assert completion.matched_stop == matched
    assert "".join(run.reported) == text


ROUND_SIZES = [1, 2, 3, 16]


@pytest.mark.parametrize("size", ROUND_SIZES)
def test_an_end_token_is_neither_text_nor_a_completion_token(size: int) -> None:
    assert_ended(Run(Pieces("a", "b"), [0, 1, END, 0, 1], round_size=size), "ab", [0, 1], "stop")
    assert_ended(Run(Pieces("a", "b"), [END, 0], round_size=size), "", [], "stop")


@pytest.mark.parametrize("size", ROUND_SIZES)
def test_a_stop_token_says_which_it_was(size: int) -> None:
    assert_ended(Run(Pieces("a"), [0, STOP, 0], round_size=size), "a", [0], "stop", STOP)


@pytest.mark.parametrize("size", ROUND_SIZES)
@pytest.mark.parametrize(("cap", "text"), [(1, "a"), (2, "ab"), (3, "abc")])
def test_the_cap_is_exact(size: int, cap: int, text: str) -> None:
    vocabulary = Pieces("a", "b", "c", "d")
    assert_ended(Run(vocabulary, [0, 1, 2, 3], max_tokens=cap, round_size=size), text, range(cap), "length")


def test_a_stop_within_the_last_allowed_token_is_a_stop() -> None:
    vocabulary = Pieces("a", "b", "STOP", "c")
    assert_ended(Run(vocabulary, [0, 1, 2, 3], ["STOP"], max_tokens=3), "ab", [0, 1], "stop", "STOP")
    assert_ended(Run(vocabulary, [0, 1, 2, 3], ["STOP"], max_tokens=2), "ab", [0, 1], "length")
    assert_ended(Run(vocabulary, [0, 1, END], ["STOP"], max_tokens=2), "ab", [0, 1], "length")


@pytest.mark.parametrize("size", ROUND_SIZES)
def test_a_stop_across_token_borders(size: int) -> None:
    vocabulary = Pieces("Count: one", " two", " three", " four")
    run = Run(vocabulary, vocabulary.tokens, ["wo th"], round_size=size)
    # " two" is cut after " t", so it stays; " three" lies past the cut.
    assert_ended(run, "Count: one t", [0, 1], "stop", "wo th")


@pytest.mark.parametrize("size", ROUND_SIZES)
def test_a_stop_inside_a_longer_token(size: int) -> None:
    vocabulary = Pieces("a", "\n\n\n", "b")
    assert_ended(Run(vocabulary, vocabulary.tokens, ["\n\n"], round_size=size), "a", [0], "stop", "\n\n")


@pytest.mark.parametrize("size", ROUND_SIZES)
def test_a_stop_that_shares_its_token_with_text_on_both_sides(size: int) -> None:
    vocabulary = Pieces("x", "ya", "bz", "tail", " of", " words")
    assert_ended(Run(vocabulary, vocabulary.tokens, ["ab"], round_size=size), "xy", [0, 1], "stop", "ab")
    within = Pieces("x", "yabz", "tail")
    assert_ended(Run(within, within.tokens, ["ab"], round_size=size), "xy", [0, 1], "stop", "ab")


@pytest.mark.parametrize("size", ROUND_SIZES)
def test_the_earliest_match_wins_and_of_two_at_one_place_the_longer(size: int) -> None:
    vocabulary = Pieces("one ", "alpha beta", " gamma")
    stops = ["beta", "alpha", "alpha b"]
    assert_ended(Run(vocabulary, vocabulary.tokens, stops, round_size=size), "one ", [0], "stop", "alpha b")
    assert_ended(Run(vocabulary, vocabulary.tokens, stops[:2], round_size=size), "one ", [0], "stop", "alpha")


@pytest.mark.parametrize("size", ROUND_SIZES)
def test_five_stops_and_one_at_the_very_start(size: int) -> None:
    vocabulary = Pieces("q", "r", "s")
    assert_ended(Run(vocabulary, [2, 0, 1], ["v", "w", "x", "y", "s"], round_size=size), "", [], "stop", "s")


def test_a_possible_stop_is_held_back_and_flushed_when_it_does_not_come() -> None:
    vocabulary = Pieces("x", "a", "b", "c")
    run = Run(vocabulary, [0, 1, 2, 1, 3, 1, END], ["abc"])
    assert run.reported == ["x", "", "", "ab", "ac", "", "a"]
    assert_ended(run, "xabaca", [0, 1, 2, 1, 3, 1], "stop")


def test_a_held_back_end_is_flushed_at_the_cap() -> None:
    run = Run(Pieces("x", "a"), [0, 1], ["abc"], max_tokens=2)
    assert run.reported == ["x", "a"]
    assert_ended(run, "xa", [0, 1], "length")


@pytest.mark.parametrize("size", ROUND_SIZES)
def test_overlapping_beginnings_of_a_stop(size: int) -> None:
    vocabulary = Pieces("a", "b")
    run = Run(vocabulary, [0, 0, 1, 0, 0, 1, 1], ["aabb"], round_size=size)
    assert_ended(run, "aab", [0, 0, 1], "stop", "aabb")


def test_no_part_of_a_stop_is_ever_reported() -> None:
    vocabulary = Pieces(*"the end of it")
    for size in range(1, 14):
        run = Run(vocabulary, vocabulary.tokens, ["end o"], round_size=size)
        assert_ended(run, "the ", range(4), "stop", "end o")
        assert not any("e" in piece and "the" not in "".join(run.reported) for piece in run.reported)


EMOJI = "🏳️‍🌈".encode()


def test_half_a_character_waits_for_its_other_half() -> None:
    vocabulary = Pieces("a", EMOJI[:2], EMOJI[2:3], EMOJI[3:], "b")
    run = Run(vocabulary, [*vocabulary.tokens, END])
    assert run.reported == ["a", "", "", "🏳️‍🌈", "b", ""]
    assert_ended(run, "a🏳️‍🌈b", vocabulary.tokens, "stop")


@pytest.mark.parametrize("size", ROUND_SIZES)
def test_two_halves_of_a_character_that_come_in_two_rounds(size: int) -> None:
    vocabulary = Pieces(b"\xf0\x9f", b"\x8f\xb3", "!")
    run = Run(vocabulary, [*vocabulary.tokens, END], round_size=size)
    assert_ended(run, "🏳!", [0, 1, 2], "stop")
    if size == 1:
        assert run.reported == ["", "🏳", "!", ""]


@pytest.mark.parametrize("bytes_per_token", [1, 2, 3, 5])
@pytest.mark.parametrize("size", ROUND_SIZES)
def test_clusters_of_characters_come_whole_however_their_bytes_are_cut(size: int, bytes_per_token: int) -> None:
    text = "e\u0301🏳️‍🌈n\u0303👩‍👩‍👧z"
    data = text.encode()
    vocabulary = Pieces(*[data[i : i + bytes_per_token] for i in range(0, len(data), bytes_per_token)])
    run = Run(vocabulary, [*vocabulary.tokens, END], round_size=size)
    assert_ended(run, text, vocabulary.tokens, "stop")
    assert not any("\ufffd" in piece for piece in run.reported)


@pytest.mark.parametrize("ending", ["end", "cap", "cancel"])
def test_a_dangling_half_is_flushed_once_at_the_end(ending: str) -> None:
    vocabulary = Pieces("a", EMOJI[:2])
    run = Run(vocabulary, [0, 1, END] if ending == "end" else [0, 1], max_tokens=2 if ending == "cap" else 9)
    if ending == "cancel":
        run.completion.interrupt("cancelled")
        run.reported.append(run.completion.new_text())
    reason = {"end": "stop", "cap": "length", "cancel": "cancelled"}[ending]
    assert_ended(run, vocabulary.decode([0, 1]), [0, 1], reason)
    assert run.completion.text == "a\ufffd"


def test_a_stop_right_before_a_dangling_half() -> None:
    # "b" and half a character share a token: the text up to it is known only when the text ends.
    vocabulary = Pieces("x", b"ab" + EMOJI[:2])
    assert_ended(Run(vocabulary, [0, 1, END], ["b"]), "xa", [0, 1], "stop", "b")
    assert_ended(Run(vocabulary, [0, 1, END], ["ab"]), "x", [0], "stop", "ab")
    assert_ended(Run(vocabulary, [0, 1], ["b"], max_tokens=2), "xa", [0, 1], "stop", "b")


def test_a_stop_of_several_bytes_per_character() -> None:
    data = "你好世界".encode()
    vocabulary = Pieces(*[data[i : i + 2] for i in range(0, len(data), 2)])
    run = Run(vocabulary, vocabulary.tokens, ["世"])
    # 世 is bytes 6..8, of the tokens 3 and 4; token 3 lies wholly past the cut.
    assert_ended(run, "你好", [0, 1, 2], "stop", "世")


def test_cancel_ends_the_text_where_it_is() -> None:
    run = Run(Pieces("x", "a"), [0, 1], ["ab"])
    run.completion.interrupt("cancelled")
    run.reported.append(run.completion.new_text())
    assert_ended(run, "xa", [0, 1], "cancelled")


def test_an_invalid_byte_in_the_middle_is_one_replacement_character() -> None:
    vocabulary = Pieces("a", b"\xff", "b", b"\xf0\x9f", "c")
    detokenizer = Detokenizer(vocabulary.decode)
    pieces = [detokenizer.push(token) for token in vocabulary.tokens]
    assert pieces == ["a", "", "\ufffdb", "", "\ufffdc"]
    assert detokenizer.flush() == ""


def test_a_replacement_character_that_the_text_really_has() -> None:
    vocabulary = Pieces("a", "\ufffd", "b", "\ufffd")
    detokenizer = Detokenizer(vocabulary.decode)
    pieces = [detokenizer.push(token) for token in vocabulary.tokens] + [detokenizer.flush(), detokenizer.flush()]
    assert "".join(pieces) == "a\ufffdb\ufffd"
