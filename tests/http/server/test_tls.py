"""https, and callers who show a certificate: on a real socket, with certificates of real authorities."""

import ssl
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from apcore_a2a import A2AClient, ClientCertificateAuthenticator
from apcore_a2a.auth.client_certificates import MAX_CACHED, certified_name
from apcore_a2a.errors import A2AConnectionError
from apcore_a2a.http.server.tls import BadTLSFiles, TLSFiles, server_context
from apcore_a2a.protocol.model import Task, TaskState
from tests.fakes import COMPLETED, ScriptedAgent
from tests.interaction.serving import serving
from tests.processes import running

V1 = {"A2A-Version": "1.0"}
PLANNER = "planner.example"
AGENT = ScriptedAgent(default=(COMPLETED,))


class Authority:
    """A certificate authority, and the files of what it has certified."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.folder = folder
        self.pem = str(folder / "ca.pem")
        self.ca.cert_pem.write_to_path(self.pem)
        self.server = self.files("server", "127.0.0.1", "localhost")

    def files(self, name: str, *identities: str, **options: Any) -> tuple[str, str]:
        """Write a certificate with these identities and its key. Return both paths."""
        certified = self.ca.issue_cert(*identities, **options)
        certificate = str(self.folder / f"{name}.pem")
        key = str(self.folder / f"{name}.key")
        certified.private_key_pem.write_to_path(key)
        for place, blob in enumerate(certified.cert_chain_pems):
            blob.write_to_path(certificate, append=place > 0)
        return certificate, key

    def context(self, **options: Any) -> ssl.SSLContext:
        return server_context(TLSFiles(certfile=self.server[0], keyfile=self.server[1], **options))

    def trusting(self, certificate: tuple[str, str] | None = None) -> ssl.SSLContext:
        """What a client of ours has: trust in this authority, and maybe a certificate."""
        context = ssl.create_default_context(cafile=self.pem)
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"))


def in_header(certificate: tuple[str, str]) -> str:
    der = ssl.PEM_cert_to_DER_cert(Path(certificate[0]).read_text())
    return f":{b64encode(der).decode()}:"


def client(url: str, verify: ssl.SSLContext | bool, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, verify=verify, headers=V1 | headers)


# ---- https -------------------------------------------------------------------------------------------------------


async def test_the_card_of_a_server_with_tls_says_https_and_our_client_calls_it(authority: Authority) -> None:
    async with serving(AGENT, tls=authority.context()) as url:
        async with client(url, authority.trusting()) as http:
            card = (await http.get("/.well-known/agent-card.json")).json()
            target = url.removeprefix("https://")
            urls = [f"{url}/", url, target, f"{url}/", url, url]  # 1.0 has a bare target for gRPC
            assert [interface["url"] for interface in card["supportedInterfaces"]] == urls
            async with A2AClient(url, http=http) as agent:
                task = await agent.send_message("hello")
                assert isinstance(task, Task) and task.status.state is TaskState.COMPLETED
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            async with client(url, True) as http:
                await http.get("/health")


async def test_our_client_says_what_to_do_about_an_authority_it_does_not_know(authority: Authority) -> None:
    async with serving(AGENT, tls=authority.context()) as url, httpx.AsyncClient() as http:
        for transport in (None, http):
            async with A2AClient(url, http=transport) as agent:
                with pytest.raises(A2AConnectionError, match="set SSL_CERT_FILE to its file"):
                    await agent.agent_card


def test_tls_older_than_1_2_is_not_spoken(authority: Authority) -> None:
    assert authority.context().minimum_version is ssl.TLSVersion.TLSv1_2


def bad_files(folder: Path, authority: Authority, stranger: Authority) -> dict[str, TLSFiles]:
    certificate, key = authority.server
    nonsense = folder / "nonsense.pem"
    nonsense.write_text("no certificate")
    encrypted = folder / "encrypted.key"
    loaded = authority.ca.issue_cert("localhost").private_key_pem.bytes()
    private = serialization.load_pem_private_key(loaded, None)
    kept = serialization.BestAvailableEncryption(b"open sesame")
    form = serialization.PrivateFormat.PKCS8
    encrypted.write_bytes(private.private_bytes(serialization.Encoding.PEM, form, kept))
    missing = str(folder / "missing.pem")
    return {
        r"certificate .*missing.pem cannot be read \(No such file.*--ssl-certfile": TLSFiles(certfile=missing),
        r"key .*missing.pem cannot be read \(No such": TLSFiles(certfile=certificate, keyfile=missing),
        r"certificate .* cannot be read \(Is a directory\)": TLSFiles(certfile=str(folder), keyfile=key),
        r"is not the key of the certificate": TLSFiles(certfile=certificate, keyfile=stranger.server[1]),
        r"no private key in .*server.pem": TLSFiles(certfile=certificate),
        r"no usable TLS certificate in .*nonsense": TLSFiles(certfile=str(nonsense), keyfile=key),
        r"is encrypted; set its passphrase": TLSFiles(certfile=certificate, keyfile=str(encrypted)),
        r"passphrase .* is wrong": TLSFiles(certfile=certificate, keyfile=str(encrypted), keyfile_password="guess"),
        r"authorities' file .*missing.pem cannot": TLSFiles(certfile=certificate, keyfile=key, ca_certs=missing),
        r"no certificates in .*nonsense": TLSFiles(certfile=certificate, keyfile=key, ca_certs=str(nonsense)),
    }


def test_what_is_wrong_with_files_is_said_in_a_line_and_nothing_is_asked(
    tmp_path: Path, authority: Authority, stranger: Authority
) -> None:
    for said, files in bad_files(tmp_path, authority, stranger).items():
        with pytest.raises(BadTLSFiles, match=said) as caught:
            server_context(files)
        assert "\n" not in str(caught.value)


SERVE = """
from apcore_a2a import TLS, ClientCertificateAuthenticator, serve

async def echo(text: str) -> str:
    return text

serve(echo, host="127.0.0.1", port=0, {options})
"""


async def test_serve_speaks_https_knows_callers_by_certificate_and_says_so(authority: Authority) -> None:
    certificate, key = authority.server
    tls = f"TLS(certfile={certificate!r}, keyfile={key!r}, ca_certs={authority.pem!r}, client_certs='optional')"
    options = f"auth=ClientCertificateAuthenticator(), tls={tls}"
    async with running("-c", SERVE.format(options=options)) as process:
        url = (await process.says(r"running on (https://[\d.]+:\d+)"))[1]
        planner = authority.files("planner", PLANNER)
        async with client(url, authority.trusting(planner)) as http:
            card = (await http.get("/.well-known/agent-card.json")).json()
            assert card["securitySchemes"] == {"mutualTLS": {"mtlsSecurityScheme": {}}}
            assert (await http.get("/tasks")).status_code == 200
        async with client(url, authority.trusting()) as http:  # without one
            assert (await http.get("/tasks")).status_code == 401
            assert (await http.get("/health")).status_code == 200


async def test_a_start_that_fails_because_of_a_file_is_a_line_and_code_2(authority: Authority) -> None:
    flags = ["--ssl-certfile", authority.server[0], "--ssl-keyfile", "nowhere.key", "--port", "0"]
    extensions = str(Path(__file__).parents[3] / "examples" / "extensions")
    async with running("-m", "apcore_a2a", "serve", "--extensions-dir", extensions, *flags) as process:
        assert await process.ends() == 2
    assert "Error: The TLS key nowhere.key cannot be read" in process.said
    assert "Traceback" not in process.said
    async with running("-m", "apcore_a2a", "serve", "--extensions-dir", extensions, "--auth-type", "mtls") as process:
        assert await process.ends() == 1
    assert "--auth-type mtls needs --ssl-ca-certs" in process.said


# ---- callers with certificates ------------------------------------------------------------------------------------


async def test_required_certificates_keep_out_who_has_none_or_a_strangers(
    authority: Authority, stranger: Authority
) -> None:
    async with serving(AGENT, tls=authority.context(ca_certs=authority.pem)) as url:
        for shown in (None, stranger.files("planner", PLANNER)):
            with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
                async with client(url, authority.trusting(shown)) as http:
                    await http.get("/health")
        async with client(url, authority.trusting(authority.files("planner", PLANNER))) as http:
            assert (await http.get("/health")).status_code == 200


async def test_each_certificate_owns_its_tasks(authority: Authority) -> None:
    context = authority.context(ca_certs=authority.pem, client_certs="optional")
    async with serving(AGENT, tls=context, auth=ClientCertificateAuthenticator()) as url:
        message = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}
        seen = []
        for name in ("one", "two"):
            certificate = authority.files(name, f"{name}.example")
            async with client(url, authority.trusting(certificate)) as http:
                assert (await http.post("/message:send", json=message)).status_code == 200
                seen.append([task["id"] for task in (await http.get("/tasks")).json()["tasks"]])
        assert [len(tasks) for tasks in seen] == [1, 1]
        assert seen[0] != seen[1]


async def test_a_certificate_that_is_only_claimed_in_a_header_counts_for_nothing(authority: Authority) -> None:
    claimed = in_header(authority.files("planner", PLANNER))
    context = authority.context(ca_certs=authority.pem, client_certs="optional")
    async with serving(AGENT, tls=context, auth=ClientCertificateAuthenticator()) as url:
        for header in ("Client-Cert", "client-cert", "CLIENT-CERT"):
            async with client(url, authority.trusting(), **{header: claimed}) as http:
                assert (await http.get("/tasks")).status_code == 401
    # Nor does it take the place of the one that was shown.
    mine = authority.files("mine", "mine.example")
    seen: list[str | None] = []

    def name_of(shown: x509.Certificate) -> str:
        seen.append(certified_name(shown))
        return "x"

    auth = ClientCertificateAuthenticator(name_of=name_of)
    async with serving(AGENT, tls=context, auth=auth) as url:
        async with client(url, authority.trusting(mine), **{"Client-Cert": claimed}) as http:
            assert (await http.get("/tasks")).status_code == 200
    assert seen == ["mine.example"]


async def test_without_tls_a_header_authenticates_no_caller(authority: Authority) -> None:
    claimed = in_header(authority.files("planner", PLANNER))
    async with serving(AGENT, auth=ClientCertificateAuthenticator()) as url:
        async with client(url, True, **{"Client-Cert": claimed}) as http:
            assert (await http.get("/tasks")).status_code == 401
    async with serving(AGENT, auth=ClientCertificateAuthenticator(), trusted_proxies=["10.9.8.7"]) as url:
        async with client(url, True, **{"Client-Cert": claimed}) as http:
            assert (await http.get("/tasks")).status_code == 401


async def test_a_trusted_proxy_hands_certificates_on_in_either_form(authority: Authority) -> None:
    certificate = authority.files("planner", PLANNER)
    pem = quote(ssl.DER_cert_to_PEM_cert(b64decode(in_header(certificate).strip(":"))))
    auth = ClientCertificateAuthenticator(names=[PLANNER])
    async with serving(AGENT, auth=auth, trusted_proxies=["127.0.0.1"]) as url:
        for header, status in ((in_header(certificate), 200), (pem, 200), ("", 401), (":!:", 401), ("nonsense", 401)):
            async with client(url, True, **{"Client-Cert": header}) as http:
                assert (await http.get("/tasks")).status_code == status


async def test_of_two_certificates_that_a_proxy_hands_on_neither_counts(authority: Authority) -> None:
    planner = in_header(authority.files("planner", PLANNER))
    other = in_header(authority.files("other", "other.example"))
    async with serving(AGENT, auth=ClientCertificateAuthenticator(), trusted_proxies=["127.0.0.1"]) as url:
        async with client(url, True) as http:
            for first, second in ((planner, other), (other, planner)):
                both = [("Client-Cert", first), ("Client-Cert", second)]
                assert (await http.get("/tasks", headers=both)).status_code == 401


async def test_a_proxys_own_certificate_authenticates_no_caller(authority: Authority) -> None:
    context = authority.context(ca_certs=authority.pem, client_certs="optional")
    auth = ClientCertificateAuthenticator()
    async with serving(AGENT, tls=context, auth=auth, trusted_proxies=["127.0.0.1"]) as url:
        async with client(url, authority.trusting(authority.files("proxy", "proxy.example"))) as http:
            assert (await http.get("/tasks")).status_code == 401


# ---- callers of certificates ---------------------------------------------------------------------------------------


def self_made(*names: x509.GeneralName, subject: str = "CN=service") -> str:
    """A certificate as a proxy would hand it on."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name.from_rfc4514_string(subject)
    begin = datetime.now(UTC) - timedelta(days=1)
    made = x509.CertificateBuilder(who, who, key.public_key(), 1, begin, begin + timedelta(days=2))
    if names:
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
    der = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    return f":{b64encode(der).decode()}:"


URI = x509.UniformResourceIdentifier("spiffe://example.org/planner")
HOST = x509.DNSName("agent.example")
MAIL = x509.RFC822Name("a@b.example")


@pytest.mark.parametrize(
    ("names", "name"),
    [((HOST, MAIL, URI), URI.value), ((MAIL, HOST), HOST.value), ((MAIL,), MAIL.value), ((), "CN=service")],
)
def test_the_name_is_the_uri_then_the_host_then_the_address(names: tuple[x509.GeneralName, ...], name: str) -> None:
    caller = ClientCertificateAuthenticator(roles=["agent"]).authenticate({"client-cert": self_made(*names)})
    assert caller is not None
    assert (caller.id, caller.type, caller.issuer, caller.roles) == (name, "service", "CN=service", ("agent",))
    assert len(caller.attributes["fingerprint"]) == 64


def test_a_certificate_without_any_name_authenticates_no_caller() -> None:
    assert ClientCertificateAuthenticator().authenticate({"client-cert": self_made(subject="")}) is None


def test_the_same_name_from_two_authorities_is_two_callers(authority: Authority, stranger: Authority) -> None:
    auth = ClientCertificateAuthenticator()
    owners = set()
    for issuer in (authority, stranger):
        caller = auth.authenticate({"client-cert": in_header(issuer.files("planner", PLANNER))})
        assert caller is not None
        owners.add(caller.owner)
    assert len(owners) == 2


def test_only_names_on_the_list_come_in(authority: Authority) -> None:
    auth = ClientCertificateAuthenticator(names=[PLANNER])
    assert auth.authenticate({"client-cert": in_header(authority.files("planner", PLANNER))}) is not None
    for name in ("planner2.example", "a.planner.example", "planner"):
        assert auth.authenticate({"client-cert": in_header(authority.files("other", name))}) is None
    with pytest.raises(TypeError, match="not one string"):
        ClientCertificateAuthenticator(names=PLANNER)


def test_a_certificate_outside_its_validity_authenticates_no_caller(authority: Authority) -> None:
    auth = ClientCertificateAuthenticator()
    now = datetime.now(UTC)
    over = authority.files("over", PLANNER, not_before=now - timedelta(days=2), not_after=now - timedelta(seconds=1))
    later = authority.files("later", PLANNER, not_before=now + timedelta(days=1), not_after=now + timedelta(days=2))
    for certificate in (over, later, over):
        assert auth.authenticate({"client-cert": in_header(certificate)}) is None


def test_a_certificate_expires_while_it_is_remembered(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    auth = ClientCertificateAuthenticator()
    shown = {"client-cert": in_header(authority.files("planner", PLANNER))}
    assert auth.authenticate(shown) is not None

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Later":
            return cls(9000, 1, 1, tzinfo=UTC)

    monkeypatch.setattr("apcore_a2a.auth.client_certificates.datetime", Later)
    assert auth.authenticate(shown) is None


@pytest.mark.parametrize(
    "header",
    ["", ":", "::", ":AAAA:", "-----BEGIN CERTIFICATE-----", "%2D" * 20_000, ":" + "A" * 40_000 + ":", "\ud800"],
)
def test_an_invalid_certificate_authenticates_no_caller(header: str) -> None:
    assert ClientCertificateAuthenticator().authenticate({"client-cert": header}) is None


def test_only_so_many_certificates_are_remembered(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = x509.load_pem_x509_certificate(Path(authority.server[0]).read_bytes())
    monkeypatch.setattr("apcore_a2a.auth.client_certificates.parse_certificate", lambda _: certificate)
    reads = []

    def name_of(shown: x509.Certificate) -> str:
        reads.append(shown)
        return "x"

    auth = ClientCertificateAuthenticator(name_of=name_of)
    for number in range(MAX_CACHED + 1):
        assert auth.authenticate({"client-cert": str(number)}) is not None
    assert auth.authenticate({"client-cert": "0"}) is not None
    assert len(reads) == MAX_CACHED + 2  # the first was forgotten
