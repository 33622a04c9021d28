"""What may import what. The table is the architecture: changing it is a design decision, made in its own commit.

Imports are read from the syntax tree, so those inside functions and under TYPE_CHECKING count like any other.
"""

import ast
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest

from tests.requirements import requirement
from tests.sources import module_name, python_files


class Rule(NamedTuple):
    """What a layer may import: layers of ours (its own is understood) and other people's packages."""

    ours: frozenset[str]
    theirs: frozenset[str]


ANYTHING: Final = "*"


def may(ours: str, theirs: str) -> Rule:
    return Rule(frozenset(ours.split()), frozenset(theirs.split()))


# A row for a file (`http.server`) takes it out of its package's row, as importer and as imported.
RULES: Final = {
    "errors": may("clean_text", ""),
    "ids_and_time": may("", ""),
    "clean_text": may("", ""),
    "web": may("", ""),
    "log_throttle": may("", ""),
    "quota": may("", ""),
    "trace_context": may("", ""),
    "protocol": may("errors", "msgspec"),
    # The protocol versions. The engine knows none: the bindings and the composition encode its events.
    "protocol.v1": may("protocol errors", "msgspec"),
    "protocol.v03": may("protocol protocol.v1 errors", "msgspec"),
    "protocol.dialect": may("protocol protocol.v1 protocol.v03 errors", "msgspec"),
    # The third binding's bytes: the same JSON as the REST form of each version, in protocol buffers.
    "protocol.protobuf": may("protocol errors", ""),
    "protocol.grpc": may("protocol protocol.v1 protocol.v03 protocol.dialect protocol.protobuf errors", "msgspec"),
    "protocol.mixed": may("protocol protocol.v1 protocol.v03 errors", "msgspec"),
    "protocol.card_forms": may("protocol protocol.v03 errors", "msgspec"),
    "agent": may("protocol errors", "msgspec"),
    # Whatever becomes an Agent.
    "agents": may("agents.schema agent protocol errors ids_and_time clean_text", "msgspec"),
    # A program of its own, which a process runs.
    "agents.check_process": may("", "jsonschema"),
    # Pure: reads and expands JSON Schemas.
    "agents.schema": may("", ""),
    "agents.apcore": may(
        "agents agents.schema agent protocol errors ids_and_time clean_text", "apcore msgspec pydantic"
    ),
    "agents.a2a_sdk": may("agents agent protocol protocol.v03 errors", "a2a google.protobuf msgspec"),
    # Agents of other frameworks: each file imports its own framework, and only the table imports the files.
    "agents.frameworks": may("agents agent protocol errors", "msgspec"),
    "agents.frameworks.pydantic_ai": may("agents.frameworks agents agent protocol errors", "pydantic_ai"),
    "agents.frameworks.agent_framework": may(
        "agents.frameworks agents agent protocol errors", "agent_framework msgspec"
    ),
    "agents.frameworks.langgraph": may(
        "agents.schema agents.frameworks agents agent protocol errors", "langchain_core langgraph msgspec"
    ),
    "agents.frameworks.openai_agents": may("agents.frameworks agents agent protocol errors", "agents"),
    "agents.frameworks.google_adk": may(
        "agents.frameworks agents agent protocol errors", "google.adk google.genai msgspec"
    ),
    "agents.frameworks.strands": may("agents.frameworks agents agent protocol errors", "strands"),
    "agents.frameworks.recognition": may(
        "agents.frameworks agents.frameworks.agent_framework agents.frameworks.google_adk "
        "agents.frameworks.langgraph agents.frameworks.openai_agents "
        "agents.frameworks.pydantic_ai agents.frameworks.strands",
        "msgspec",
    ),
    # MCP servers. The first file recognizes them without the MCP SDK.
    "agents.mcp": may("agents agents.schema agent protocol errors clean_text", "fastmcp mcp mcp_types msgspec"),
    "agents.mcp.targets": may("agents.mcp agent", "mcp msgspec"),
    "agents.as_agent": may(
        "agents.mcp.targets agents agents.a2a_sdk agents.frameworks agents.frameworks.recognition agent", ""
    ),
    # aiohttp fetches the keys that an issuer publishes.
    "auth": may(
        "agent protocol errors clean_text ids_and_time web log_throttle", "aiohttp cryptography joserfc msgspec"
    ),
    # `protocol.v1`: events are kept as the JSON of 1.0, in the log as in the stores.
    "engine": may(
        "agent protocol protocol.v1 errors ids_and_time clean_text quota storage.contract trace_context", "msgspec"
    ),
    "http": may(
        "http.server.exchange http.traffic engine agent protocol protocol.v1 protocol.v03 protocol.dialect "
        "protocol.grpc errors clean_text web storage.contract trace_context",
        "msgspec starlette",
    ),
    "http.traffic": may("engine agent errors clean_text log_throttle quota", ""),
    "http.server.tls": may("http.traffic", "msgspec"),
    "http.server.exchange": may("http.traffic", "msgspec"),
    "http.server.http2_guard": may("", ""),
    "http.server.http2": may("http.server.exchange http.server.http2_guard http.traffic", "h2 msgspec"),
    "http.server.connection": may(
        "http.server.exchange http.server.http2 http.traffic web", "httptools msgspec uvicorn"
    ),
    "http.server.server": may("http.server.tls http.traffic", "uvicorn"),
    "storage.contract": may("protocol errors", "msgspec"),
    # Stored events are the JSON of 1.0; a custom store may ask for tasks as 0.3 writes them.
    "storage": may("storage.contract protocol protocol.v1 protocol.v03 errors", "msgspec"),
    "storage.postgres": may("storage storage.contract protocol protocol.v1 errors", "asyncpg msgspec"),
    "client": may(
        "protocol protocol.v1 protocol.v03 protocol.dialect protocol.mixed protocol.card_forms protocol.grpc errors "
        "agents.schema ids_and_time clean_text trace_context telemetry.spans",
        "aiohttp h2 httpx joserfc msgspec",
    ),
    # Posting to webhooks; the signatures are for their receivers, too.
    "webhooks.signatures": may("", ""),
    "webhooks": may("webhooks.signatures engine protocol protocol.v1 protocol.v03 errors", "aiohttp msgspec"),
    # What each platform expects of a server. The composition applies it.
    "hosts": may("protocol", "msgspec"),
    "settings": may(
        "agent engine hosts http.server.tls http.traffic protocol errors web webhooks.signatures telemetry.names",
        "msgspec",
    ),
    # Spans, for the composition and for clients. Nothing else imports OpenTelemetry.
    "telemetry": may("", ""),
    "telemetry.names": may("", ""),
    "telemetry.tree": may("telemetry.names", "opentelemetry"),
    "telemetry.instruments": may("telemetry.names http", "opentelemetry"),
    "telemetry.export": may("telemetry.names telemetry.instruments telemetry.tree http", "opentelemetry"),
    "telemetry.spans": may("telemetry.names errors trace_context", "opentelemetry"),
    "telemetry.tracing": may(
        "telemetry.names telemetry.spans engine agent protocol errors trace_context",
        "msgspec opentelemetry",
    ),
    # Remote agents as modules: the client on one side, apcore on the other.
    "remote": may("agents.schema agents.apcore client protocol errors clean_text", "apcore msgspec pydantic"),
    # Remote agents as tools of frameworks. Each function imports the framework whose tools it makes.
    "toolkits": may(
        "client protocol errors clean_text ids_and_time",
        "agents google langchain_core langgraph mcp mcp_types msgspec pydantic_ai strands",
    ),
    # Composition: the only packages that may import everything.
    "app": may(ANYTHING, ANYTHING),
    "cli": may(ANYTHING, ANYTHING),
    "explorer": may(ANYTHING, ANYTHING),
    "testing": may(ANYTHING, ANYTHING),
    "pytest_plugin": may("testing client", "pytest"),
    # The root: our names, lazily, and nothing else.
    "": may(ANYTHING, ""),
    "__main__": may("cli", ""),
}

# protocol/ is a function from bytes and values to bytes and values: nothing that waits, looks around or differs by run.
IMPURE: Final = frozenset(
    "asyncio concurrent contextvars ftplib glob http locale logging mmap multiprocessing os pathlib platform "
    "queue random sched secrets select selectors shutil signal smtplib socket socketserver sqlite3 ssl subprocess sys "
    "tempfile threading time tracemalloc urllib uuid zoneinfo".split()
)
IMPURE_CALLS: Final = frozenset({"input", "now", "open", "print", "today", "utcnow"})
IMPORT_BY_NAME: Final = frozenset({"__import__", "import_module"})  # would pass by this test unseen

# The size of today. A new feature may raise it. Anything else belongs into a module that exists.
MAX_MODULES: Final = 220

MODULES: Final = {module_name(path): path.read_text(encoding="utf-8") for path in python_files("src")}


def layer_of(module: str) -> str:
    """The longest row that names the module or a package around it."""
    inner = module.removeprefix("apcore_a2a").removeprefix(".")
    while inner and inner not in RULES:
        inner = inner.rpartition(".")[0]
    return inner


def imports_of(source: str, modules: frozenset[str]) -> Iterator[str]:
    """Full names of the modules a source imports; `from package import module` is an import of the module."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=package, names=names, level=0) if package is not None:
                if package == "apcore_a2a" and [alias.name for alias in names] == ["__version__"]:
                    continue  # a constant, not a dependency
                full = [f"{package}.{alias.name}" for alias in names]
                yield from (name if name in modules else package for name in full)
            case ast.ImportFrom():
                yield "a relative import"


def find_violations(module: str, source: str, modules: frozenset[str] = frozenset(MODULES)) -> list[str]:
    layer = layer_of(module)
    if layer == "" and module != "apcore_a2a":
        return [f"{module} is in no layer"]
    rule = RULES[layer]
    found = [f"{module} imports {name}" for name in imports_of(source, modules) if not allowed(name, layer, rule)]
    calls = {name for name in called_names(source) if is_forbidden_call(name, layer, rule)}
    return found + [f"{module} calls {name}()" for name in sorted(calls)]


def allowed(name: str, layer: str, rule: Rule) -> bool:
    top = name.partition(".")[0]
    if top == "apcore_a2a":
        return ANYTHING in rule.ours or layer_of(name) in {layer, *rule.ours} - {""}
    if top in sys.stdlib_module_names:
        return not is_pure(layer) or top not in IMPURE
    return ANYTHING in rule.theirs or any(name == theirs or name.startswith(f"{theirs}.") for theirs in rule.theirs)


def is_pure(layer: str) -> bool:
    return layer.partition(".")[0] == "protocol"


def called_names(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
                yield name


def is_forbidden_call(name: str, layer: str, rule: Rule) -> bool:
    return (name in IMPURE_CALLS and is_pure(layer)) or (name in IMPORT_BY_NAME and ANYTHING not in rule.ours)


@requirement("NFR-MNT-005")
@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_inward(module: str) -> None:
    assert find_violations(module, MODULES[module]) == []


def test_every_layer_named_in_a_rule_has_a_rule() -> None:
    named = {layer for rule in RULES.values() for layer in rule.ours}
    assert named - RULES.keys() == {ANYTHING}


def test_the_layers_form_no_cycle() -> None:
    remaining = {layer: set(rule.ours) for layer, rule in RULES.items() if ANYTHING not in rule.ours}
    while remaining:
        settled = {layer for layer, needs in remaining.items() if not needs & remaining.keys()}
        assert settled, f"these layers need each other: {sorted(remaining)}"
        remaining = {layer: needs for layer, needs in remaining.items() if layer not in settled}


def find_cycle(graph: dict[str, set[str]]) -> set[str]:
    """Modules that need each other, directly or through others; none if they can be put in an order."""
    remaining = dict(graph)
    while True:
        settled = {module for module, needs in remaining.items() if not needs & remaining.keys()}
        if not settled:
            return set(remaining)
        remaining = {module: needs for module, needs in remaining.items() if module not in settled}


def test_the_modules_form_no_cycle() -> None:
    names = frozenset(MODULES)
    graph = {name: set(imports_of(source, names)) - {name} for name, source in MODULES.items() if name != "apcore_a2a"}
    assert find_cycle(graph) == set()


def find_repeated_classes(modules: dict[str, str]) -> dict[str, list[str]]:
    """The modules of each class name that two modules, or one module twice, define at the top."""
    found: dict[str, list[str]] = {}
    for module, source in modules.items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(module)
    return {name: places for name, places in found.items() if len(places) > 1}


def test_no_class_name_is_used_twice() -> None:
    assert find_repeated_classes(MODULES) == {}


def test_a_repeated_class_name_is_found() -> None:
    modules = {"a": "class Page: ...", "b": "class Page: ...\nclass Row: ..."}
    assert find_repeated_classes(modules) == {"Page": ["a", "b"]}


def test_the_number_of_modules_is_limited() -> None:
    files = [path for path in python_files("src") if path.name != "__init__.py"]
    assert len(files) <= MAX_MODULES, f"{len(files)} modules: merge some, or raise the limit for a new feature"


def test_a_cycle_is_found() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("apcore_a2a.client.client", "from apcore_a2a.engine.engine import Engine"),
        ("apcore_a2a.client.client", "import starlette.requests"),
        ("apcore_a2a.client.bindings", "from apcore_a2a import serve"),
        ("apcore_a2a.engine.engine", "from apcore_a2a.storage.memory import InMemoryTaskStore"),
        ("apcore_a2a.engine.engine", "from apcore_a2a.storage import memory"),
        ("apcore_a2a.engine.engine", "def deliver():\n    from apcore_a2a.http.server import server"),
        ("apcore_a2a.engine.engine", "import apcore"),
        ("apcore_a2a.engine.webhooks.delivery", "from apcore_a2a.protocol.v03 import jsonrpc"),
        ("apcore_a2a.engine.event_log", "from apcore_a2a.protocol.dialect import Dialect"),
        ("apcore_a2a.agents.apcore.call", "import starlette"),
        ("apcore_a2a.agents.apcore.call", "if TYPE_CHECKING:\n    from apcore_a2a.engine.engine import Engine"),
        ("apcore_a2a.agents.apcore.call", "from ..engine import engine"),
        ("apcore_a2a.agents.apcore.call", "import_module('apcore_a2a.engine.engine')"),
        ("apcore_a2a.auth.jwt", "from starlette.requests import Request"),
        ("apcore_a2a.storage.memory", "import asyncpg"),
        ("apcore_a2a.storage.memory", "from apcore_a2a.agent import Caller"),
        ("apcore_a2a.protocol.model", "import asyncio"),
        ("apcore_a2a.protocol.model", "from datetime import datetime\ndatetime.now()"),
        ("apcore_a2a.protocol.model", "from apcore_a2a.agent import Call"),
        ("apcore_a2a.protocol.v1", "from google.protobuf import json_format"),
        ("apcore_a2a.errors", "import msgspec"),
        ("apcore_a2a.utils", "import json"),
        ("apcore_a2a", "import msgspec"),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str) -> None:
    modules = frozenset({"apcore_a2a.storage.memory", "apcore_a2a.http.server.server", "apcore_a2a.engine.engine"})
    assert find_violations(module, source, modules)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("apcore_a2a.client.client", "from apcore_a2a import __version__"),
        ("apcore_a2a.engine.engine", "from apcore_a2a.storage.contract import TaskStore"),
        ("apcore_a2a.http.server.server", "import uvicorn"),
        ("apcore_a2a.protocol.v1", "from datetime import datetime\nfrom msgspec import Raw"),
        ("apcore_a2a.auth.jwt", "from joserfc import jwt"),
        ("apcore_a2a.app.serve", "import uvicorn\nfrom apcore_a2a.storage.memory import InMemoryTaskStore"),
        ("apcore_a2a", "from apcore_a2a.client import A2AClient"),
    ],
)
def test_an_allowed_import_is_not_reported(module: str, source: str) -> None:
    assert find_violations(module, source) == []


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_syntax_is_newer_than_python_3_11(module: str) -> None:
    ast.parse(MODULES[module], feature_version=(3, 11))
