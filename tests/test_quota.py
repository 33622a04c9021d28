"""The counter behind every limit by account or address: it must never lose or keep an amount."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apcore_a2a.quota import ANONYMOUS_PREFIX, QuotaCounter

AMOUNTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(min_value=0, max_value=9)))


def test_each_key_is_counted_by_itself() -> None:
    counter = QuotaCounter()
    counter.add("ada")
    counter.add("bob", 5)
    counter.add("ada")
    assert (counter.used_by("ada"), counter.used_by("bob"), counter.used_by("eve")) == (2, 5, 0)
    assert counter.total == 7
    counter.subtract("bob", 2)
    assert (counter.used_by("ada"), counter.used_by("bob"), counter.total) == (2, 3, 5)


def test_a_key_that_uses_nothing_is_forgotten() -> None:
    counter = QuotaCounter()
    for address in range(1_000):
        counter.add(f"192.0.2.{address}")
        counter.subtract(f"192.0.2.{address}")
    counter.add("192.0.2.1", 0)
    counter.subtract("192.0.2.1", 0)
    assert (len(counter), counter.total) == (0, 0)


@pytest.mark.parametrize(("key", "part", "most"), [("ada", 10, 20), (f"{ANONYMOUS_PREFIX}192.0.2.1", 10, 2)])
def test_a_key_is_used_up_at_its_limit_which_is_lower_for_anonymous_callers(key: str, part: int, most: int) -> None:
    counter = QuotaCounter()
    for _ in range(most):
        assert not counter.is_used_up(key, 20, part)
        counter.add(key)
    assert counter.is_used_up(key, 20, part)


def test_an_anonymous_caller_may_use_at_least_one() -> None:
    assert not QuotaCounter().is_used_up(ANONYMOUS_PREFIX, 5, 10)


@given(AMOUNTS)
def test_the_total_is_the_sum_of_all_keys(amounts: list[tuple[str, int]]) -> None:
    counter = QuotaCounter()
    for key, amount in amounts:
        counter.add(key, amount)
    assert counter.total == sum(counter.used_by(key) for key in "abc")
    for key, amount in reversed(amounts):
        counter.subtract(key, amount)
    assert (len(counter), counter.total) == (0, 0)
