"""How many values a body holds is known before any of them is built, and costs a few passes over the bytes."""

import json
import re
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apcore_a2a.errors import InvalidRequestError
from apcore_a2a.protocol import jsonrpc
from apcore_a2a.protocol.decoding import MAX_VALUES, check, check_and_decode, check_tree, holds_more_values

NO_DECODER: Any = None  # a body that reached it would end in an AttributeError

tricky_texts = st.text(alphabet='[]{},:"\\u0é', max_size=6)
documents = st.recursive(
    st.none() | st.integers() | tricky_texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(tricky_texts, inner, max_size=5),
    max_leaves=30,
)


def is_refused(body: bytes, limit: int = MAX_VALUES) -> bool:
    try:
        check_tree(body, max_values=limit)
    except InvalidRequestError as error:
        assert error.message.startswith(f"JSON with more than {limit} values; ")
        return True
    return False


def values_in(value: Any) -> int:
    """How many values there are, counted after they were built; what is empty counts for two."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return 1
    return 1 + max(sum(map(values_in, value)), 1)


@given(documents, st.booleans())
def test_exactly_the_values_count_and_nothing_inside_strings(document: Any, spaced: bool) -> None:
    body = json.dumps(document, ensure_ascii=False, separators=None if spaced else (",", ":")).encode()
    count = values_in(document)
    assert not is_refused(body, count)
    if len(body) >= count > 1:  # a single value is never too many
        assert is_refused(body, count - 1)


def values(count: int) -> bytes:
    return b"[" + b"0," * (count - 2) + b"0]"


def test_so_many_values_are_taken_and_one_more_is_not() -> None:
    assert not is_refused(values(MAX_VALUES))
    assert is_refused(values(MAX_VALUES + 1))


LARGE = {
    "empty objects": b"{},",
    "empty arrays": b"[],",
    "numbers": b"1,",
    "objects": b'{"a":0},',
    "strings": b'"",',
    "strings of brackets": b'"[{",',
    "strings between brackets": b'["["],',
    "escaped quotes": b'"\\"",',
    "towers": b"[" * 60 + b"]" * 60 + b",",
}


@pytest.mark.parametrize("name", LARGE)
def test_ten_megabytes_of_small_values_are_refused_without_the_memory(name: str) -> None:
    body = b'{"x":[' + LARGE[name] * (10_000_000 // len(LARGE[name])) + b"0]}"
    tracemalloc.start()
    try:
        assert is_refused(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(body) * 3.5  # once decoded they are 23 times as large as on the wire


@pytest.mark.parametrize(
    "text", ["A" * 10_000_000, "Well, yes [1], and {no}, he said, " * 300_000, '"\\,"[' * 1_000_000]
)
def test_ten_megabytes_of_text_are_few_values(text: str) -> None:
    check(json.dumps({"parts": [{"text": text}]}).encode())


def test_a_body_of_too_many_values_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(InvalidRequestError, match=re.escape("send large data as a file (raw or url)")):
        check_and_decode(b'{"params":' + values(MAX_VALUES) + b"}", NO_DECODER)


def test_the_limit_may_be_another() -> None:
    jsonrpc.parse(b'{"jsonrpc":"2.0","method":"x","params":%b}' % values(MAX_VALUES), max_values=2 * MAX_VALUES)
    with pytest.raises(InvalidRequestError, match="more than 10 values"):
        check(values(11), max_values=10)


@pytest.mark.parametrize(
    ("body", "holds"),
    [(b"[1,2,3]", True), (b"[1]", False), (b'{"a":"many, many, many"}', False), (b'["a","b","c","d"]', True)],
)
def test_values_of_our_own_writing_are_counted_as_those_of_a_request(body: bytes, holds: bool) -> None:
    assert holds_more_values(body, 3) is holds
