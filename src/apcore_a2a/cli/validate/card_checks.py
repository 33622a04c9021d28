"""The rules of `validate`, and the checks of a card."""

from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from apcore_a2a.cli.options import NOT_JSON
from apcore_a2a.errors import A2ADiscoveryError, CardRewrittenError
from apcore_a2a.web import is_loopback

# ---- rules ----------------------------------------------------------------------------------------------------------
# Rules, and findings about an agent.
#
# A check yields each problem as a sentence, and its rule turns the problems into findings. So a check knows nothing of
# clauses and severities, and a rule nothing of cards and requests.

Result = Literal["pass", "fail", "warn", "skip"]


class Finding(Struct, frozen=True):
    """A finding about one rule: a line of the text report, or an object of the JSON report."""

    id: str
    clause: str
    result: Result
    message: str


class Rule(NamedTuple):
    """A requirement of the A2A specification 1.0 for agents."""

    id: str
    clause: str
    statement: str
    """The statement that is true of a conforming agent."""
    if_broken: Result = "fail"
    """`warn` where the specification says SHOULD."""

    def judge(self, problems: Iterable[str]) -> list[Finding]:
        """Return one finding for each problem, or a single passed finding."""
        findings = [Finding(self.id, self.clause, self.if_broken, problem) for problem in problems]
        if not findings:
            findings.append(Finding(self.id, self.clause, "pass", self.statement))
        return findings

    def skip(self, reason: str) -> Finding:
        """Return a finding for a rule that was not tested."""
        return Finding(self.id, self.clause, "skip", f"{self.statement}: {reason}")


# ---- card checks ----------------------------------------------------------------------------------------------------
# The requirements for an agent card, clause by clause. Invariant: a check reads the JSON as it was sent.
#
# Each check yields the problems of the card. A value of the wrong type is reported once, by the check of its field. The
# other checks treat it as empty.

Card = Mapping[str, Any]  # Any: unchecked JSON
MAX_QUOTED: Final = 60  # characters of a card's text that a message quotes

_KINDS: Final = {str: "a string", list: "an array", dict: "an object", bool: "true or false"}
# Required fields, from the messages in the protocol's a2a.proto.
CARD: Final = {
    "name": str,
    "description": str,
    "version": str,
    "supportedInterfaces": list,
    "capabilities": dict,
    "defaultInputModes": list,
    "defaultOutputModes": list,
    "skills": list,
}
INTERFACE: Final = {"url": str, "protocolBinding": str, "protocolVersion": str}
SKILL: Final = {"id": str, "name": str, "description": str, "tags": list}
SCHEMES: Final = frozenset(
    {
        "apiKeySecurityScheme",
        "httpAuthSecurityScheme",
        "oauth2SecurityScheme",
        "openIdConnectSecurityScheme",
        "mtlsSecurityScheme",
    }
)


def _as_object(value: object) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    return {}


def _as_array(value: object) -> list[Any]:
    if isinstance(value, list):
        return value
    return []


def _items(card: Card, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the elements of an array of the card, each with its path."""
    for index, item in enumerate(_as_array(card.get(name))):
        yield f"{name}[{index}]", item


def _check_required(value: object, fields: Mapping[str, type], where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where or 'the card'} is not an object"
        return
    for name, kind in fields.items():
        path = name
        if where:
            path = f"{where}.{name}"
        if name not in value:
            yield f"{path} is missing"
        elif not isinstance(value[name], kind):
            yield f"{path} is not {_KINDS[kind]}"


def _check_fields(card: Card) -> Iterator[str]:
    yield from _check_required(card, CARD, "")
    for name in ("defaultInputModes", "defaultOutputModes"):
        for path, mode in _items(card, name):
            if not isinstance(mode, str):
                yield f"{path} is not a string"


def _check_interfaces(card: Card) -> Iterator[str]:
    if card.get("supportedInterfaces") == []:
        yield "supportedInterfaces is empty, so the agent cannot be called"
    for path, interface in _items(card, "supportedInterfaces"):
        yield from _check_required(interface, INTERFACE, path)
        url = _as_object(interface).get("url")
        # A gRPC address may be only host:port, so a scheme is not required.
        if isinstance(url, str) and ":" not in url:
            yield f"{path}.url is not an absolute URL"


def _check_versions(card: Card) -> Iterator[str]:
    for path, interface in _items(card, "supportedInterfaces"):
        version = _as_object(interface).get("protocolVersion")
        if isinstance(version, str) and version.count(".") != 1:
            yield f"{path}.protocolVersion is {version[:20]!r}, not MAJOR.MINOR"


def _check_skills(card: Card) -> Iterator[str]:
    seen = set()
    for path, skill in _items(card, "skills"):
        yield from _check_required(skill, SKILL, path)
        skill_id = _as_object(skill).get("id")
        if not isinstance(skill_id, str):
            continue
        if skill_id in seen:
            yield f"{path}.id {skill_id[:MAX_QUOTED]!r} is not unique"
        seen.add(skill_id)


def _check_capabilities(card: Card) -> Iterator[str]:
    # In the order of the card, so that a reader finds the problems in the order of the file.
    for name, value in _as_object(card.get("capabilities")).items():
        if name in ("streaming", "pushNotifications", "extendedAgentCard") and not isinstance(value, bool):
            yield f"capabilities.{name} is not true or false"
        if name == "extensions":
            for index, extension in enumerate(_as_array(value)):
                yield from _check_required(extension, {"uri": str}, f"capabilities.extensions[{index}]")


def _check_security(card: Card) -> Iterator[str]:
    schemes = _as_object(card.get("securitySchemes"))
    for name, scheme in schemes.items():
        # A `oneof` of the protocol. A 0.3 card has {"type": "http", …} here, which is not one of its members.
        if len(SCHEMES & _as_object(scheme).keys()) != 1:
            yield f"securitySchemes.{name[:MAX_QUOTED]} is not exactly one of {', '.join(sorted(SCHEMES))}"
    for path, requirement in _items(card, "securityRequirements"):
        for name, scopes in _as_object(_as_object(requirement).get("schemes")).items():
            if not isinstance(scopes, dict):  # a2a-go writes only the list
                yield f"{path}.schemes.{name[:MAX_QUOTED]} is not an object with a list of scopes"
            if name not in schemes:
                yield f"{path} names {name[:MAX_QUOTED]!r}, which is not in securitySchemes"


def _check_signatures(card: Card) -> Iterator[str]:
    # Only their form. `check_signature` verifies them.
    for path, signature in _items(card, "signatures"):
        yield from _check_required(signature, {"protected": str, "signature": str}, path)


def _check_addresses(card: Card, url: str) -> Iterator[str]:
    """Compare the addresses in the card with the one at which it was found."""
    found = urlsplit(url)
    hosts: dict[str, str] = {}  # by host: the first field that names it
    for path, address in _addresses(card):
        try:
            parts = urlsplit(address if "://" in address else f"//{address}")  # gRPC: only host:port
            host = parts.hostname or ""
        except ValueError:  # not a URL, which another rule reports
            continue
        if not host or host in hosts:
            continue
        hosts[host] = path
        is_here = is_loopback(host)
        if is_here and is_loopback(found.hostname or ""):
            continue
        if is_here:
            yield f"{path} names {host}, which only callers on the agent's own machine reach"
        elif host != found.hostname:
            yield f"{path} names the host {host[:MAX_QUOTED]}, but the card was found at {found.hostname}"
        elif (parts.scheme, found.scheme) == ("http", "https"):
            yield f"{path} is not encrypted (http), but the card was found at an https address"
    if len(hosts) > 1:
        places = " and ".join(hosts.values())
        yield f"{places} name different hosts: a gateway may have rewritten only some of the addresses"


def _addresses(card: Card) -> Iterator[tuple[str, str]]:
    for name in ("supportedInterfaces", "additionalInterfaces"):
        for path, interface in _items(card, name):
            yield f"{path}.url", str(_as_object(interface).get("url", ""))
    if isinstance(card.get("url"), str):
        yield "url", card["url"]


ADDRESSES: Final = Rule("card.addresses", "8.2", "The card names the host at which it was found", "warn")
SIGNED: Final = Rule("card.signed", "8.4.3", "A signature of the card is valid with the keys of --keys")
FIELDS: Final = Rule("card.fields", "4.4.1", "The card has every required field")
CACHING: Final = Rule("card.caching", "8.6.1", "The card has an ETag and a max-age", "warn")
CHECKS: Final[tuple[tuple[Rule, Callable[[Card], Iterator[str]]], ...]] = (
    (FIELDS, _check_fields),
    (Rule("card.interfaces", "4.4.6", "Every interface has an address, a binding and a version"), _check_interfaces),
    (Rule("card.versions", "3.6", "Versions have no patch number", "warn"), _check_versions),
    (Rule("card.skills", "4.4.5", "Every skill has a unique id, a name, a description and tags"), _check_skills),
    (Rule("card.capabilities", "4.4.3", "Capabilities are true or false, extensions have a URI"), _check_capabilities),
    (Rule("card.security", "4.5.1", "Security schemes are known, requirements name them"), _check_security),
    (Rule("card.signatures", "8.4.2", "Signatures are complete"), _check_signatures),
)


def check_card(card: object, headers: Mapping[str, str], url: str) -> list[Finding]:
    """Run every check of a card, given as decoded JSON, of its response headers, and of the URL that was called."""
    if not isinstance(card, dict):
        # The other rules would add nothing to this.
        return FIELDS.judge(["the card is not a JSON object"])
    findings: list[Finding] = []
    for rule, check in CHECKS:
        findings += rule.judge(check(card))
    findings += ADDRESSES.judge(_check_addresses(card, url))
    return findings + CACHING.judge(_check_caching(headers))


def _check_caching(headers: Mapping[str, str]) -> Iterator[str]:
    if "etag" not in headers:
        yield "no ETag header"
    if "max-age" not in headers.get("cache-control", ""):
        yield "no Cache-Control: max-age header"


def check_signature(card: object, *, with_keys: bool, refused: A2ADiscoveryError | None) -> Finding:
    """Check whether a trusted key signed the card. `refused` is the client's reason for rejecting it, if it did."""
    if isinstance(refused, CardRewrittenError):
        return SIGNED._replace(if_broken="warn").judge([refused.message])[0]
    if with_keys:
        problems = [refused.message] if refused else []
        return SIGNED.judge(problems)[0]
    signatures = _as_array(_as_object(card).get("signatures"))
    if not signatures:
        return SIGNED.skip("the card is not signed")
    names = ", ".join(dict.fromkeys(map(_key_id, signatures)))
    return SIGNED.skip(f"signed with {names[:MAX_QUOTED]}. To verify it, pass the signer's public keys with --keys")


def _key_id(signature: object) -> str:
    """Return the key id that a signature names."""
    protected = _as_object(signature).get("protected")
    try:
        header = msgspec.json.decode(urlsafe_b64decode(f"{protected}==="))
    except (ValueError, *NOT_JSON):
        header = None
    return repr(_as_object(header).get("kid", "an unknown key"))
