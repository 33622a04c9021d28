"""TLS certificates, card signatures, and progress at a terminal."""

import asyncio
import datetime
import json
import os
import pty
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.cli.conftest import Terminal, elsewhere
from tests.client.scripted import card, respond


def certificate(path: Path) -> None:
    """Write a key and a self-signed certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(private + signed.public_bytes(encoding))


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[str]:
    """Serve an agent that only has a card, with a self-signed certificate."""
    certificate(tmp_path / "both.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "both.pem")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(respond(card("https://127.0.0.1:1")))
        await writer.drain()
        writer.close()

    @asynccontextmanager
    async def serving() -> AsyncIterator[str]:
        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
            yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    with elsewhere(serving()) as url:
        yield url


def test_a_self_signed_certificate_is_rejected_unless_insecure_is_set(terminal: Terminal, secure: str) -> None:
    refused = terminal("card", secure, "--json")
    insisted = terminal("card", secure, "--insecure")

    assert (refused.code, refused.json["error"]["code"]) == (3, "A2ACLI_ERR_UNREACHABLE")
    assert (insisted.code, insisted.fields["Agent"]) == (0, "Scripted")
    assert insisted.err.startswith("Warning: TLS certificates are not verified")


def test_signatures_are_shown_as_verified_only_with_pinned_keys(
    terminal: Terminal, peer: Callable[[str], str], tmp_path: Path
) -> None:
    url = peer("js")
    path = tmp_path / "keys.json"
    keys = httpx.get(f"{url}/jwks.json").json()
    path.write_text(json.dumps(keys))

    assert terminal("card", url).fields["Signatures"].startswith("1, not verified")
    assert terminal("card", url, "--keys", str(path)).fields["Signatures"] == "1, verified"

    keys["keys"][0]["kid"] = "another"
    path.write_text(json.dumps(keys))
    wrong = terminal("card", url, "--keys", str(path), "--json")
    assert (wrong.code, wrong.json["error"]["code"]) == (1, "A2ACLI_ERR_CARD_INVALID")


def test_an_invalid_key_file_is_a_usage_error(terminal: Terminal, url: str, tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("nonsense")

    assert terminal("card", url, "--keys", str(tmp_path / "keys.json")).code == 2


def test_progress_is_shown_at_a_terminal_and_removed_from_the_result(url: str) -> None:
    mine, theirs = pty.openpty()
    command = [sys.executable, "-m", "apcore_a2a", "send", url, "hello"]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, timeout=20, check=True)
    os.close(theirs)
    shown = os.read(mine, 100_000).decode()
    os.close(mine)

    assert b"\x1b" not in run.stdout
    assert b"State: COMPLETED" in run.stdout
    assert " …" in shown
