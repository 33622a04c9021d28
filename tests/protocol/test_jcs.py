"""RFC 8785: the vectors of the RFC, and agreement with another implementation."""

import json
import math
import struct
from typing import Any

import pytest
from a2a.utils._jcs import canonicalize as theirs
from hypothesis import given
from hypothesis import strategies as st

from apcore_a2a.protocol.card_forms import canonicalize

# Appendix B: the bits of a double, and how it is written.
NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_numbers_are_written_as_ecmascript_writes_them(bits: str, text: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))

    assert canonicalize(number) == text.encode()


def test_the_example_of_section_3_2_2() -> None:
    text = (
        '{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],'
        ' "string": "\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/", "literals": [null, true, false]}'
    )
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )

    assert canonicalize(json.loads(text)) == expected.encode()


def test_names_are_ordered_by_utf_16_code_units() -> None:
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]

    ordered = json.loads(
        canonicalize(dict.fromkeys(names)), object_pairs_hook=lambda pairs: [name for name, _ in pairs]
    )

    assert ordered == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


@pytest.mark.parametrize("number", [2**53, -(2**53), 10**20])
def test_an_integer_beyond_the_safe_range_has_a_canonical_form_if_its_double_is_written_the_same(number: int) -> None:
    assert canonicalize(number) == str(number).encode()


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 2**53 + 1, 10**400, "\ud800", {"\udfff": 1}, b"", (1,)]
)
def test_what_has_no_canonical_form_is_a_value_error(value: object) -> None:
    with pytest.raises(ValueError):
        canonicalize(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@given(JSON)
def test_two_implementations_agree(value: Any) -> None:
    assert canonicalize(value) == theirs(value).encode()


@given(JSON)
def test_what_is_canonical_stays_as_it_is(value: Any) -> None:
    once = canonicalize(value)

    assert canonicalize(json.loads(once)) == once
