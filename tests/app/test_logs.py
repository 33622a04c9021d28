"""What is logged: one line a record, whatever a client wrote into it."""

import json
import logging

import pytest

from apcore_a2a.app.logs import MAX_TEXT, JSONFormatter, TextFormatter, clean_value

HOSTILE = "a\r\nlevel=error forged\x1b[31m\x00\u2028\u202e end"


def record(message: str = "webhook gave up", **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("apcore_a2a.x", logging.WARNING, "x.py", 1, message, None, None)
    vars(made).update(extra)
    return made


def test_client_text_is_cut_and_has_no_control_characters() -> None:
    assert clean_value("x" * 5000) == "x" * MAX_TEXT + "…"
    assert MAX_TEXT == 1000
    assert clean_value("a\x00b\x1b[0m\x7fc\u2028\u202ed") == "abcd"
    assert clean_value("tab\tnew\nline") == "tab\tnew\nline"


@pytest.mark.parametrize("value", [7, 1.5, True, None])
def test_numbers_stay_numbers(value: object) -> None:
    assert clean_value(value) is value


@pytest.mark.parametrize("formatter", [JSONFormatter(), TextFormatter(color=False), TextFormatter(color=True)])
def test_a_record_is_one_line_whatever_a_client_wrote(formatter: logging.Formatter) -> None:
    line = formatter.format(record(HOSTILE, task_id=HOSTILE))
    assert len(line.splitlines()) == 1
    assert "\x1b[31m\x00" not in line


def test_a_json_record_says_what_when_where_and_the_rest() -> None:
    entry = json.loads(JSONFormatter().format(record(task_id="t-1", attempts=3)))
    assert (entry["level"], entry["logger"], entry["message"]) == ("warning", "apcore_a2a.x", "webhook gave up")
    assert (entry["task_id"], entry["attempts"]) == ("t-1", 3)
    assert entry["time"].endswith("Z")


def test_a_traceback_is_for_the_log() -> None:
    try:
        raise ValueError("x")
    except ValueError as error:
        made = record()
        made.exc_info = (type(error), error, error.__traceback__)
    assert "ValueError: x" in json.loads(JSONFormatter().format(made))["exception"]
    assert "ValueError: x" in TextFormatter(color=False).format(made)
