"""Unguessable ids, and times in the format of A2A."""

import os
import re
import uuid
from collections import Counter

import pytest

from apcore_a2a.ids_and_time import new_id, utc_now

MANY = 4_096


def test_an_id_is_a_random_uuid() -> None:
    for text in (new_id() for _ in range(100)):
        known = uuid.UUID(text)
        assert (str(known), known.version, known.variant) == (text, 4, uuid.RFC_4122)


def test_every_digit_of_an_id_is_random_but_those_that_say_what_it_is() -> None:
    ids = [new_id() for _ in range(MANY)]
    assert len(set(ids)) == MANY
    seen = ["".join(sorted(Counter(column))) for column in zip(*ids, strict=True)]
    fixed = {8: "-", 13: "-", 14: "4", 18: "-", 19: "89ab", 23: "-"}
    assert seen == [fixed.get(place, "0123456789abcdef") for place in range(36)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes to fork here")
def test_a_forked_process_gives_out_ids_of_its_own() -> None:
    new_id()  # there are some ahead
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, new_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reader, 36).decode()
    assert theirs not in {new_id() for _ in range(200)}


def test_a_time_is_utc_in_milliseconds() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", utc_now())
