"""The counts of scripts/readability.py, and the limits of one SendMessage."""

from scripts.readability import Counted, count, follow_send, follow_send_of_sdk

# Of one SendMessage through src/apcore_a2a. They may shrink, and do not grow.
MAX_FILES = 28
MAX_SWITCHES = 179

SOURCE = '''
"""A docstring."""
a, b = 1, 2
c, d = pair()  # unpacking one value is not a tuple assignment
e = 1 if a else 2
if (f := a) and [g for g in (1, 2)]:  # a comment
    pass
'''


def test_each_kind_is_counted() -> None:
    assert count(SOURCE) == Counted(lines=5, tuples=1, conditions=1, walruses=1, comprehensions=1, comments=2)


async def test_one_message_stays_in_few_files() -> None:
    walk = await follow_send()

    assert walk.calls > walk.depth > 1
    assert 1 < walk.files <= MAX_FILES
    assert walk.files < walk.switches <= MAX_SWITCHES


async def test_the_same_message_is_followed_through_the_sdk() -> None:
    walk = await follow_send_of_sdk()

    assert walk is not None
    assert walk.switches > walk.files > 1
