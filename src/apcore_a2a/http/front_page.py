"""`/` in a browser: a redirect to the Explorer, or a page about the agent with commands that work as they are printed.

Invariant: other clients than browsers are not affected.
"""

import base64
import hashlib
import shlex
from html import escape
from typing import Any, Final

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from apcore_a2a.http.asgi import inbound, respond
from apcore_a2a.http.card import CARD_PATH, CardEndpoint
from apcore_a2a.protocol.card import AgentCard, AgentSkill

HTML: Final = b"text/html"
MAX_SKILLS: Final = 50
MAX_DEPTH: Final = 4  # of an example for nested inputs
SCHEMAS: Final = "urn:apcore:a2a:modules:1"  # the extension of the card that holds the schemas of the skills
CREDENTIALS: Final = {
    "apiKeySecurityScheme": ' --api-key "$API_KEY"',
    "httpAuthSecurityScheme": ' --bearer "$TOKEN"',
    "oauth2SecurityScheme": ' --bearer "$TOKEN"',
    "openIdConnectSecurityScheme": ' --bearer "$TOKEN"',
}
STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:3rem auto;padding:0 1rem}"
    "code,pre{font:14px/1.5 ui-monospace,monospace}pre{overflow:auto}:root{color-scheme:light dark}"
)
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
# No script runs on this page and nothing is loaded, whatever a card contains. The style is the one above.
POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title><style>{style}</style></head><body>
<h1>{name}</h1>
<p>{description}</p>
<p>This is an <a href="https://a2a-protocol.org">A2A</a> agent: programs talk to it, not browsers.
Its card is at <a href="{card}">{card}</a>.</p>
<ul>{skills}</ul>
<p>From a terminal:</p>
<pre>{commands}</pre>
</body></html>
"""

Schema = dict[str, Any]  # Any: JSON Schema


class FrontPage:
    """Answers browsers at `/`, and forwards other requests to `otherwise`.

    Args:
        cards: The public card, which is all that the page shows.
        explorer: The path of the Explorer. Empty if it is off.
        default_skill: The skill of messages that name none. Empty if there is no such skill.
        otherwise: The application for requests that do not ask for HTML.
    """

    def __init__(self, cards: CardEndpoint, *, explorer: str, default_skill: str, otherwise: ASGIApp) -> None:
        self._cards = cards
        self._explorer = explorer
        self._default_skill = default_skill
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not inbound(scope).accepts(HTML):
            await self._otherwise(scope, receive, send)
            return
        vary = (b"vary", b"Accept")
        # A relative URL, which also works in a mounted application and behind a proxy that removes a prefix.
        root = "."
        if not scope["path"].endswith("/"):
            root = f"./{scope['path'].rpartition('/')[2]}"
        if self._explorer:
            location = f"{root}{self._explorer}/".encode()
            await respond(send, 307, b"", headers=((b"location", location), vary))
            return
        headers = ((b"content-security-policy", POLICY.encode()), vary)
        await respond(send, 200, self._render(scope, root), media=b"text/html; charset=utf-8", headers=headers)

    def _render(self, scope: Scope, root: str) -> bytes:
        card = self._cards.at(self._cards.card, scope, "1.0")
        skills = [
            f"<li><code>{escape(skill.id)}</code> {escape(skill.description)}</li>"
            for skill in card.skills[:MAX_SKILLS]
        ]
        if len(card.skills) > MAX_SKILLS:
            skills.append("<li>…</li>")
        return PAGE.format(
            name=escape(card.name),
            description=escape(card.description),
            style=STYLE,
            card=escape(f"{root}{CARD_PATH}"),
            skills="".join(skills),
            commands=escape("\n".join(commands_for(card, self._default_skill))),
        ).encode()


# ---- the commands ---------------------------------------------------------------------------------------------------
# A reader copies them, so the message has the inputs that the skill requires.


def commands_for(card: AgentCard, default_skill: str) -> list[str]:
    """Return commands that call the agent. With authentication, they read the credentials from a variable."""
    url = shlex.quote(card.supported_interfaces[0].url)
    access = _credentials(card)
    skill = _choose_skill(card, default_skill)
    if skill is None:
        return [f"apcore-a2a skills {url}{access}"]
    named = ""
    if skill.id != default_skill and len(card.skills) > 1:
        named = f" --skill {shlex.quote(skill.id)}"
    commands = [f"apcore-a2a chat {url}{named}{access}"]
    content = _example_content(skill, card)
    if content is not None:
        commands.append(f"apcore-a2a send {url}{named}{_arguments(content)}{access}")
        if not access:
            commands += _curl(card, skill, content)
    return commands


def _credentials(card: AgentCard) -> str:
    for scheme in (card.security_schemes or {}).values():
        for kind in scheme:
            if kind in CREDENTIALS:
                return CREDENTIALS[kind]
    return ""


def _choose_skill(card: AgentCard, default_skill: str) -> AgentSkill | None:
    for skill in card.skills:
        if skill.id == default_skill:
            return skill
    return card.skills[0] if card.skills else None


def _example_content(skill: AgentSkill, card: AgentCard) -> Any:  # Any: a text, or the inputs
    """Return a text or inputs that the skill accepts, or None if its schema does not show any."""
    entry = _entry(skill, card)
    for example in entry.get("examples") or ():
        if isinstance(example.get("input"), dict):
            return example["input"]
    schema = entry.get("inputSchema")
    if not schema:
        return "hello"
    inputs = _example_value(schema, schema)
    if isinstance(inputs, dict) and list(inputs.values()) == ["hello"] and "text/plain" in skill.input_modes:
        return "hello"
    return inputs


def _entry(skill: AgentSkill, card: AgentCard) -> dict[str, Any]:  # Any: JSON
    for extension in card.capabilities.extensions:
        if extension.uri == SCHEMAS:
            entry = (extension.params or {}).get("skills", {}).get(skill.id)
            if isinstance(entry, dict):
                return entry
    return {}


def _example_value(schema: Any, root: Schema, depth: int = 0) -> Any:  # Any: JSON Schema, and a value of it
    """Return a value that matches the schema, or None if its rules are not among the ones known here."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return None
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found: Any = root
        for step in reference.split("/")[1:]:
            found = found.get(step) if isinstance(found, dict) else None
        return _example_value(found, root, depth + 1)
    given = [*(schema.get("examples") or ()), schema.get("default"), schema.get("const"), *(schema.get("enum") or ())]
    for value in given:
        if value is not None:
            return value
    for alternative in schema.get("anyOf") or schema.get("oneOf") or ():
        value = _example_value(alternative, root, depth + 1)
        if value is not None:
            return value
    return _example_of_type(schema, root, depth)


def _example_of_type(schema: Schema, root: Schema, depth: int) -> Any:  # Any: a value of the schema
    match schema.get("type"):
        case "string" if not schema.keys() & {"pattern", "format", "minLength", "maxLength", "contentEncoding"}:
            return "hello"
        case "integer" | "number" if not schema.keys() & {"exclusiveMinimum", "exclusiveMaximum", "multipleOf"}:
            return max(schema.get("minimum", 2), min(2, schema.get("maximum", 2)))
        case "boolean":
            return True
        case "array" if not schema.get("minItems"):
            item = _example_value(schema.get("items", {"type": "string"}), root, depth + 1)
            return [] if item is None else [item]
        case "object":
            return _example_object(schema, root, depth)
    return None


def _example_object(schema: Schema, root: Schema, depth: int) -> Any:  # Any: an object of the schema
    found = {}
    for name in schema.get("required") or ():
        found[name] = _example_value((schema.get("properties") or {}).get(name), root, depth + 1)
    if None in found.values():
        return None
    return found


def _arguments(content: Any) -> str:  # Any: a text, or the inputs
    """Return the content as words of the command line."""
    if isinstance(content, str):
        return f" {shlex.quote(content)}"
    if all(isinstance(value, int) or value == "hello" for value in content.values()) and content:
        words = [f"{name}={msgspec.json.encode(value).decode()}" for name, value in content.items()]
        return " " + " ".join(shlex.quote(word.replace('"', "")) for word in words)
    return f" --data {shlex.quote(msgspec.json.encode(content).decode())}"


def _curl(card: AgentCard, skill: AgentSkill, content: Any) -> list[str]:  # Any: as above
    """Return the same call for a machine without this package."""
    for interface in card.supported_interfaces:
        if (interface.protocol_binding, interface.protocol_version) == ("HTTP+JSON", "1.0"):
            part = {"text": content} if isinstance(content, str) else {"data": content}
            message = {"messageId": "1", "role": "ROLE_USER", "parts": [part], "metadata": {"skillId": skill.id}}
            body = shlex.quote(msgspec.json.encode({"message": message}).decode())
            address = shlex.quote(f"{interface.url.rstrip('/')}/message:send")
            return [f"curl {address} -H 'A2A-Version: 1.0' -H 'Content-Type: application/json' -d {body}"]
    return []
