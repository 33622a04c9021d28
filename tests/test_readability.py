"""The script that counts what makes code hard to read counts right."""

from scripts.readability import Counted, count, follow_send

SOURCE = '''
"""A docstring."""
a, b = 1, 2
c, d = pair()  # taking one value apart is no tuple assignment
e = 1 if a else 2
if (f := a) and [g for g in (1, 2)]:  # a comment
    pass
'''


def test_each_kind_is_counted() -> None:
    assert count(SOURCE) == Counted(lines=5, tuples=1, conditions=1, walruses=1, comprehensions=1, comments=2)


async def test_a_message_is_followed_through_the_package() -> None:
    walk = await follow_send()
    assert walk.calls > walk.depth > 1
    assert walk.switches > 1
