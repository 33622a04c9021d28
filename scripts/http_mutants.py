"""Mutation tests, as in `scripts.mutants`, of requests, limits, browsers, certificates and cards.

`python -m scripts.http_mutants [NAME…]`. The last lines name the ambiguous requests that no mutant accepted.
"""

import sys
from typing import Final

from scripts.limit_mutants import LIMITS
from scripts.mutants import Mutant, cases_of, run_all

SMUGGLING: Final = "tests/hostile/test_smuggling.py"
ORIGINS: Final = "tests/http/test_origins.py"
SAFE: Final = "tests/http/test_safe_headers.py"
TLS: Final = "tests/http/server/test_tls.py"
CARDS: Final = "tests/app/test_signing.py"
CANARIES: Final = "tests/hostile/test_canaries.py"
DRIBBLE: Final = "tests/hostile/test_connections.py"
REFUSALS: Final = "tests/http/test_refusals.py"
FLOOD: Final = "tests/hostile/test_http_limits.py"
TRAFFIC: Final = "tests/http/test_traffic.py"
DRAIN: Final = "tests/hostile/test_http_drain.py"

HANDSHAKES: Final = "tests/hostile/test_handshakes.py"
AMBIGUOUS: Final = "test_an_ambiguous_request_is_rejected"

LISTENER: Final = "../http/server/tls.py"
GUARD: Final = "../http/server/connection.py"
HOSTS: Final = "../http/middleware.py"
ROUTES: Final = "../app/routes.py"
SIGNING: Final = "../app/signing.py"
CERTIFICATES: Final = "client_certificates.py"
MIDDLEWARE: Final = "../http/middleware.py"
_START: Final = "        super().__init__(*args, **kwargs)\n"


def _lenient(name: str) -> str:
    return f"{_START}        self.parser.set_dangerous_leniencies(lenient_{name}=True)\n"


_TIMER: Final = "            self._guard_start_header_timer()\n            return\n        if room"
_ALL_LENIENT: Final = _START + "        self.parser.set_dangerous_leniencies(*[True] * 10)\n"
_NO_ADDRESS: Final = "    except ValueError:\n        return False\n"

MUTANTS: Final = (
    # ---- invalid requests: each strict check of the parser
    *(
        Mutant(f"the parser is strict about {name.replace('_', ' ')}", GUARD, _START, _lenient(name), SMUGGLING)
        for name in (
            "headers",
            "chunked_length",
            "transfer_encoding",
            "version",
            "optional_lf_after_cr",
            "optional_cr_before_lf",
            "optional_crlf_after_chunk",
            "spaces_after_chunk_size",
        )
    ),
    Mutant("the parser is strict at all", GUARD, _START, _ALL_LENIENT, SMUGGLING),
    Mutant(
        "invalid requests are rejected",  # many checks of the parser have no switch, so this suppresses all its errors
        GUARD,
        '        self.transport.write(_last_answer(b"400 Bad Request", headers, msg.encode()))\n',
        "",
        SMUGGLING,
    ),
    Mutant(
        "half a request does not delay the shutdown",
        GUARD,
        "        if is_receiving:\n",
        "        if False:\n",
        DRAIN,
    ),
    Mutant(
        "half a pipelined request does not delay the shutdown",
        GUARD,
        "        if self.is_stopping:\n",
        "        if False:\n",
        DRAIN,
        ((GUARD, "        if head.closes or connection.is_stopping:\n", "        if head.closes:\n"),),
    ),
    Mutant(
        "an unread response does not delay the shutdown",
        GUARD,
        "        self._guard_unread_timeout = self.timeouts.unread_at_shutdown\n",
        "",
        DRAIN,
    ),
    Mutant(
        "rejections do not flood the log",
        "../log_throttle.py",
        "            if now - written_at < INTERVAL:\n",
        "            if False:\n",
        REFUSALS,
    ),
    Mutant(
        "many callers do not flood the log",
        "../log_throttle.py",
        "        elif len(self._written_at) >= MAX_LINES:\n",
        "        elif False:\n",
        REFUSALS,
    ),
    Mutant("invalid requests do not flood the log", GUARD, "        self.logger = _UVICORN\n", "", REFUSALS),
    Mutant("a request with two hosts is rejected", HOSTS, "and _names_two_hosts(scope)", "and False", SMUGGLING),
    Mutant(
        "websockets are closed", "../app/application.py", 'if scope["type"] == "websocket":', "if False:", SMUGGLING
    ),
    Mutant("headers have a deadline", GUARD, _TIMER, "            return\n        if room", DRIBBLE),
    Mutant("data after a response has a deadline", GUARD, "if latest.phase is COMPLETE:", "if False:", DRIBBLE),
    Mutant(
        "connections are limited",
        "../http/traffic.py",
        "if self._connections.total > self.max_connections:",
        "if False:",
        FLOOD,
    ),
    Mutant(
        "one address has a share of connections",
        "../http/traffic.py",
        "if address and self._connections.used_by(address) > self.max_connections_per_address:",
        "if False:",
        f"{FLOOD} {TRAFFIC}",
    ),
    Mutant(
        "a trusted proxy has no share of connections",
        "../http/traffic.py",
        "if not host or host in self._proxies:",
        "if not host:",
        f"{FLOOD} {TRAFFIC}",
    ),
    Mutant(
        "bytes of incomplete bodies are limited",
        "../http/traffic.py",
        "if self._body_bytes.total + size > self.max_body_bytes:",
        "if False:",
        f"{FLOOD} {TRAFFIC}",
    ),
    Mutant(
        "one caller has a share of incomplete bodies",
        "../http/traffic.py",
        "if self._body_bytes.used_by(caller) + size > self.max_body_bytes_per_caller:",
        "if False:",
        f"{FLOOD} {TRAFFIC}",
    ),
    *LIMITS,
    # ---- browsers
    Mutant(
        "on the loopback interface Host is checked",
        HOSTS,
        "        if self._on_loopback:\n            return True\n        here",
        "        if self._on_loopback:\n            return False\n        here",
        ORIGINS,
    ),
    Mutant(
        "Host is checked for connections over the loopback interface",
        HOSTS,
        "return self._is_open and here is not None and is_loopback(here[0])",
        "return False",
        ORIGINS,
    ),
    Mutant(
        "127.0.0.1.evil.example is another host",
        "../web.py",
        "return ip_address(host).is_loopback",
        'return host.startswith("127.")',
        ORIGINS,
        (("../web.py", _NO_ADDRESS, _NO_ADDRESS.replace("return False", "return host.startswith('127.')")),),
    ),
    Mutant(
        "a name with a dot is not a name of this machine",
        HOSTS,
        'return "." not in name or name.endswith(PRIVATE_SUFFIXES)',
        "return True",
        ORIGINS,
    ),
    Mutant(
        "Origin is checked", HOSTS, "if origin and self._is_forbidden(", "if False and self._is_forbidden(", ORIGINS
    ),
    Mutant(
        "a form of another origin is rejected on every interface",
        HOSTS,
        'return scope["method"] not in READS and',
        "return False and",
        ORIGINS,
    ),
    Mutant(
        "browsers do not guess the media type", "../web.py", '    (b"x-content-type-options", b"nosniff"),\n', "", SAFE
    ),
    Mutant("responses are not framed", "../web.py", '    (b"x-frame-options", b"DENY"),\n', "", SAFE),
    Mutant(
        "responses set no-referrer",
        "../web.py",
        '    (b"referrer-policy", b"no-referrer"),\n',
        "",
        SAFE,
    ),
    Mutant("responses are not cached", "../web.py", '((b"cache-control", b"no-store"),)', "()", SAFE),
    Mutant("HSTS is not sent for localhost", "../app/serve.py", " or is_loopback(settings.host)", "", SAFE),
    Mutant(
        "CORS allows no credentials",
        ROUTES,
        "        allow_origins=origins,\n",
        "        allow_origins=origins,\n        allow_credentials=True,\n",
        SAFE,
    ),
    # ---- certificates
    Mutant(
        "clients cannot set the certificate header",
        MIDDLEWARE,
        '[pair for pair in scope["headers"] if pair[0] != HEADER]',
        'list(scope["headers"])',
        TLS,
    ),
    Mutant(
        "only a trusted proxy forwards certificates",
        MIDDLEWARE,
        "!= HEADER]\n        if peer is not None and peer[0] in self._proxies:",
        "!= HEADER]\n        if True:",
        TLS,
    ),
    Mutant(
        "a proxy's own certificate authenticates no caller",
        MIDDLEWARE,
        "!= HEADER]\n        if peer is not None and peer[0] in self._proxies:",
        "!= HEADER]\n        if False:",
        TLS,
    ),
    Mutant(
        "client certificates are requested",
        "../http/server/tls.py",
        "context.verify_mode = _MODES[files.client_certs]",
        "pass",
        TLS,
    ),
    Mutant("TLS is 1.2 or later", "../http/server/tls.py", "ssl.TLSVersion.TLSv1_2", "ssl.TLSVersion.TLSv1", TLS),
    Mutant(
        "an expired certificate is rejected",
        CERTIFICATES,
        "if not begin <= datetime.now(UTC) <= end:",
        "if False:",
        TLS,
    ),
    Mutant(
        "only listed names are accepted",
        CERTIFICATES,
        " or (self._names is not None and name not in self._names)",
        "",
        TLS,
    ),
    Mutant(
        "names of two authorities are two callers",
        CERTIFICATES,
        "issuer=certificate.issuer.rfc4514_string()",
        'issuer=""',
        TLS,
    ),
    Mutant("cached certificates are limited", CERTIFICATES, "if len(self._cached) >= MAX_CACHED:", "if False:", TLS),
    Mutant("a certificate without a name is rejected", CERTIFICATES, "if not name or (", "if (", TLS),
    Mutant(
        "handshakes are limited",
        LISTENER,
        "if len(self._handshakes) >= self._limits.max_handshakes:",
        "if False:",
        HANDSHAKES,
    ),
    Mutant(
        "a new handshake replaces the oldest",
        LISTENER,
        "            self._handshakes.pop(oldest)\n            oldest.cancel()\n            return\n",
        "            return\n",
        HANDSHAKES,
    ),
    Mutant(
        "a handshake has a deadline",
        LISTENER,
        "ssl_handshake_timeout=self._limits.timeout",
        "ssl_handshake_timeout=60",
        HANDSHAKES,
    ),
    Mutant(
        "the event loop turns between handshakes",
        LISTENER,
        "            self._begin(connection, address)\n            await asyncio.sleep(0)",
        "            self._begin(connection, address)\n",
        HANDSHAKES,
    ),
    Mutant(
        "handshakes end with the server",
        LISTENER,
        "ending = [*self._accepting, *self._handshakes]",
        "ending = [*self._accepting]",
        HANDSHAKES,
    ),
    Mutant(
        "without files the oldest handshake is cancelled",
        LISTENER,
        "                    self._make_room()\n                    self._log(",
        "                    self._log(",
        HANDSHAKES,
    ),
    Mutant(
        "a renewed certificate is used",
        "../http/server/tls.py",
        "if fingerprints == self._seen:",
        "if True:",
        HANDSHAKES,
    ),
    Mutant(
        "an incomplete renewal changes nothing",
        "../http/server/tls.py",
        "except (BadTLSFiles, OSError) as error:",
        "except ZeroDivisionError as error:",
        HANDSHAKES,
    ),
    # ---- signed cards
    Mutant("a card is signed with a private key", SIGNING, "if not key.is_private:", "if False:", CARDS),
    Mutant(
        "a card is not signed with a shared secret",
        SIGNING,
        "if not isinstance(key, ECKey | RSAKey | OKPKey):",
        "if False:",
        CARDS,
    ),
    Mutant("an RSA key has 2048 bits", SIGNING, "key.public_key.key_size < MIN_RSA_BITS", "False", CARDS),
    Mutant("a key signs only with its algorithms", SIGNING, "if algorithm not in algorithms:", "if False:", CARDS),
    Mutant("only public keys are published", SIGNING, "as_dict(private=False)", "as_dict(private=True)", CARDS),
    Mutant(
        "the extended card is verified",
        "../client/client.py",
        "discovery.verify(card, received.body, self.url)",
        "pass",
        "tests/client/test_signatures.py",
    ),
    # ---- secrets
    Mutant(
        "exceptions are not sent in error responses",
        "../http/asgi.py",
        "    return InternalError(reference)\n",
        "    return A2AError(str(error))  # type: ignore\n",
        "tests/hostile/test_nothing_leaks.py",
    ),
    Mutant(
        "exceptions are not in the task",
        "../engine/run.py",
        "return failed_status(InternalError(reference), cause=cause)",
        "return failed_status(AgentError(str(failure)))",
        CANARIES,
    ),
    Mutant(
        "credentials of webhooks are not listed",
        "../engine/webhooks/operations.py",
        "tuple(map(_shown, shown))",
        "tuple(_with_state(webhook.config, webhook) for webhook in shown)",
        CANARIES,
    ),
    Mutant(
        "settings do not print secrets",
        "../settings.py",
        "if setting.option.is_secret and value is not None:",
        "if False:",
        CANARIES,
    ),
)


if __name__ == "__main__":
    sys.exit(run_all(MUTANTS, cases_of(SMUGGLING, AMBIGUOUS), sys.argv[1:]))
