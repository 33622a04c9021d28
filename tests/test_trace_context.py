"""Which headers of a request count as its trace, and their limits."""

import pytest

from apcore_a2a.trace_context import MAX_BAGGAGE, MAX_ENTRIES, MAX_STATE, read_trace, trace_id_of

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"


def read(**headers: str) -> dict[str, str]:
    return read_trace({name.encode(): value.encode("latin-1") for name, value in headers.items()})


def test_all_three_headers_are_read() -> None:
    given = {"traceparent": PARENT, "tracestate": "a=1,b=2", "baggage": "user=ada;secret,run=7"}
    assert read(**given, authorization="Bearer x") == given
    assert trace_id_of(given) == TRACE_ID
    assert (read(), trace_id_of({})) == ({}, "")


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00-1",
        PARENT.upper(),
        PARENT + "-more",
        "ff" + PARENT[2:],
        PARENT.replace(TRACE_ID, "0" * 32),
        PARENT.replace("00f067aa0ba902b7", "0" * 16),
        PARENT.replace("4bf", "4bg"),
        PARENT.replace("4bf", "4b\u00b2"),
    ],
)
def test_a_wrong_traceparent_and_its_tracestate_are_ignored(parent: str) -> None:
    assert read(traceparent=parent, tracestate="a=1", baggage="user=ada") == {"baggage": "user=ada"}


def test_a_newer_version_is_continued_as_version_00() -> None:
    assert read(traceparent="cc" + PARENT[2:] + "-more") == {"traceparent": PARENT}


@pytest.mark.parametrize(("name", "limit"), [("tracestate", MAX_STATE), ("baggage", MAX_BAGGAGE)])
def test_a_long_list_keeps_the_first_entries_that_fit(name: str, limit: int) -> None:
    entry = "k=" + "v" * 97
    fits = ",".join([entry] * min(limit // 100, MAX_ENTRIES))
    for given in (fits, fits + "," + entry * 100):
        found = read(**{"traceparent": PARENT, name: given})[name]
        assert found == fits and len(found) <= limit
    exact = "k=" + "v" * (limit - 2)
    assert read(**{"traceparent": PARENT, name: exact})[name] == exact
    assert name not in read(**{"traceparent": PARENT, name: exact + "v"})


def test_a_list_of_many_entries_keeps_the_first() -> None:
    found = read(baggage=",".join(f"k{number}=1" for number in range(1000)))["baggage"]
    assert found.split(",") == [f"k{number}=1" for number in range(MAX_ENTRIES)]


@pytest.mark.parametrize("text", ["user=\u00e9", "user=a\x00b", "user=a\tb", "user=a\rb", "user=\x7f"])
def test_text_that_a_header_cannot_carry_is_ignored(text: str) -> None:
    assert read(traceparent=PARENT, tracestate=text, baggage=text) == {"traceparent": PARENT}
