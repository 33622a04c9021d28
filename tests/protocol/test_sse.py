"""Server-sent events: the decoder's answer does not depend on where the bytes are cut, and its work does not either."""

import json
import re
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apcore_a2a.protocol import sse
from apcore_a2a.protocol.model import encode
from apcore_a2a.protocol.sse import KEEP_ALIVE, MAX_EVENT, ServerSentEvent, SSEDecoder, frame, frame_only


def decode(*chunks: bytes, max_event: int = MAX_EVENT) -> list[ServerSentEvent]:
    decoder = SSEDecoder(max_event)
    return [event for chunk in chunks for event in decoder.feed(chunk)]


def datas(*chunks: bytes) -> list[str]:
    return [event.data for event in decode(*chunks)]


def as_specified(stream: bytes) -> list[ServerSentEvent]:
    """The parsing algorithm of the HTML standard §9.2.6, over the whole stream at once."""
    *lines, _ = re.split("\r\n|\r|\n", stream.decode("utf-8-sig", "replace"))
    events, data, last_id, kind, retry = [], "", "", "", None
    for line in lines:
        field, _, value = line.partition(":")
        value = value[1:] if value[:1] == " " else value
        if line == "":
            if data:
                events.append(ServerSentEvent(data[:-1], last_id, kind or "message", retry))
            data, kind = "", ""
        elif field == "data":
            data += value + "\n"
        elif field == "event":
            kind = value
        elif field == "id" and "\0" not in value:
            last_id = value
        elif field == "retry" and re.fullmatch("[0-9]{1,9}", value):
            retry = int(value)
    return events


fields = st.sampled_from([b"data", b"id", b"event", b"retry", b"", b"date", b"\xef\xbb\xbfdata"])
values = st.sampled_from(
    [b"", b" ", b"x", b" x", b"  x", b"7", b"-7", b"\xc2\xb27", b"a:b", b"\0", "é€😀\u2028\x85\x0b".encode()]
)
broken = st.sampled_from([b"\xff", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xef\xbb"])
ends = st.sampled_from([b"\n", b"\r", b"\r\n"])
lines = st.one_of(
    st.tuples(fields, st.sampled_from([b":", b""]), values | broken, ends).map(b"".join),
    ends,
    ends,
    st.binary(max_size=6),
)
streams = st.tuples(st.sampled_from([b"", b"\xef\xbb\xbf"]), st.lists(lines, max_size=12).map(b"".join)).map(b"".join)


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    stream = draw(streams)
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=len(stream))))
    return stream, [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


@given(cut_streams())
def test_any_stream_cut_anywhere_is_read_as_the_standard_says(drawn: tuple[bytes, list[bytes]]) -> None:
    stream, chunks = drawn
    assert decode(*chunks) == as_specified(stream)


@given(streams)
def test_a_stream_may_come_byte_by_byte(stream: bytes) -> None:
    assert decode(*(stream[index : index + 1] for index in range(len(stream)))) == as_specified(stream)


@given(st.lists(st.tuples(st.text(), st.integers(0))))
def test_what_a_frame_carries_comes_out_of_the_decoder(sent: list[tuple[str, int]]) -> None:
    stream = b"".join(frame(encode(text), id) + KEEP_ALIVE for text, id in sent)
    assert [(json.loads(event.data), int(event.id)) for event in decode(stream)] == sent


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029"])
def test_no_reader_of_lines_splits_a_frame_inside_its_data(end: str) -> None:
    text = f"grüße{end}👋"
    for event, lines in ((frame(encode(text), 7), 3), (frame_only(encode(text)), 2)):
        assert len(event.decode().splitlines()) == lines
        assert json.loads(datas(event)[0]) == text


def test_a_frame_has_an_id_and_one_line_of_data() -> None:
    assert frame(b'{"a":1}', 7) == b'id: 7\ndata: {"a":1}\n\n'


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_every_line_end_ends_a_line_and_nothing_else_does(end: bytes) -> None:
    text = "one\u2028two\x85three\x0bfour\x0c"
    assert datas(b"data: " + text.encode() + end + end) == [text]


def test_an_event_is_complete_with_its_empty_line_not_with_what_follows() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: a\r\r") == [ServerSentEvent("a")]
    assert decoder.feed(b"\ndata: b\r\n\r") == [ServerSentEvent("b")]
    assert decoder.feed(b"\ndata: c\n\n") == [ServerSentEvent("c")]


def test_a_line_end_cut_in_two_is_one_line_end() -> None:
    assert datas(b"data: a\r", b"\ndata: b\r\n\r\n") == ["a\nb"]
    assert datas(b"data: a\r", b"", b"\ndata: b\r\n\r\n") == ["a\nb"]


def test_a_character_cut_in_two_is_one_character() -> None:
    assert datas(b"data: \xf0\x9f", b"\x98\x80\n\n") == ["😀"]


def test_a_byte_order_mark_is_taken_off_the_beginning_only() -> None:
    assert datas(b"\xef", b"\xbb\xbf", b"data: a\n\n\xef\xbb\xbfdata: b\n\n") == ["a"]


def test_lines_of_data_are_joined_and_comments_are_not_there() -> None:
    assert datas(b": hi\ndata: a\n:\ndata:\ndata\ndata:  b\n\n") == ["a\n\n\n b"]


def test_an_event_without_data_is_none() -> None:
    assert decode(b"event: x\nid: 1\n\n" + KEEP_ALIVE + b"data\n\n") == [ServerSentEvent("", "1")]


def test_the_name_of_an_event_holds_for_it_alone_its_id_for_those_after_it() -> None:
    assert decode(b"id: 7\nevent: x\ndata: a\n\ndata: b\n\nid\ndata: c\n\n") == [
        ServerSentEvent("a", "7", "x"),
        ServerSentEvent("b", "7"),
        ServerSentEvent("c", ""),
    ]


def test_an_id_with_a_nul_is_ignored() -> None:
    assert decode(b"id: 7\nid: 8\0\ndata: a\n\n") == [ServerSentEvent("a", "7")]


@pytest.mark.parametrize(
    ("told", "retry"),
    [
        (b"3000", 3000),
        (b"0", 0),
        (b"-1", None),
        (b"1.5", None),
        ("²".encode(), None),
        (b"9" * 5_000, None),
        (b"", None),
    ],
)
def test_retry_is_a_number_of_milliseconds_or_nothing(told: bytes, retry: int | None) -> None:
    assert decode(b"retry: " + told + b"\n\ndata: a\n\n") == [ServerSentEvent("a", retry=retry)]


# ---- limits ------------------------------------------------------------------------------------------------------


def outcome(chunks: list[bytes], max_event: int) -> tuple[list[str], bool]:
    decoder, seen = SSEDecoder(max_event), []
    try:
        for chunk in chunks:
            seen += [event.data for event in decoder.feed(chunk)]
    except ValueError as error:
        assert str(error) == "server-sent event too large"
        return seen, True
    return seen, False


@given(cut_streams(), st.integers(0, 12))
def test_the_limit_holds_wherever_the_stream_is_cut(drawn: tuple[bytes, list[bytes]], limit: int) -> None:
    stream, chunks = drawn
    by_byte = outcome([stream[index : index + 1] for index in range(len(stream))], limit)
    seen, refused = outcome(chunks, limit)
    assert refused == by_byte[1]
    assert seen == by_byte[0][: len(seen)]  # with the chunk that is refused go the events before it
    assert refused or seen == by_byte[0]


@pytest.mark.parametrize(
    "endless", [b"data: xxxxxxxx", b"data: xxxxxxxx\n", b"data\n", b"data:\r", b": comment without end"]
)
def test_an_event_that_never_ends_is_refused(endless: bytes) -> None:
    decoder = SSEDecoder(1_000)
    with pytest.raises(ValueError, match="too large"):
        for _ in range(2_000):
            decoder.feed(endless)


def test_the_limit_counts_the_longest_line_and_the_data_before_it() -> None:
    assert outcome([b"data: x\n\n"], 7) == (["x"], False)
    assert outcome([b"data: x\n\n"], 6) == ([], True)
    assert outcome([b"data: x\ndata: y\n\n"], 7 + 2) == (["x\ny"], False)
    assert outcome([b"data: x\ndata: y\n\n"], 7 + 1) == ([], True)


def test_many_small_events_and_comments_are_no_large_event() -> None:
    assert len(decode(*[b": ping\ndata: 12345\n\n"] * 1_000, max_event=20)) == 1_000


class CountingBuffer(StringIO):
    written = 0
    joined = 0

    def write(self, text: str, /) -> int:
        CountingBuffer.written += len(text)
        return super().write(text)

    def getvalue(self) -> str:
        value = super().getvalue()
        CountingBuffer.joined += len(value)
        return value


def test_a_large_event_in_small_pieces_is_kept_once_and_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "StringIO", CountingBuffer)
    line = b"data: " + b"x" * 100_000
    assert len(datas(*(line[index : index + 7] for index in range(0, len(line), 7)), b"\n\n")) == 1
    assert (CountingBuffer.written, CountingBuffer.joined) == (len(line), len(line))
