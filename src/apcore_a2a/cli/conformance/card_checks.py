"""What the specification asks of an agent card, clause by clause. Rule: a check looks at the JSON as it was sent.

Each check yields what is wrong with the card, and nothing if all is well.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct

Card = Mapping[str, Any]  # Any: JSON that nobody has checked yet
Result = Literal["pass", "fail", "warn", "skip"]


class Finding(Struct, frozen=True):
    """One rule, and whether the agent keeps it."""

    id: str
    clause: str
    result: Result
    message: str


class Rule(NamedTuple):
    id: str
    clause: str
    """Of the A2A specification 1.0."""
    says: str
    broken: Result = "fail"
    """`warn` where the specification says SHOULD."""

    def judge(self, *problems: str) -> Iterator[Finding]:
        """One finding for each problem; that the rule is kept, if there is none."""
        if not problems:
            yield Finding(self.id, self.clause, "pass", self.says)
        for problem in problems:
            yield Finding(self.id, self.clause, self.broken, problem)

    def skip(self, reason: str) -> Finding:
        return Finding(self.id, self.clause, "skip", f"{self.says}: {reason}")


_KINDS: Final = {str: "a string", list: "an array", dict: "an object", bool: "true or false"}
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


def _missing(value: object, fields: Mapping[str, type], where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where or 'the card'} is not an object"
        return
    for name, kind in fields.items():
        path = f"{where}.{name}" if where else name
        if name not in value:
            yield f"{path} is missing"
        elif not isinstance(value[name], kind):
            yield f"{path} is not {_KINDS[kind]}"


def _items(card: Card, name: str) -> Iterator[tuple[str, Any]]:
    items = card.get(name)
    for index, item in enumerate(items if isinstance(items, list) else ()):
        yield f"{name}[{index}]", item


def _fields(card: Card) -> Iterator[str]:
    yield from _missing(card, CARD, "")
    for name in ("defaultInputModes", "defaultOutputModes"):
        yield from (f"{path} is not a string" for path, mode in _items(card, name) if not isinstance(mode, str))


def _interfaces(card: Card) -> Iterator[str]:
    if card.get("supportedInterfaces") == []:
        yield "supportedInterfaces is empty: there is no way to call this agent"
    for path, interface in _items(card, "supportedInterfaces"):
        yield from _missing(interface, INTERFACE, path)
        url = interface.get("url") if isinstance(interface, dict) else None
        if isinstance(url, str) and (urlsplit(url).scheme not in ("http", "https", "grpc", "grpcs") and ":" not in url):
            yield f"{path}.url is not an absolute URL"


def _patch_versions(card: Card) -> Iterator[str]:
    for path, interface in _items(card, "supportedInterfaces"):
        version = interface.get("protocolVersion") if isinstance(interface, dict) else None
        if isinstance(version, str) and version.count(".") != 1:
            yield f"{path}.protocolVersion is {version[:20]!r}, not MAJOR.MINOR"


def _skills(card: Card) -> Iterator[str]:
    seen = set()
    for path, skill in _items(card, "skills"):
        yield from _missing(skill, SKILL, path)
        name = skill.get("id") if isinstance(skill, dict) else None
        if isinstance(name, str) and name in seen:
            yield f"{path}.id {name[:60]!r} is there twice"
        if isinstance(name, str):
            seen.add(name)


def _capabilities(card: Card) -> Iterator[str]:
    capabilities = card.get("capabilities")
    for name, value in capabilities.items() if isinstance(capabilities, dict) else ():
        if name in ("streaming", "pushNotifications", "extendedAgentCard") and not isinstance(value, bool):
            yield f"capabilities.{name} is not true or false"
        if name == "extensions":
            for index, extension in enumerate(value if isinstance(value, list) else ()):
                yield from _missing(extension, {"uri": str}, f"capabilities.extensions[{index}]")


def _security(card: Card) -> Iterator[str]:
    schemes = card.get("securitySchemes")
    known = schemes if isinstance(schemes, dict) else {}
    for name, scheme in known.items():
        if not isinstance(scheme, dict) or len(SCHEMES & scheme.keys()) != 1:
            yield f"securitySchemes.{name[:60]} is not exactly one of {', '.join(sorted(SCHEMES))}"
    for path, requirement in _items(card, "securityRequirements"):
        named = requirement.get("schemes") if isinstance(requirement, dict) else None
        for name in named if isinstance(named, dict) else ():
            if name not in known:
                yield f"{path} names {name[:60]!r}, which securitySchemes does not have"


def _signatures(card: Card) -> Iterator[str]:
    for path, signature in _items(card, "signatures"):
        yield from _missing(signature, {"protected": str, "signature": str}, path)


CHECKS: Final[tuple[tuple[Rule, Callable[[Card], Iterator[str]]], ...]] = (
    (Rule("card.fields", "4.4.1", "The card has every required field"), _fields),
    (Rule("card.interfaces", "4.4.6", "Every interface says where it is, its binding and version"), _interfaces),
    (Rule("card.versions", "3.6", "Versions have no patch number", "warn"), _patch_versions),
    (Rule("card.skills", "4.4.5", "Every skill has an id of its own, a name, a description and tags"), _skills),
    (Rule("card.capabilities", "4.4.3", "Capabilities are true or false, extensions have a URI"), _capabilities),
    (Rule("card.security", "4.5.1", "Security schemes are known ones, requirements name them"), _security),
    (Rule("card.signatures", "8.4.2", "Signatures are complete"), _signatures),
)
CACHING: Final = Rule("card.caching", "8.6.1", "The card has an ETag and a max-age", "warn")


def check_card(card: object, headers: Mapping[str, str]) -> Iterator[Finding]:
    """Every check of a card, given as decoded JSON, and of the headers it came with."""
    if not isinstance(card, dict):
        yield from CHECKS[0][0].judge("the card is not a JSON object")
        return
    for rule, check in CHECKS:
        yield from rule.judge(*check(card))
    found = {"ETag": "etag" in headers, "Cache-Control: max-age": "max-age" in headers.get("cache-control", "")}
    yield from CACHING.judge(*(f"no {name} header" for name, present in found.items() if not present))
