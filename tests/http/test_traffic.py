"""Who has to go when too much waits to be read."""

import pytest

from apcore_a2a.errors import LimitExceededError, OverloadedError
from apcore_a2a.http.traffic import TOO_MANY_BODIES, TOO_MANY_OF_YOURS, Room, Traffic


class Reader:
    def __init__(self, left: int) -> None:
        self.left = left
        self.is_gone = False

    def unread(self) -> int:
        return self.left

    def disconnect(self) -> None:
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
    assert traffic.take_body(6, "ada") is None
    refused = traffic.take_body(5, "bob")
    assert (type(refused), str(refused)) == (OverloadedError, TOO_MANY_BODIES)
    assert traffic.body_bytes == 6
    traffic.release_body(6, "ada")
    assert traffic.take_body(10, "bob") is None


def test_one_caller_has_half_of_the_room_for_bodies() -> None:
    traffic = Traffic(max_body_bytes=10, max_body=4)
    assert traffic.take_body(3, "ada") is None
    refused = traffic.take_body(3, "ada")
    assert (type(refused), str(refused)) == (LimitExceededError, TOO_MANY_OF_YOURS)
    assert traffic.take_body(2, "ada") is None
    assert traffic.take_body(5, "bob") is None
    traffic.release_body(2, "ada")
    assert isinstance(traffic.take_body(3, "ada"), LimitExceededError)
    traffic.release_body(3, "ada")
    assert traffic.take_body(5, "ada") is None


def test_a_body_alone_may_be_as_large_as_one_may_be() -> None:
    traffic = Traffic(max_body_bytes=10, max_body=8)
    assert traffic.take_body(8, "ada") is None
    assert isinstance(traffic.take_body(1, "ada"), LimitExceededError)


def test_an_ipv6_network_has_the_share_of_one_address() -> None:
    traffic = Traffic(max_connections=10, max_connections_per_address=1)
    for host, room in (
        ("2001:db8::1", Room.FREE),
        ("2001:db8::2", Room.SHARE_TAKEN),
        ("2001:db8:0:1::1", Room.FREE),
        ("192.0.2.1", Room.FREE),
        ("::ffff:192.0.2.1", Room.SHARE_TAKEN),
        ("192.0.2.2", Room.FREE),
    ):
        assert traffic.connection_opened(traffic.address_of(host)) is room


def test_a_trusted_proxy_and_a_socket_without_an_address_have_no_share() -> None:
    traffic = Traffic(max_connections=3, max_connections_per_address=1, proxies=("10.0.0.0/8",))
    proxy = traffic.address_of("10.1.2.3")
    nowhere = traffic.address_of("")
    assert [traffic.connection_opened(address) for address in (proxy, proxy, nowhere)] == [Room.FREE] * 3
    assert traffic.connection_opened(nowhere) is Room.ALL_TAKEN
    for address in (proxy, proxy, nowhere, nowhere):
        traffic.connection_closed(address)
    assert traffic.connections == 0


@pytest.mark.parametrize(("of_all", "of_one"), [(1, 1), (3, 2), (10, 5)])
def test_an_address_has_half_of_the_connections_where_nothing_else_is_said(of_all: int, of_one: int) -> None:
    assert Traffic(max_connections=of_all).max_connections_per_address == of_one
