"""Who has to go when too much waits to be read."""

from apcore_a2a.http.traffic import Traffic


class Reader:
    def __init__(self, left: int) -> None:
        self.left = left
        self.is_gone = False

    def unread(self) -> int:
        return self.left

    def hang_up(self) -> None:
        self.is_gone = True


def test_who_has_taken_nothing_for_longest_goes_first() -> None:
    traffic = Traffic(max_answer_bytes=100)
    idle, slow, newest = Reader(40), Reader(40), Reader(50)
    traffic.reader_waits(slow)
    traffic.reader_waits(idle)
    slow.left = 35  # it reads, however little
    traffic.reader_waits(newest)
    assert (slow.is_gone, idle.is_gone, newest.is_gone) == (False, True, False)
    assert traffic.answer_bytes == 85


def test_one_answer_alone_may_be_larger_than_all_together() -> None:
    traffic = Traffic(max_answer_bytes=100)
    large = Reader(500)
    traffic.reader_waits(large)
    assert not large.is_gone
    traffic.reader_done(large)
    traffic.reader_done(large)  # gone twice is gone
    assert traffic.answer_bytes == 0


def test_a_body_that_finds_no_room_takes_none() -> None:
    traffic = Traffic(max_body_bytes=10)
    assert traffic.take_body(6)
    assert not traffic.take_body(5)
    assert traffic.body_bytes == 6
    traffic.release_body(6)
    assert traffic.take_body(10)
