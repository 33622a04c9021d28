"""The agent card, shaped as A2A 1.0.

Invariant: REQUIRED fields are always written, even if empty. A card without an empty REQUIRED field is still accepted.
Only the URL and binding of an interface, and the ids of skills and extensions, must be present.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, Literal

from msgspec import field

from apcore_a2a.errors import closest
from apcore_a2a.protocol.model import REQUIRED_ITEMS, REQUIRED_TEXT, Value

# Dictionaries, because this package mostly passes both through. The first is nested as in the protocol buffers of 1.0.
SecurityRequirement = dict[str, dict[str, dict[str, list[str]]]]  # {"schemes": {name: {"list": [scope, …]}}}
SecurityScheme = dict[str, dict[str, Any]]  # {"httpAuthSecurityScheme": {"scheme": "bearer"}}

CardMode = Literal["auto", "1.0", "0.3", "hybrid"]
"""The form of the card that an agent serves: the one that fits the request, or always the same."""

CardInterfaces = Literal["all", "1.0", "0.3"]
"""The versions whose interfaces a card lists. One version alone has one place for its addresses."""


SKILLS_EXTENSION: Final = "urn:apcore:a2a:modules:1"
"""The extension with the schemas and annotations of the skills. A2A has no field for these."""

STATE_HISTORY: Final = "urn:apcore:a2a:state-transitions:1"
"""The extension of an agent whose tasks record their past states. 0.3 has a capability for it."""


class AgentInterface(Value, frozen=True):
    """An address of an agent, with the binding and the version that it speaks there.

    Example:
        >>> AgentInterface(url="https://agent.example", protocol_binding="JSONRPC", protocol_version="1.0").tenant
        ''
    """

    # Not REQUIRED_TEXT: without a URL and a binding, a client cannot call the agent.
    url: str
    protocol_binding: str
    protocol_version: str = REQUIRED_TEXT
    tenant: str = ""


class AgentProvider(Value, frozen=True):
    url: str = REQUIRED_TEXT
    organization: str = REQUIRED_TEXT


class AgentExtension(Value, frozen=True):
    """An extension of the protocol that an agent supports, or requires.

    Example:
        >>> AgentExtension(uri="https://example.com/ext/citations/v1").required
        False
    """

    uri: str
    description: str = ""
    required: bool = False
    params: dict[str, Any] | None = None


class AgentCapabilities(Value, frozen=True):
    """The optional features of an agent.

    Example:
        >>> AgentCapabilities(streaming=True).push_notifications is None
        True
    """

    # None means absent. The fields are optional in the specification, where absent differs from false.
    streaming: bool | None = None
    push_notifications: bool | None = None
    extensions: tuple[AgentExtension, ...] = ()
    extended_agent_card: bool | None = None


class AgentSkill(Value, frozen=True):
    """A skill of an agent, as its card describes it.

    Example:
        >>> AgentSkill(id="add", name="Add", description="Add two numbers.", tags=("math",)).id
        'add'
    """

    id: str
    name: str = REQUIRED_TEXT
    description: str = REQUIRED_TEXT
    tags: tuple[str, ...] = REQUIRED_ITEMS
    examples: tuple[str, ...] = ()
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()
    security_requirements: tuple[SecurityRequirement, ...] = ()


class AgentCardSignature(Value, frozen=True):
    protected: str = REQUIRED_TEXT
    signature: str = REQUIRED_TEXT
    header: dict[str, Any] | None = None


class AgentCard(Value, frozen=True, kw_only=True):
    """The description that an agent publishes of itself.

    Example:
        >>> AgentCard(name="Calculator", description="Adds.", version="1.0.0", supported_interfaces=()).name
        'Calculator'
    """

    name: str = REQUIRED_TEXT
    description: str = REQUIRED_TEXT
    version: str = REQUIRED_TEXT
    supported_interfaces: tuple[AgentInterface, ...]
    capabilities: AgentCapabilities = field(default_factory=AgentCapabilities)
    default_input_modes: tuple[str, ...] = REQUIRED_ITEMS
    default_output_modes: tuple[str, ...] = REQUIRED_ITEMS
    skills: tuple[AgentSkill, ...] = REQUIRED_ITEMS
    provider: AgentProvider | None = None
    documentation_url: str | None = None
    icon_url: str | None = None
    security_schemes: dict[str, SecurityScheme] | None = None
    security_requirements: tuple[SecurityRequirement, ...] = ()
    signatures: tuple[AgentCardSignature, ...] = ()


# ---- skill names ----------------------------------------------------------------------------------------------------
# Suggestions for a request that names no skill or an unknown one.

MAX_NAMES: Final = 20  # names in the text
MAX_COMPARED: Final = 100  # known names that a wrong one is compared with, at about 20 µs each
MAX_LENGTH: Final = 64


def advise(known: Iterable[str], asked: str = "") -> str:
    """Return a text with the closest skill and the known skills, or an empty string if there are none.

    Example:
        >>> advise(["text.stats", "text.story"], "text.stat")
        'did you mean text.stats? The skills are: text.stats, text.story'
        >>> advise(["text.stats", "text.story"])
        'the skills are: text.stats, text.story'
    """
    names = [name[:MAX_LENGTH] for name in islice(known, MAX_COMPARED)]
    if not names:
        return ""
    listed = ", ".join(names[:MAX_NAMES])
    if len(names) > MAX_NAMES:
        listed += ", …"
    near = closest(asked[:MAX_LENGTH], names)
    if near is not None:
        return f"did you mean {near}? The skills are: {listed}"
    return f"the skills are: {listed}"
