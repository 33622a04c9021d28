"""Other people's text cannot steer a terminal, break a line or hide what it says."""

import pytest

from apcore_a2a.clean_text import clean_line, clean_text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain text", "plain text"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x9b2Jgone", "gone"),
        ("a\x00b\x7fc\x85d", "abcd"),
        ("\u202eright to left\u202c", "right to left"),
        ("\ufeffmark", "mark"),
        ("caf\udce9", "caf"),
        ("👩\u200d🔬", "👩\u200d🔬"),
    ],
)
def test_what_could_do_harm_is_gone_and_the_rest_stays(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned


@pytest.mark.parametrize("text", ["one\ntwo", "one\r\ntwo", " one \t two ", "one\u2028two", "one\x1b[2K\ntwo"])
def test_a_line_is_one_line(text: str) -> None:
    assert clean_line(text) == "one two"


def test_a_long_text_is_cut() -> None:
    assert clean_text("x" * 1_000, 10) == "x" * 10
    assert clean_line("y" * 1_000, 10) == "y" * 10
