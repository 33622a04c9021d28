"""An agent's errors are raised with the class that the agent used, over every binding and version."""

from typing import Any

import pytest

from apcore_a2a.client import Retry
from apcore_a2a.client.failures import BY_CODE
from apcore_a2a.errors import (
    WIRE,
    A2AConnectionError,
    A2AError,
    A2AServerError,
    AgentError,
    ExtensionSupportRequiredError,
    InvalidParamsError,
    LimitExceededError,
    MethodNotFoundError,
    OverloadedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnauthenticatedError,
    VersionNotSupportedError,
    Violation,
    wire,
)
from apcore_a2a.protocol import v1
from apcore_a2a.protocol.dialect import Dialect
from apcore_a2a.protocol.model import encode
from apcore_a2a.protocol.v03 import jsonrpc as v03
from apcore_a2a.protocol.v03 import rest as v03_rest
from tests.client.conftest import Connect
from tests.client.scripted import CARD, ScriptedServer, card, error, respond
from tests.requirements import requirement

SAMPLES: dict[type[A2AError], A2AError] = {
    InvalidParamsError: InvalidParamsError("bad", [Violation("message.parts", "is required")]),
    TaskNotFoundError: TaskNotFoundError("t-1"),
    TaskNotCancelableError: TaskNotCancelableError("t-1", "completed"),
    ExtensionSupportRequiredError: ExtensionSupportRequiredError("https://example.com/ext"),
    VersionNotSupportedError: VersionNotSupportedError("2.0", ["1.0", "0.3"]),
}
UNCLEAR = {A2AError, AgentError}  # their caller receives an A2AServerError


def sample(kind: type[A2AError]) -> A2AError:
    return SAMPLES.get(kind) or kind("what happened")


async def received(server: ScriptedServer, connect: Connect, **options: Any) -> A2AError:
    with pytest.raises(A2AError) as caught:
        await connect(retry=Retry(attempts=1), **options).get_task("t-1")
    return caught.value


def interfaces(server: ScriptedServer, binding: str, version: str) -> bytes:
    offers = [{"url": f"{server.url}/", "protocolBinding": binding, "protocolVersion": version}]
    return respond(card(server.url, supportedInterfaces=offers))


@pytest.mark.parametrize("kind", WIRE, ids=lambda kind: str(kind.__name__))
async def test_an_error_of_1_0_comes_back_over_json_rpc(
    server: ScriptedServer, connect: Connect, kind: type[A2AError]
) -> None:
    sent = sample(kind)
    server.on("/", error(*encoded(v1, sent)))

    got = await received(server, connect)

    assert type(got) is (A2AServerError if kind in UNCLEAR else kind)
    assert str(got) == str(sent)
    assert sent.metadata.items() <= got.metadata.items()


def encoded(dialect: Dialect, sent: A2AError) -> tuple[int, str, object]:
    told = dialect.encode_error(sent)
    return told.code, told.message, told.data


@pytest.mark.parametrize("kind", WIRE, ids=lambda kind: str(kind.__name__))
async def test_an_error_of_1_0_comes_back_over_rest(
    server: ScriptedServer, connect: Connect, kind: type[A2AError]
) -> None:
    sent = sample(kind)
    status = wire(sent).http
    server.on(CARD, interfaces(server, "HTTP+JSON", "1.0"))
    server.on("/tasks/t-1", respond(v1.encode_rest_error(sent, status), status))

    got = await received(server, connect)

    assert type(got) is (A2AServerError if kind in UNCLEAR else kind)
    assert str(got) == str(sent)


@pytest.mark.parametrize("kind", dict.fromkeys(BY_CODE.values()), ids=lambda kind: str(kind.__name__))
async def test_an_error_of_0_3_comes_back_over_json_rpc_and_rest(
    server: ScriptedServer, connect: Connect, kind: type[A2AError]
) -> None:
    sent = sample(kind)
    server.on(CARD, interfaces(server, "JSONRPC", "0.3"), interfaces(server, "HTTP+JSON", "0.3"))
    server.on("/", error(*encoded(v03, sent)))
    server.on("/v1/tasks/t-1", respond(v03_rest.encode_rest_error(sent, 400), wire(sent).http))

    over_rpc = await received(server, connect)
    over_rest = await received(server, connect)

    assert (type(over_rpc), type(over_rest)) == (kind, kind)
    assert (str(over_rpc), str(over_rest)) == (str(sent), str(sent))


@requirement("FR-CLI-003", "FR-CLI-005")
@pytest.mark.parametrize(
    ("code", "kind"), [(-32001, TaskNotFoundError), (-32002, TaskNotCancelableError), (-32603, A2AServerError)]
)
async def test_an_error_code_without_a_reason_selects_the_class(
    server: ScriptedServer, connect: Connect, code: int, kind: type[A2AError]
) -> None:
    server.on("/", error(code, "it went wrong"))

    got = await received(server, connect)

    assert (type(got), str(got)) == (kind, "it went wrong")


@requirement("FR-CLI-003")
async def test_a_server_error_keeps_code_and_data(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", error(-32042, "odd", {"why": ["because"]}))

    got = await received(server, connect)

    assert isinstance(got, A2AServerError)
    assert (got.code, got.data) == (-32042, {"why": ["because"]})


@pytest.mark.parametrize("dialect", [v1, v03], ids=["1.0", "0.3"])
async def test_invalid_fields_are_listed_in_the_error(
    server: ScriptedServer, connect: Connect, dialect: Dialect
) -> None:
    server.on(CARD, interfaces(server, "JSONRPC", dialect.VERSION))
    server.on("/", error(*encoded(dialect, SAMPLES[InvalidParamsError])))

    got = await received(server, connect)

    assert isinstance(got, InvalidParamsError)
    assert [(one.field, one.message) for one in got.violations] == [("message.parts", "is required")]


HALF_PAST = "Wed, 18 Nov 2026 10:30:00 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Date": HALF_PAST, "Retry-After": "Wed, 18 Nov 2026 10:30:07 GMT"}, 7),
        ({"Date": HALF_PAST, "Retry-After": "Wed Nov 18 10:30:07 2026"}, 7),
        ({"Date": HALF_PAST, "Retry-After": "Wed, 18 Nov 2026 10:29:00 GMT"}, 1),
        ({"Retry-After": "Wed, 18 Nov 2020 10:30:00 GMT"}, 1),
        ({"Retry-After": "Wed, 18 Nov 2026 10:30:00 +99999999999999"}, 1),
        ({"Retry-After": "soon"}, 1),
    ],
    ids=["date", "old date", "past", "no clock", "no date", "no sense"],
)
async def test_retry_after_may_be_a_date(
    server: ScriptedServer, connect: Connect, headers: dict[str, str], seconds: int
) -> None:
    server.on("/", respond({}, 503, headers))

    with pytest.raises(OverloadedError) as caught:
        await connect(retry=Retry(attempts=1)).get_task("t-1")
    assert caught.value.retry_after == seconds


REALM = {"WWW-Authenticate": 'Bearer realm="x"'}
BARE = [
    (401, REALM, UnauthenticatedError, r'credentials \(Bearer realm="x"\)\. Pass auth='),
    (403, {}, A2AServerError, "answered HTTP 403"),
    (404, {}, A2AServerError, "answered HTTP 404"),
    (429, {"Retry-After": "7"}, LimitExceededError, "rejects further requests of this caller"),
    (503, {"Retry-After": "7"}, OverloadedError, "overloaded"),
    (502, {}, A2AServerError, "answered HTTP 502"),
    (302, {"Location": "http://169.254.169.254/"}, A2AConnectionError, r"redirects to .*\. Redirects are not followed"),
]


@pytest.mark.parametrize("bare", BARE, ids=lambda bare: str(bare[0]))
@pytest.mark.parametrize("body", [b"", b"<html>", b'{"detail":"x"}', b"[]"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_an_http_status_without_an_error_body_gives_a_specific_error(
    server: ScriptedServer, connect: Connect, bare: Any, body: bytes, binding: str
) -> None:
    status, headers, kind, said = bare
    server.on(CARD, interfaces(server, binding, "1.0"))
    server.on("/", respond(body, status, headers)).on("/tasks/t-1", respond(body, status, headers))

    with pytest.raises(kind, match=said) as caught:
        await connect(retry=Retry(attempts=1), auth="Bearer s3cret").get_task("t-1")
    if isinstance(caught.value, OverloadedError):
        assert caught.value.retry_after == 7


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, TaskNotFoundError), (409, TaskNotCancelableError), (422, InvalidParamsError), (500, A2AServerError)],
)
async def test_an_error_without_a_reason_is_mapped_by_its_status(
    server: ScriptedServer, connect: Connect, status: int, kind: type[A2AError]
) -> None:
    server.on(CARD, interfaces(server, "HTTP+JSON", "0.3"))
    server.on("/v1/tasks/t-1", respond({"message": "as a2a-sdk 0.3 says it"}, status))

    got = await received(server, connect)

    assert (type(got), str(got)) == (kind, "as a2a-sdk 0.3 says it")


async def test_an_error_in_the_body_takes_precedence_over_the_http_status(
    server: ScriptedServer, connect: Connect
) -> None:
    server.on("/", error(-32601, "no such method", status=404))

    assert type(await received(server, connect)) is MethodNotFoundError


@pytest.mark.parametrize(("status", "kind"), [(401, UnauthenticatedError), (503, OverloadedError)])
async def test_an_http_status_takes_precedence_over_an_internal_error(
    server: ScriptedServer, connect: Connect, status: int, kind: type[A2AError]
) -> None:
    server.on("/", error(-32603, "Internal error", status=status))

    assert type(await received(server, connect)) is kind


async def test_an_overload_error_has_its_retry_after_over_every_binding(
    server: ScriptedServer, connect: Connect
) -> None:
    told = {"code": -32603, "message": "busy", "data": [{"reason": "OVERLOADED"}]}
    body = {"jsonrpc": "2.0", "id": None, "error": told}
    server.on("/", respond(body, 503, {"Retry-After": "7"}))

    got = await received(server, connect)

    assert isinstance(got, OverloadedError)
    assert (str(got), got.retry_after) == ("busy", 7)


async def test_an_agents_error_text_is_reduced_to_one_truncated_line(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", error(-32603, "a\nb\x1b[31m\u202e" + "x" * 10_000))

    text = str(await received(server, connect))

    assert text.startswith("a bxx")
    assert len(text) == 500


@pytest.mark.parametrize("data", [None, [], {}, "text", [1], [{"reason": 1}], [{"reason": "UNKNOWN", "metadata": []}]])
async def test_unknown_error_details_are_ignored(server: ScriptedServer, connect: Connect, data: object) -> None:
    server.on("/", error(-32001, "gone", data))

    assert type(await received(server, connect)) is TaskNotFoundError


async def test_harmless_error_text_is_unchanged(server: ScriptedServer, connect: Connect) -> None:
    server.on("/", error(-32603, "Grüße, 世界 👋"))

    assert str(await received(server, connect)) == "Grüße, 世界 👋"


def test_every_error_code_maps_back_to_a_class() -> None:
    assert {row.code for row in WIRE.values()} - BY_CODE.keys() == {wire(A2AError()).code}
    assert encode(sorted(BY_CODE))  # only numbers
