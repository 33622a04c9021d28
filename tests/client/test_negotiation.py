"""The choice of an interface from the card, and the headers of its requests."""

from typing import Any

import httpx
import pytest

from apcore_a2a.client import A2AClient
from apcore_a2a.client.auth import TrustedOrigins
from apcore_a2a.errors import A2ADiscoveryError, ExtensionSupportRequiredError
from tests.client.conftest import Connect
from tests.client.scripted import CARD, ScriptedServer, card, card_03, respond, result, task

RPC = "JSONRPC"
REST = "HTTP+JSON"
COMPLETED = {"0.3": {"state": "completed"}, "1.0": {"state": "TASK_STATE_COMPLETED"}}
BOTH = {"binding": REST, "version": "0.3"}


def offer(url: str, binding: str = RPC, version: str = "1.0", **more: str) -> dict[str, str]:
    return {"url": url, "protocolBinding": binding, "protocolVersion": version} | more


async def chosen(client: A2AClient) -> tuple[str, str, str]:
    interface = await client.interface
    return interface.url.rpartition("/")[2], interface.protocol_binding, interface.protocol_version


@pytest.mark.parametrize(
    ("offers", "options", "expected"),
    [
        ([("a", RPC, "1.0"), ("b", REST, "1.0")], {}, ("a", RPC, "1.0")),
        ([("b", REST, "1.0"), ("a", RPC, "1.0")], {}, ("b", REST, "1.0")),
        ([("a", RPC, "0.3"), ("b", RPC, "1.0")], {}, ("a", RPC, "0.3")),
        ([("g", "GRPC", "2.0"), ("x", "https://example.com/own", "1.0"), ("a", RPC, "1.0")], {}, ("a", RPC, "1.0")),
        ([("g", "GRPC", "1.0"), ("a", RPC, "1.0")], {}, ("g", "GRPC", "1.0")),
        ([("a", RPC, "1.0"), ("g", "GRPC", "0.3")], {"binding": "GRPC"}, ("g", "GRPC", "0.3")),
        ([("f", RPC, "2.0"), ("a", RPC, "1.0.1")], {}, ("a", RPC, "1.0")),
        ([("o", RPC, "0.2.6")], {}, ("o", RPC, "0.3")),
        ([("a", RPC, "1.0"), ("b", REST, "1.0")], {"binding": REST}, ("b", REST, "1.0")),
        ([("a", RPC, "1.0"), ("b", RPC, "0.3")], {"version": "0.3"}, ("b", RPC, "0.3")),
        ([("a", RPC, "0.3"), ("b", REST, "1.0"), ("c", REST, "0.3")], BOTH, ("c", REST, "0.3")),
    ],
)
async def test_the_first_supported_interface_of_the_card_is_used(
    server: ScriptedServer,
    connect: Connect,
    offers: list[tuple[str, str, str]],
    options: dict[str, Any],
    expected: tuple[str, str, str],
) -> None:
    interfaces = [offer(f"{server.url}/{path}", binding, version) for path, binding, version in offers]
    server.on(CARD, respond(card(server.url, supportedInterfaces=interfaces)))

    assert await chosen(connect(**options)) == expected


async def test_a_0_3_card_is_supported(server: ScriptedServer, connect: Connect) -> None:
    more = [{"url": f"{server.url}/rest", "transport": REST}]
    server.on(CARD, respond(card_03(server.url, additionalInterfaces=more)))

    assert await chosen(connect()) == ("", RPC, "0.3")
    assert await chosen(connect(binding=REST)) == ("rest", REST, "0.3")


async def test_the_1_0_interfaces_of_a_card_for_both_versions_are_used(
    server: ScriptedServer, connect: Connect
) -> None:
    server.on(CARD, respond(card_03(server.url) | card(server.url)))

    assert await chosen(connect()) == ("", RPC, "1.0")


@pytest.mark.parametrize(
    ("offers", "options", "said"),
    [
        (
            [("a", "SOAP", "1.0")],
            {},
            r"offers SOAP 1\.0, but this client is set to JSONRPC, HTTP\+JSON or GRPC, A2A 1\.0 or 0\.3",
        ),
        ([("a", "GRPC", "1.0")], {"http": httpx.AsyncClient()}, r"set to JSONRPC or HTTP\+JSON, .*Leave http= out"),
        ([("a", RPC, "1.0")], {"version": "0.3"}, r"offers JSONRPC 1\.0, .* A2A 0\.3"),
        ([], {}, "offers no interface"),
    ],
)
async def test_an_error_lists_the_interfaces_if_none_is_supported(
    server: ScriptedServer,
    connect: Connect,
    offers: list[tuple[str, str, str]],
    options: dict[str, Any],
    said: str,
) -> None:
    interfaces = [offer(f"{server.url}/{path}", binding, version) for path, binding, version in offers]
    server.on(CARD, respond(card(server.url, supportedInterfaces=interfaces)))

    with pytest.raises(A2ADiscoveryError, match=said):
        await connect(**options).send_message("hi")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "foreign",
    ["http://169.254.169.254/", "https://127.0.0.1/", "http://evil.example/", "file:///etc", "http://a@b/", "\u202ex"],
)
async def test_an_untrusted_address_in_a_card_is_not_called(
    server: ScriptedServer, connect: Connect, foreign: str
) -> None:
    server.on(CARD, respond(card(server.url, supportedInterfaces=[offer(foreign)])))

    with pytest.raises(A2ADiscoveryError, match=r"another origin, .*If you trust that origin, pass allow_origins="):
        await connect(auth="Bearer s3cret").send_message("hi")


async def test_an_interface_on_the_trusted_origin_is_preferred(server: ScriptedServer, connect: Connect) -> None:
    interfaces = [offer("http://evil.example/"), offer(f"{server.url}/home", REST)]
    server.on(CARD, respond(card(server.url, supportedInterfaces=interfaces)))

    assert await chosen(connect()) == ("home", REST, "1.0")


async def test_an_allowed_origin_is_called_and_gets_the_credentials(server: ScriptedServer, connect: Connect) -> None:
    async with ScriptedServer() as other:
        other.on("/", result({"task": task()}))
        server.on(CARD, respond(card(other.url)))
        await connect(auth="Bearer s3cret", allow_origins=[other.url]).send_message("hi")

        assert [request.headers["authorization"] for request in other.requests] == ["Bearer s3cret"]


async def test_a_changed_card_selects_its_new_interface(server: ScriptedServer, connect: Connect) -> None:
    moved = card(server.url, supportedInterfaces=[offer(f"{server.url}/new")])
    server.on(CARD, respond(card(server.url)), respond(moved)).on("/", result(task())).on("/new", result(task()))
    client = connect(card_ttl=0.0)

    await client.get_task("t-1")
    await client.get_task("t-1")

    assert [request.path for request in server.requests] == [CARD, "/", CARD, "/new"]


@pytest.mark.parametrize(("version", "said"), [("1.0", "1.0"), ("0.3", None)])
async def test_the_version_header_is_sent_for_1_0_only(
    server: ScriptedServer, connect: Connect, version: str, said: str | None
) -> None:
    server.on(CARD, respond(card(server.url, supportedInterfaces=[offer(f"{server.url}/", RPC, version)])))
    server.on("/", result(task(status=COMPLETED[version])))

    await connect().get_task("t-1")

    assert server.asked("/")[0].headers.get("a2a-version") == said


async def test_the_tenant_of_the_interface_is_echoed_in_every_request(server: ScriptedServer, connect: Connect) -> None:
    server.on(CARD, respond(card(server.url, supportedInterfaces=[offer(f"{server.url}/", tenant="acme")])))
    server.on("/", result(task()))
    client = connect()

    await client.get_task("t-1")
    await client.cancel_task("t-1")

    assert [request.json["params"]["tenant"] for request in server.asked("/")] == ["acme", "acme"]


async def test_over_rest_the_tenant_is_a_path_prefix(server: ScriptedServer, connect: Connect) -> None:
    interfaces = [offer(f"{server.url}/api", REST, tenant="a/b")]
    server.on(CARD, respond(card(server.url, supportedInterfaces=interfaces)))
    server.on("/api/a%2Fb/tasks/t-1", respond(task()))

    assert (await connect().get_task("t-1")).id == "t-1"


async def test_a_required_extension_must_be_declared(server: ScriptedServer, connect: Connect) -> None:
    extensions = [{"uri": "https://example.com/ext", "required": True}, {"uri": "https://example.com/other"}]
    server.on(CARD, respond(card(server.url, capabilities={"extensions": extensions})))

    with pytest.raises(ExtensionSupportRequiredError, match=r"https://example\.com/ext"):
        await connect().send_message("hi")
    assert len(server.requests) == 1


@pytest.mark.parametrize(("version", "header"), [("1.0", "a2a-extensions"), ("0.3", "x-a2a-extensions")])
async def test_declared_extensions_are_sent_in_the_header_of_the_version(
    server: ScriptedServer, connect: Connect, version: str, header: str
) -> None:
    changes: dict[str, Any] = {
        "supportedInterfaces": [offer(f"{server.url}/", RPC, version)],
        "capabilities": {"extensions": [{"uri": "https://example.com/ext", "required": True}]},
    }
    server.on(CARD, respond(card(server.url, **changes)))
    server.on("/", result(task(status=COMPLETED[version])))

    client = connect(extensions=iter(["https://example.com/ext", "https://example.com/b"]))
    await client.get_task("t-1")
    await client.refresh_card()
    await client.get_task("t-1")

    said = [request.headers[header] for request in server.asked("/")]
    assert said == ["https://example.com/ext, https://example.com/b"] * 2


@pytest.mark.parametrize("said", ["http://127.0.0.1:8000/", "http://[::1]:8000/", "http://localhost:8000/"])
def test_loopback_names_are_one_origin(said: str) -> None:
    trusted = TrustedOrigins("http://localhost:8000")
    assert said in trusted
    assert "http://127.0.0.1:8001/" not in trusted
    assert "https://127.0.0.1:8000/" not in trusted
    assert "http://127.0.0.2:8000/" not in trusted
