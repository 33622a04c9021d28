"""Answers that mix the forms of 0.3 and 1.0 are read as those of 1.0."""

import json
from typing import Any

import pytest

from apcore_a2a.protocol import mixed
from apcore_a2a.protocol.model import ArtifactUpdate, Message, Operation, StatusUpdate, Task

STATUS = {"state": "completed"}
SAID = {"messageId": "m", "role": "agent", "parts": [{"kind": "text", "text": "hi"}]}
ARTIFACT = {"artifactId": "a", "parts": [{"text": "x"}]}


def decode(value: Any) -> Any:
    left_out: list[str] = []
    decoded = mixed.decode_result(Operation.SEND, json.dumps(value).encode(), left_out)
    assert left_out == []
    return decoded


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"id": "t", "contextId": "c", "status": STATUS}, Task),
        ({"taskId": "t", "contextId": "c", "status": STATUS}, StatusUpdate),
        ({"taskId": "t", "contextId": "c", "artifact": ARTIFACT}, ArtifactUpdate),
        (SAID, Message),
        ({"message": SAID}, Message),
    ],
    ids=["task", "status", "artifact", "message", "wrapped message"],
)
def test_an_event_without_wrapper_and_kind_is_known_by_its_fields(value: Any, kind: type) -> None:
    assert type(decode(value)) is kind


@pytest.mark.parametrize(
    ("file", "raw", "url"),
    [
        ({"bytes": "aGk=", "uri": "https://files.example/a", "name": "a.txt", "mimeType": "text/plain"}, b"hi", None),
        (
            {"uri": "https://files.example/a", "name": "a.txt", "mimeType": "text/plain"},
            None,
            "https://files.example/a",
        ),
    ],
    ids=["content and address", "address"],
)
def test_a_file_of_0_3_has_the_fields_of_1_0(file: Any, raw: bytes | None, url: str | None) -> None:
    (part,) = decode({**SAID, "parts": [{"kind": "file", "file": file}]}).parts
    assert (part.filename, part.media_type) == ("a.txt", "text/plain")
    assert (part.raw or None, part.url or None) == (raw, url)
