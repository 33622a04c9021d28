"""The same as `scripts.mutants` for what stands before the door: requests, limits, browsers, certificates, cards.

`python -m scripts.http_mutants [NAME…]`; the last lines name the ambiguous requests that no mutant let through.
"""

import sys
from typing import Final

from scripts.mutants import Mutant, cases_of, run_all

SMUGGLING: Final = "tests/hostile/test_smuggling.py"
RATES: Final = "tests/http/test_rate_limit.py"
ORIGINS: Final = "tests/http/test_origins.py"
SAFE: Final = "tests/http/test_safe_headers.py"
TLS: Final = "tests/http/test_tls.py"
CARDS: Final = "tests/app/test_signing.py"
RUNS: Final = "tests/engine/test_live_tasks.py"
STREAMS: Final = "tests/engine/test_stream_limits.py"
CANARIES: Final = "tests/hostile/test_canaries.py"
DRIBBLE: Final = "tests/hostile/test_connections.py"
FLOOD: Final = "tests/hostile/test_http_limits.py"

GUARD: Final = "../http/guard.py"
HOSTS: Final = "../http/origins.py"
BUCKETS: Final = "../http/rate_limit.py"
PROXIES: Final = "../http/forwarded.py"
CONTEXT: Final = "../engine/call_context.py"
ROUTES: Final = "../app/routes.py"
SIGNING: Final = "../app/signing.py"
CERTIFICATES: Final = "client_certificates.py"
HANDED_ON: Final = "../http/client_certificate.py"
_START: Final = "        super().__init__(*args, **kwargs)\n"


def _lenient(name: str) -> str:
    return f"{_START}        self.parser.set_dangerous_leniencies(lenient_{name}=True)\n"


_TIMER: Final = "            self._guard_timer = self.loop.call_later(HEADER_DEADLINE, self._too_slow)\n        else:"
_ALL_LENIENT: Final = _START + "        self.parser.set_dangerous_leniencies(*[True] * 10)\n"
_QUIET: Final = (
    "    def send_400_response(self, msg: str) -> None:\n        self.transport.close()\n\n    def connection_made(self"
)
_NO_ADDRESS: Final = "    except ValueError:\n        return False\n"
_ROOM: Final = "        if self._active_of.get(allowance, 0) >= self._limit_per_caller:"
_LIST: Final = '                named += value.decode("latin-1").split(",")'

MUTANTS: Final = (
    # ---- requests on the wire: the parser's own strictness, one kind at a time
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
        "what cannot be read is refused",  # many refusals of the parser have no switch: here they are all kept quiet
        GUARD,
        "    def connection_made(self",
        _QUIET,
        SMUGGLING,
    ),
    Mutant("a request names one host", HOSTS, "and _names_two_hosts(scope)", "and False", SMUGGLING),
    Mutant(
        "websockets are closed", "../app/application.py", 'if scope["type"] == "websocket":', "if False:", SMUGGLING
    ),
    Mutant("headers come in time", GUARD, _TIMER, "            pass\n        else:", DRIBBLE),
    Mutant(
        "connections are counted",
        "../http/traffic.py",
        "return self.connections <= self.max_connections",
        "return True",
        FLOOD,
    ),
    # ---- whose limit it is
    Mutant("a bucket can be empty", BUCKETS, "if missing > 1e-9:", "if False:", RATES),
    Mutant(
        "a bucket holds no more than its burst",
        BUCKETS,
        "max(self._full_at.get(name, now), now)",
        "self._full_at.get(name, now)",
        RATES,
    ),
    Mutant("buckets are few", BUCKETS, "if len(self._full_at) > self._most:", "if False:", RATES),
    Mutant(
        "the bucket unused for longest goes",
        BUCKETS,
        "        self._full_at[name] = full_at + self._interval\n        self._full_at.move_to_end(name)\n",
        "        self._full_at[name] = full_at + self._interval\n",
        RATES,
    ),
    Mutant(
        "who is refused is not forgotten",
        BUCKETS,
        "            self._full_at.move_to_end(name)\n            return missing\n",
        "            return missing\n",
        RATES,
    ),
    Mutant("all together have a limit", BUCKETS, "if self._total is not None:", "if False:", RATES),
    Mutant("the nameless have less", ROUTES, "anonymous /= 10", "pass", RATES),
    Mutant("JSON-RPC is limited", ROUTES, "limited(rpc)", "rpc", RATES),
    Mutant("REST is limited", ROUTES, "rest = limited(", "rest = (lambda app: app)(", RATES),
    Mutant(
        "the extended card is limited",
        ROUTES,
        "limited(ExtendedCardEndpoint(engine, cards))",
        "ExtendedCardEndpoint(engine, cards)",
        RATES,
    ),
    Mutant(
        "a tenant is no second caller",
        CONTEXT,
        '        caller = replace(caller, tenant="")\n',
        "        pass\n",
        f"{RATES} {STREAMS} {RUNS}",
    ),
    Mutant("the nameless are told apart", CONTEXT, "{ANONYMOUS}\\n{_network(peer)}", "{ANONYMOUS}", RATES),
    Mutant("an IPv6 network is one caller", CONTEXT, 'return f"{int(address) >> 64:x}::/64"', "return host", RATES),
    Mutant("all of IPv4 is not one network", CONTEXT, "if address.ipv4_mapped is not None:", "if False:", RATES),
    Mutant(
        "only a trusted proxy says whom it forwards",
        PROXIES,
        "if peer is not None and peer[0] in self._proxies:",
        "if peer is not None:",
        RATES,
    ),
    Mutant("what a client made up is not read", PROXIES, "for text in reversed(named):", "for text in named:", RATES),
    Mutant("trusted proxies are passed over", PROXIES, "if address not in self._proxies:", "if True:", RATES),
    Mutant("two lists are one", PROXIES, _LIST, _LIST.replace("+=", "="), RATES),
    Mutant(
        "behind what is no address nothing is believed",
        PROXIES,
        "            if address is None:\n                break",
        "            if address is None:\n                continue",
        RATES,
    ),
    Mutant("one caller has a share of runs", "../engine/runs.py", _ROOM, "        if False:", RUNS),
    Mutant(
        "the share of runs is looked at twice",
        "../engine/runs.py",
        "        self.check_room(allowance)\n        return LiveTask(",
        "        return LiveTask(",
        RUNS,
    ),
    Mutant(
        "an event has a size", "../engine/run.py", "size > self._max_event or self._room < 0", "self._room < 0", RUNS
    ),
    Mutant(
        "a run's output has a size",
        "../engine/run.py",
        "size > self._max_event or self._room < 0",
        "size > self._max_event",
        RUNS,
    ),
    Mutant(
        "one caller has a share of streams",
        "../engine/streams.py",
        "if self._open[allowance] >= self._limit_per_caller:",
        "if False:",
        STREAMS,
    ),
    # ---- browsers
    Mutant(
        "on the loopback interface Host is looked at",
        HOSTS,
        "        if self._on_loopback:\n            return True\n        here",
        "        if self._on_loopback:\n            return False\n        here",
        ORIGINS,
    ),
    Mutant(
        "Host is looked at where a connection came in",
        HOSTS,
        "return self._is_open and here is not None and is_loopback(here[0])",
        "return False",
        ORIGINS,
    ),
    Mutant(
        "127.0.0.1.evil.example is another",
        "../loopback.py",
        "return ip_address(host).is_loopback",
        'return host.startswith("127.")',
        ORIGINS,
        (("../loopback.py", _NO_ADDRESS, _NO_ADDRESS.replace("return False", "return host.startswith('127.')")),),
    ),
    Mutant(
        "a name with a dot is not this machine's",
        HOSTS,
        'return "." not in name or name.endswith(NOBODYS)',
        "return True",
        ORIGINS,
    ),
    Mutant(
        "Origin is looked at", HOSTS, "if origin and self._is_forbidden(", "if False and self._is_forbidden(", ORIGINS
    ),
    Mutant(
        "a form of a foreign page is refused everywhere",
        HOSTS,
        'return scope["method"] not in READS and',
        "return False and",
        ORIGINS,
    ),
    Mutant(
        "answers are not guessed at", "../safe_headers.py", '    (b"x-content-type-options", b"nosniff"),\n', "", SAFE
    ),
    Mutant("answers are not framed", "../safe_headers.py", '    (b"x-frame-options", b"DENY"),\n', "", SAFE),
    Mutant(
        "answers do not tell where one was",
        "../safe_headers.py",
        '    (b"referrer-policy", b"no-referrer"),\n',
        "",
        SAFE,
    ),
    Mutant("answers are not kept", "../safe_headers.py", '((b"cache-control", b"no-store"),)', "()", SAFE),
    Mutant(
        "https for good is for others than localhost", "../app/serve.py", " or is_loopback(settings.host)", "", SAFE
    ),
    Mutant(
        "pages send no credentials along",
        ROUTES,
        "        allow_origins=origins,\n",
        "        allow_origins=origins,\n        allow_credentials=True,\n",
        SAFE,
    ),
    # ---- certificates
    Mutant(
        "a certificate is not claimed in a header",
        HANDED_ON,
        '[pair for pair in scope["headers"] if pair[0] != HEADER]',
        'list(scope["headers"])',
        TLS,
    ),
    Mutant(
        "only a trusted proxy hands certificates on",
        HANDED_ON,
        "if peer is not None and peer[0] in self._proxies:",
        "if True:",
        TLS,
    ),
    Mutant(
        "a proxy's own certificate is nobody's",
        HANDED_ON,
        "if peer is not None and peer[0] in self._proxies:",
        "if False:",
        TLS,
    ),
    Mutant(
        "callers are asked for certificates",
        "../http/tls.py",
        "context.verify_mode = _MODES[files.client_certs]",
        "pass",
        TLS,
    ),
    Mutant("TLS is new enough", "../http/tls.py", "ssl.TLSVersion.TLSv1_2", "ssl.TLSVersion.TLSv1", TLS),
    Mutant("a certificate has its time", CERTIFICATES, "if not begin <= datetime.now(UTC) <= end:", "if False:", TLS),
    Mutant(
        "only names on the list come in",
        CERTIFICATES,
        " or (self._names is not None and name not in self._names)",
        "",
        TLS,
    ),
    Mutant(
        "two authorities, two callers", CERTIFICATES, "issuer=certificate.issuer.rfc4514_string()", 'issuer=""', TLS
    ),
    Mutant("certificates are few", CERTIFICATES, "if len(self._known) >= MAX_REMEMBERED:", "if False:", TLS),
    Mutant("a certificate names somebody", CERTIFICATES, "if not name or (", "if (", TLS),
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
    Mutant("a key signs with its own algorithms", SIGNING, "if algorithm not in algorithms:", "if False:", CARDS),
    Mutant("what is published is public", SIGNING, "as_dict(private=False)", "as_dict(private=True)", CARDS),
    Mutant(
        "the extended card is checked",
        "../client/client.py",
        "discovery.verify(card, received.body, self.url)",
        "pass",
        "tests/client/test_signatures.py",
    ),
    # ---- secrets
    Mutant(
        "an exception is not told over a binding",
        "../http/asgi.py",
        "    return InternalError(reference)\n",
        "    return A2AError(str(error))  # type: ignore\n",
        "tests/hostile/test_nothing_leaks.py",
    ),
    Mutant(
        "an exception is not told in a task",
        "../engine/run.py",
        "return failed_status(InternalError(reference))",
        "return failed_status(AgentError(str(failure)))",
        CANARIES,
    ),
    Mutant(
        "a webhook's credentials are not told",
        "../engine/webhooks.py",
        "tuple(_without_credentials(webhook.config) for webhook in shown)",
        "tuple(webhook.config for webhook in shown)",
        CANARIES,
    ),
    Mutant(
        "settings do not tell secrets",
        "../settings.py",
        "if name in SECRETS and value is not None:",
        "if False:",
        CANARIES,
    ),
)


if __name__ == "__main__":
    sys.exit(run_all(MUTANTS, cases_of(SMUGGLING, "test_a_request_with_two_meanings"), sys.argv[1:]))
