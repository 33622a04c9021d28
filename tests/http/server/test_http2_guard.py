"""The frame guard: what it counts, what it allows again, and that it follows frames in any split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apcore_a2a.http.server.http2_guard import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FRAME_SIZE_ERROR,
    FREE_FRAMES,
    FREE_RESETS,
    HEADERS,
    MAX_FRAME,
    MAX_HEADERS,
    PREFACE,
    RST_STREAM,
    SMALL,
    Budget,
    Flooded,
    FrameGuard,
)

PING = 6


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 1) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def opened(clock: Clock | None = None) -> FrameGuard:
    guard = FrameGuard(clock=clock or Clock())
    guard.check(PREFACE)
    return guard


def test_a_frame_that_is_too_large_is_rejected_at_its_header() -> None:
    guard = opened()
    guard.check(frame(DATA, b"x" * MAX_FRAME))
    with pytest.raises(Flooded, match="a frame is too large") as caught:
        guard.check((MAX_FRAME + 1).to_bytes(3, "big") + b"\0\0\0\0\0\1")
    assert caught.value.code == FRAME_SIZE_ERROR


@pytest.mark.parametrize("kind", [2, 4, PING, 7, 8, 0x10, 0xFE], ids=hex)
def test_frames_without_content_have_a_budget(kind: int) -> None:
    clock = Clock()
    guard = opened(clock)
    guard.check(frame(kind, b"12345678") * FREE_FRAMES)
    clock.now += 0.1
    guard.check(frame(kind, b"12345678") * 10)  # a hundred in a second
    with pytest.raises(Flooded, match="too many frames without content") as caught:
        guard.check(frame(kind, b"12345678"))
    assert caught.value.code == ENHANCE_YOUR_CALM


def test_requests_and_responses_allow_more_frames() -> None:
    guard = opened()
    for _ in range(10 * FREE_FRAMES):
        guard.check(frame(HEADERS, b"x", flags=END_HEADERS) + frame(8, b"1234") * 6)
        guard.served()
    guard.check(frame(8, b"1234") * FREE_FRAMES)
    guard.wrote(10 * SMALL)
    guard.check(frame(8, b"1234") * 12)
    with pytest.raises(Flooded):
        guard.check(frame(8, b"1234"))


def test_data_of_a_few_bytes_counts_and_the_last_of_a_body_does_not() -> None:
    guard = opened()
    guard.check(frame(DATA, b"x" * SMALL) * 5 * FREE_FRAMES)
    guard.check(frame(DATA, b"", flags=END_STREAM) * 5 * FREE_FRAMES)
    guard.check(frame(DATA, b"x" * (SMALL // 2)) * 2 * FREE_FRAMES)
    with pytest.raises(Flooded):
        guard.check(frame(DATA, b""))


def test_resets_have_a_budget_of_their_own() -> None:
    clock = Clock()
    guard = opened(clock)
    guard.check(frame(RST_STREAM, b"\0\0\0\x08") * (FREE_RESETS - 1))
    guard.refused()
    guard.check(frame(PING, b"12345678") * FREE_FRAMES)
    clock.now += 1
    guard.check(frame(RST_STREAM, b"\0\0\0\x08") * 200)
    with pytest.raises(Flooded, match="reset or refused"):
        guard.check(frame(RST_STREAM, b"\0\0\0\x08"))


@pytest.mark.parametrize("piece", [1000, MAX_FRAME // 4])
def test_header_blocks_have_a_limit_in_any_number_of_frames(piece: int) -> None:
    guard = opened()
    guard.check(frame(HEADERS, b"x" * piece))
    with pytest.raises(Flooded, match="headers are too large"):
        guard.check(frame(CONTINUATION, b"x" * piece) * (MAX_HEADERS // piece))


def test_a_complete_header_block_makes_room_for_the_next() -> None:
    guard = opened()
    for _ in range(5):
        guard.check(frame(HEADERS, b"x" * 8000) + frame(CONTINUATION, b"x" * 8000, flags=END_HEADERS))
        assert not guard.awaits_headers


@pytest.mark.parametrize(
    ("data", "awaits"),
    [
        (b"", False),
        (b"\0\0", True),
        (frame(HEADERS, b"xyz", flags=END_HEADERS)[:-1], True),
        (frame(HEADERS, b"xyz", flags=END_HEADERS), False),
        (frame(HEADERS, b""), True),
        (frame(HEADERS, b"") + frame(CONTINUATION, b"", flags=END_HEADERS), False),
        (frame(DATA, b"xyz")[:-1], False),
    ],
    ids=["nothing", "half a header", "half a payload", "complete", "no end", "its end", "half a body"],
)
def test_incomplete_headers_are_noticed_and_incomplete_bodies_are_not(data: bytes, awaits: bool) -> None:
    guard = opened()
    guard.check(data)
    assert guard.awaits_headers is awaits


@given(st.data())
def test_frames_are_followed_in_any_split(data: st.DataObject) -> None:
    frames = [frame(PING, b"12345678"), frame(DATA, b"x" * 30), frame(HEADERS, b"y" * 20, flags=END_HEADERS)]
    whole = (
        PREFACE + b"".join(data.draw(st.lists(st.sampled_from(frames), max_size=20))) + frame(CONTINUATION, b"z" * 9)
    )
    whole += (MAX_FRAME + 1).to_bytes(3, "big") + b"\0\0\0\0\0\1"
    guard = FrameGuard(clock=Clock())
    position = 0
    with pytest.raises(Flooded, match="a frame is too large"):
        while position < len(whole):
            size = data.draw(st.integers(1, 40))
            guard.check(whole[position : position + size])
            position += size
    assert position >= len(whole) - 40


def test_a_budget_is_never_more_than_full() -> None:
    clock = Clock()
    budget = Budget(2, per_second=10, clock=clock)
    clock.now += 1000
    budget.earn(1000)
    assert [budget.take(2), budget.take(2), budget.take(1)] == [True, True, False]  # the second of the time since
