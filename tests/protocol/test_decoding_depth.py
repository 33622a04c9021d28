"""Nesting is counted before anything is built, exactly, in a few passes whatever the body holds."""

import json
import sys
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apcore_a2a.errors import InvalidRequestError, ParseError
from apcore_a2a.protocol import decoding, jsonrpc
from apcore_a2a.protocol.decoding import MAX_DEPTH, check, check_and_decode, check_tree

NO_DECODER: Any = None  # a body that reached it would end in an AttributeError

tricky_texts = st.text(alphabet='[]{}"\\:,/u0é', max_size=8)


def is_refused(body: bytes) -> bool:
    try:
        check_tree(body)
    except InvalidRequestError as error:
        assert error.message == "JSON nested deeper than 64 levels"
        return True
    return False


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"a":[', "]}]")])
def test_64_levels_are_allowed_and_one_more_is_not(opening: str, closing: str) -> None:
    levels = sum(opening.count(bracket) for bracket in "[{")
    for depth in (MAX_DEPTH // levels * levels, MAX_DEPTH // levels * levels + levels):
        body = opening * (depth // levels) + "0" + closing * (depth // levels)
        assert is_refused(body.encode()) == (depth > MAX_DEPTH)


def depth_of(value: object) -> int:
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@st.composite
def towers(draw: st.DrawFn) -> str:
    """A document about 64 levels high, with rubble beside each level."""
    rubble = st.lists(
        tricky_texts.map(json.dumps) | st.sampled_from(["[]", "{}", r'"\\"', r'"\""']), min_size=1, max_size=4
    )
    beside, seed = draw(rubble), draw(st.randoms(use_true_random=False))
    body = "0"
    for _ in range(draw(st.integers(MAX_DEPTH - 2, MAX_DEPTH + 1))):
        other, key = seed.choice(beside), json.dumps(seed.choice('[]{}"\\'))
        body = seed.choice([f"[{other},{body}]", f"[{body},{other}]", f"{{{key}:{other},{key}:{body}}}", f"[{body}]"])
    return body


@given(towers())
def test_exactly_the_brackets_outside_strings_count(body: str) -> None:
    built = json.loads(body, object_pairs_hook=lambda pairs: [value for _, value in pairs])
    assert is_refused(body.encode()) == (depth_of(built) > MAX_DEPTH)


@given(st.lists(tricky_texts, min_size=30, max_size=60))
def test_brackets_inside_strings_do_not_count(texts: list[str]) -> None:
    body = json.dumps([["[{" * 40, text] for text in texts], ensure_ascii=False)
    assert not is_refused(body.encode())


@pytest.mark.parametrize("body", [b"[" * 70, b'{"a":' * 70, b"[" * 90_000])
def test_nesting_that_never_ends_is_refused(body: bytes) -> None:
    assert is_refused(body)


@pytest.mark.parametrize(
    "body", [b"]" * 70 + b"[" * 40 + b"[]" * 40, b'"' + b"[" * 70, b'"\\"' + b"{" * 70, b"[}" * 70]
)
def test_what_is_not_json_is_left_to_the_parser(body: bytes) -> None:
    assert not is_refused(body)
    with pytest.raises((ParseError, InvalidRequestError)):
        jsonrpc.parse(body)


def test_a_deep_body_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(InvalidRequestError):
        check_and_decode(b'{"params":' + b"[" * 64 + b"]" * 64 + b"}", NO_DECODER)


def test_the_id_of_a_deep_request_is_found_without_building_the_rest() -> None:
    assert jsonrpc.recover_id(b'{"params":' + b"[" * 64 + b"]" * 64 + b',"id":"x"}') == b'"x"'
    assert jsonrpc.recover_id(b'{"params":' + b"[" * 100_000 + b"]" * 100_000 + b',"id":"x"}') == b"null"


def test_a_decoder_that_runs_out_of_stack_says_parse_error() -> None:
    with pytest.raises(ParseError):
        decoding.decode(b"[" * 100_000 + b"]" * 100_000, msgspec.json.Decoder(Any))


ADVERSE = {
    "brackets": b"[],",
    "braces": b"{},",
    "towers": b"[" * 60 + b"]" * 60 + b",",
    "closing": b"]",
    "quotes": b'"',
    "backslashes": b"\\",
    "escaped quotes": b'\\"',
    "quotes and backslashes": b'"\\',
    "strings": b'"[",',
    "strings between brackets": b'["["],',
    "text": b"a",
}


def steps(body: bytes) -> int:
    """How many calls and returns the interpreter makes: a loop over the body in Python would show here."""
    count = 0

    def step(*_: object) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(step)
    try:
        check(body)
    except InvalidRequestError:
        pass
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("pattern", ADVERSE.values(), ids=ADVERSE.keys())
def test_the_check_makes_the_same_few_passes_over_a_large_body_as_over_a_small_one(pattern: bytes) -> None:
    small, large = (b"[" + pattern * (size // len(pattern)) + b"[]" * 70 for size in (2_000, 2_000_000))
    assert steps(large) <= steps(small) + 1 < 50


@pytest.mark.parametrize("name", ADVERSE)
def test_the_check_needs_no_more_memory_than_a_parser_would(name: str) -> None:
    body = b"[" + ADVERSE[name] * (1_000_000 // len(ADVERSE[name])) + b"[]" * 70
    tracemalloc.start()
    try:
        steps(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Pieces of strings are the one thing that takes more, and only so many values are taken apart.
    assert peak < len(body) * (25 if name == "strings between brackets" else 4)


def test_the_usual_request_is_settled_by_two_counts() -> None:
    assert steps(b'{"jsonrpc":"2.0","method":"x","params":{"message":{"parts":[{"text":"hi"}]}}}') < steps(b"[]" * 70)
