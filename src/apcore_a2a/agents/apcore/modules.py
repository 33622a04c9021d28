"""Registry and executor of apcore, whatever its version, as one typed thing: `Modules`.

Rule: how a module is described differs between apcore 0.6.0 and the newest; that is settled here, once, and everybody
else sees `ModuleInfo`.
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from apcore_a2a.agents.apcore.blocking import blocks
from apcore_a2a.agents.apcore.checks import (
    FailedChecks,
    MakeContext,
    UnauditedACL,
    find_acl,
    find_failed_checks,
    is_denied,
    refuses,
)
from apcore_a2a.agents.integers import IntegerSchema
from apcore_a2a.agents.schema import Schema, inline
from apcore_a2a.agents.skill_card import Annotations, Example
from apcore_a2a.protocol.model import encode

logger = logging.getLogger(__name__)

CallModule = Callable[[str, Any, Any], Any]
"""Calls a module by its id, with inputs and apcore's Context."""

SYSTEM: Final = "system."  # apcore's own control modules are for its operator: no message gets there


class ModuleInfo(Struct, frozen=True, kw_only=True):
    """A module, described once. A schema is empty where the module has none, and never holds a `$ref`."""

    id: str
    description: str
    tags: tuple[str, ...]
    version: str
    annotations: Annotations | None
    examples: tuple[Example, ...]
    input_schema: Schema
    integers: IntegerSchema
    """Where its inputs are integers."""
    output_schema: Schema
    display: Mapping[str, Any]
    streams: bool
    blocks: bool
    """Whether it runs on a thread."""
    hidden: bool
    source: Any
    """The module itself."""

    @property
    def is_skill(self) -> bool:
        """Whether the module is offered; one that is not can still be called by whoever knows its id."""
        return bool(self.description) and not self.hidden

    @property
    def is_repeatable(self) -> bool:
        return self.annotations is not None and (self.annotations.idempotent or self.annotations.readonly)

    @property
    def requires_approval(self) -> bool:
        return self.annotations is not None and self.annotations.requires_approval


class Modules:
    """The modules of a registry, and the executor that runs them.

    Args:
        config: apcore's configuration, where there is one; the agent card is named by it.
    """

    def __init__(self, registry: Any, executor: Any, *, config: Any = None) -> None:  # Any: apcore is untyped
        self.registry = registry
        self.executor = executor
        self.config = config
        self.call: CallModule = passing_context(executor.call_async)
        self.stream: CallModule | None = None
        if hasattr(executor, "stream"):
            self.stream = passing_context(executor.stream)
        # Each module with its description, which is None if it has none: see `_describe_or_leave_out`.
        self._known: dict[str, tuple[Any, ModuleInfo | None]] = {}
        self._unaudited = UnauditedACL()
        self._all: dict[str, list[str]] = {}
        if "visibility" in inspect.signature(registry.list).parameters:  # from 0.21 on modules can be hidden
            self._all = {"visibility": ["public", "hidden"]}

    def __len__(self) -> int:
        """How many modules are registered, with those that are hidden, and those that cannot be described."""
        return len(self.registry.list(**self._all))

    def __iter__(self) -> Iterator[ModuleInfo]:
        """Every module that can be called, by id."""
        for module_id in self.registry.list(**self._all):
            module = self.find(module_id)
            if module is not None:
                yield module

    def find(self, module_id: str) -> ModuleInfo | None:
        """The module that has this id now."""
        source = None
        if module_id and not module_id.startswith(SYSTEM):  # apcore raises for an empty id
            source = self.registry.get(module_id)
        if source is None:
            self._known.pop(module_id, None)
            return None
        known = self._known.get(module_id)
        if known is not None and known[0] is source:
            return known[1]
        # New, or registered anew: then it is another object, which may say other things about itself.
        description = self._describe_or_leave_out(module_id, source)
        self._known[module_id] = (source, description)
        return description

    def _describe_or_leave_out(self, module_id: str, source: Any) -> ModuleInfo | None:
        try:
            module = _describe(self.registry, module_id, source)
            if module.is_skill:
                _check_card(module)
            return module
        except Exception:  # a schema that cannot be made, for one: this module's trouble, not the others'
            logger.exception("module cannot be described, so it is left out", extra={"module_id": module_id})
            return None

    def watch(self, changed: Callable[[], object]) -> None:
        """Have `changed` called after each registration and removal, on the thread that made it."""

        def forget(module_id: str, _: Any) -> None:
            self._known.pop(module_id, None)  # or a module that was removed would be kept until somebody asks for it
            changed()

        for event in ("register", "unregister"):
            self.registry.on(event, forget)

    def denies(self, module_id: str, make_context: MakeContext) -> bool:
        """Whether the ACL refuses a call, be the module known or not."""
        return is_denied(self.executor, module_id, make_context)

    def would_deny(self, module_id: str, make_context: MakeContext) -> bool:
        """The same for a call that nobody makes, so the ACL's audit log hears nothing of it."""
        acl = find_acl(self.executor)
        return acl is not None and refuses(self._unaudited.of(acl), module_id, make_context)

    async def find_failed_checks(self, module: ModuleInfo, inputs: Any, make_context: MakeContext) -> FailedChecks:
        """The checks of apcore that a call would not pass, and what each says."""
        return await find_failed_checks(self.executor, module.id, inputs, make_context)


def passing_context(method: Callable[..., Any]) -> CallModule:
    """A method of an executor that may take the context, take it by name alone, or not want it."""
    try:
        signature = inspect.signature(method)
    except ValueError:  # of what is written in C, some is not known
        return method
    try:
        signature.bind("", {}, None)
    except TypeError:
        pass
    else:
        return method  # as apcore's, which costs nothing

    def with_named_context(module_id: str, inputs: Any, context: Any) -> Any:
        return method(module_id, inputs, context=context)

    def without_context(module_id: str, inputs: Any, context: Any) -> Any:
        return method(module_id, inputs)

    if "context" in signature.parameters:
        return with_named_context
    return without_context


def _describe(registry: Any, module_id: str, source: Any) -> ModuleInfo:
    try:
        described = registry.get_definition(module_id)
    except AttributeError:  # 0.6.0 cannot describe a module whose schemas are dicts
        described = source

    def read(name: str, default: Any) -> Any:
        """From the description, else from the module: 0.6.0 leaves half of it there."""
        return getattr(described, name, None) or getattr(source, name, None) or default

    def read_schema(name: str) -> dict[str, Any]:
        """An empty one, which anything matches, is a description, too: apcore keeps an adapter on the module."""
        found = getattr(described, name, None)
        if found is None:
            found = getattr(source, name, None)
        return found or {}

    description = read("description", "")
    if not description:
        logger.warning("module has no description, so it is no skill", extra={"module_id": module_id})
    annotations = read("annotations", None)
    input_schema = read_schema("input_schema")
    return ModuleInfo(
        id=module_id,
        description=description,
        tags=tuple(read("tags", ())),
        version=read("version", ""),
        annotations=msgspec.convert(annotations, Annotations | None, strict=False, from_attributes=True),
        examples=msgspec.convert(read("examples", ()), tuple[Example, ...], from_attributes=True),
        input_schema=inline(input_schema),
        integers=IntegerSchema(input_schema),
        output_schema=inline(read_schema("output_schema")),
        # `@module(display=…)` leaves it on the module, everything else in the metadata.
        display=read("metadata", {}).get("display") or getattr(source, "display", None) or {},
        # The method decides, not the annotation: apcore does not look at that one when it runs a module.
        streams=inspect.isasyncgenfunction(getattr(source, "stream", None)),
        blocks=blocks(source),
        hidden=_is_hidden(annotations),
        source=source,
    )


class _Display(Struct):
    """What is shown of `display`."""

    alias: str | None = None
    description: str | None = None
    tags: list[str] | None = None
    a2a: "_Display | None" = None


def _check_card(module: ModuleInfo) -> None:
    """Raise an exception of msgspec's if a card could not say what the module says of itself."""
    texts = msgspec.convert([module.description, *module.tags], list[str])
    display = msgspec.convert(module.display, _Display)
    encode([texts, display, module.examples, module.input_schema, module.output_schema])


def _is_hidden(annotations: Any) -> bool:
    if isinstance(annotations, Mapping):  # as 0.6.0 leaves those of `@module`
        return annotations.get("discoverable") is False
    return getattr(annotations, "discoverable", None) is False
