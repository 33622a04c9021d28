"""The rules that `validate` knows, and the checks of a card."""

from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from apcore_a2a.cli.options import NOT_JSON

# ---- rules ----------------------------------------------------------------------------------------------------------
# What a rule is, and what is found when an agent is held against it.
#
# A check looks for problems, and says each in a sentence; the rule that it is for makes findings of them. So a check
# knows nothing of clauses and severities, and a rule nothing of cards and requests.

Result = Literal["pass", "fail", "warn", "skip"]


class Finding(Struct, frozen=True):
    """What was found about one rule: a line of the report, and an object of the report in JSON."""

    id: str
    clause: str
    result: Result
    message: str


class Rule(NamedTuple):
    """Something that the A2A specification 1.0 asks of an agent."""

    id: str
    clause: str
    statement: str
    """What is true of an agent that keeps the rule."""
    if_broken: Result = "fail"
    """`warn` where the specification says SHOULD."""

    def judge(self, problems: Iterable[str]) -> list[Finding]:
        """One finding for each problem; that the rule is kept, if there is none."""
        findings = [Finding(self.id, self.clause, self.if_broken, problem) for problem in problems]
        if not findings:
            findings.append(Finding(self.id, self.clause, "pass", self.statement))
        return findings

    def skip(self, reason: str) -> Finding:
        """That the rule was not tried."""
        return Finding(self.id, self.clause, "skip", f"{self.statement}: {reason}")


# ---- card checks ----------------------------------------------------------------------------------------------------
# What the specification asks of an agent card, clause by clause. Rule: a check looks at the JSON as it was sent.
#
# Each check yields what is wrong with the card, and nothing if all is well. What has the wrong type is reported once,
# by the check whose field it is; the others pass over it, as if it were empty.

Card = Mapping[str, Any]  # Any: JSON that nobody has checked yet
MAX_QUOTED: Final = 60  # characters of what a card says, in a message of ours

_KINDS: Final = {str: "a string", list: "an array", dict: "an object", bool: "true or false"}
# Required fields, from the messages of the protocol's a2a.proto.
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
    """What is in an array of the card, each with its path."""
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
        yield "supportedInterfaces is empty: there is no way to call this agent"
    for path, interface in _items(card, "supportedInterfaces"):
        yield from _check_required(interface, INTERFACE, path)
        url = _as_object(interface).get("url")
        # An address of gRPC may be no more than host:port, so a scheme cannot be asked for.
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
            yield f"{path}.id {skill_id[:MAX_QUOTED]!r} is there twice"
        seen.add(skill_id)


def _check_capabilities(card: Card) -> Iterator[str]:
    # In the card's own order, so that a reader finds the problems in the order of the file.
    for name, value in _as_object(card.get("capabilities")).items():
        if name in ("streaming", "pushNotifications", "extendedAgentCard") and not isinstance(value, bool):
            yield f"capabilities.{name} is not true or false"
        if name == "extensions":
            for index, extension in enumerate(_as_array(value)):
                yield from _check_required(extension, {"uri": str}, f"capabilities.extensions[{index}]")


def _check_security(card: Card) -> Iterator[str]:
    schemes = _as_object(card.get("securitySchemes"))
    for name, scheme in schemes.items():
        # A `oneof` of the protocol. A card of 0.3 has {"type": "http", …} here, which is none of them.
        if len(SCHEMES & _as_object(scheme).keys()) != 1:
            yield f"securitySchemes.{name[:MAX_QUOTED]} is not exactly one of {', '.join(sorted(SCHEMES))}"
    for path, requirement in _items(card, "securityRequirements"):
        for name, scopes in _as_object(_as_object(requirement).get("schemes")).items():
            if not isinstance(scopes, dict):  # a2a-go writes the list alone
                yield f"{path}.schemes.{name[:MAX_QUOTED]} is not an object with a list of scopes"
            if name not in schemes:
                yield f"{path} names {name[:MAX_QUOTED]!r}, which securitySchemes does not have"


def _check_signatures(card: Card) -> Iterator[str]:
    # Their form only: whether they are true is for `check_signature`.
    for path, signature in _items(card, "signatures"):
        yield from _check_required(signature, {"protected": str, "signature": str}, path)


SIGNED: Final = Rule("card.signed", "8.4.3", "A signature of the card holds with the keys of --keys")
FIELDS: Final = Rule("card.fields", "4.4.1", "The card has every required field")
CACHING: Final = Rule("card.caching", "8.6.1", "The card has an ETag and a max-age", "warn")
CHECKS: Final[tuple[tuple[Rule, Callable[[Card], Iterator[str]]], ...]] = (
    (FIELDS, _check_fields),
    (Rule("card.interfaces", "4.4.6", "Every interface says where it is, its binding and version"), _check_interfaces),
    (Rule("card.versions", "3.6", "Versions have no patch number", "warn"), _check_versions),
    (Rule("card.skills", "4.4.5", "Every skill has an id of its own, a name, a description and tags"), _check_skills),
    (Rule("card.capabilities", "4.4.3", "Capabilities are true or false, extensions have a URI"), _check_capabilities),
    (Rule("card.security", "4.5.1", "Security schemes are known ones, requirements name them"), _check_security),
    (Rule("card.signatures", "8.4.2", "Signatures are complete"), _check_signatures),
)


def check_card(card: object, headers: Mapping[str, str]) -> list[Finding]:
    """Every check of a card, given as decoded JSON, and of the headers it came with."""
    if not isinstance(card, dict):
        # The other rules would say no more than this.
        return FIELDS.judge(["the card is not a JSON object"])
    findings: list[Finding] = []
    for rule, check in CHECKS:
        findings += rule.judge(check(card))
    return findings + CACHING.judge(_check_caching(headers))


def _check_caching(headers: Mapping[str, str]) -> Iterator[str]:
    if "etag" not in headers:
        yield "no ETag header"
    if "max-age" not in headers.get("cache-control", ""):
        yield "no Cache-Control: max-age header"


def check_signature(card: object, *, with_keys: bool, refused: str) -> Finding:
    """Whether the card is signed by whom the caller trusts; `refused` is why our client did not take it, if so."""
    if with_keys:
        problems = [refused] if refused else []
        return SIGNED.judge(problems)[0]
    signatures = _as_array(_as_object(card).get("signatures"))
    if not signatures:
        return SIGNED.skip("the card is not signed")
    names = ", ".join(dict.fromkeys(map(_key_id, signatures)))
    return SIGNED.skip(f"signed with {names[:MAX_QUOTED]}; give the signer's public keys with --keys")


def _key_id(signature: object) -> str:
    """What a signature says of its key."""
    protected = _as_object(signature).get("protected")
    try:
        header = msgspec.json.decode(urlsafe_b64decode(f"{protected}==="))
    except (ValueError, *NOT_JSON):
        header = None
    return repr(_as_object(header).get("kid", "an unknown key"))
