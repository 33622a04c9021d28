"""Registry and executor of apcore, whatever its version, as one typed thing: `Modules`.

Rule: what differs between apcore 0.6.0 and the newest is settled here, once; everybody else sees `ModuleInfo`.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from apcore_a2a.agents.apcore.schema import Schema, inline

logger = logging.getLogger(__name__)

SYSTEM: Final = "system."  # apcore's own control modules are for its operator: no message gets there


class Annotations(Struct, frozen=True, kw_only=True):
    """What a module says about its effects; the defaults are apcore's."""

    readonly: bool = False
    destructive: bool = False
    idempotent: bool = False
    requires_approval: bool = False
    open_world: bool = True


class Example(Struct, frozen=True):
    title: str = ""
    inputs: Any = None


class ModuleInfo(Struct, frozen=True, kw_only=True):
    """A module, described once. A schema is empty where the module has none, and never holds a `$ref`."""

    id: str
    description: str
    tags: tuple[str, ...]
    version: str
    annotations: Annotations | None
    examples: tuple[Example, ...]
    input_schema: Schema
    output_schema: Schema
    display: Mapping[str, Any]
    streams: bool
    previews: bool
    """Whether the module wants to be asked before a call is made."""
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


Fits = Callable[[Any, ModuleInfo, Any], bool]  # executor, module, inputs


class Modules:
    """The modules of a registry, and the executor that runs them.

    Args:
        prepare: Gets each module as it is taken in.
        fits: Whether inputs are sure to pass apcore's checks of a call, the ACL's aside; where not, apcore is asked.
    """

    def __init__(
        self, registry: Any, executor: Any, *, prepare: Callable[[Any], object] = id, fits: Fits = lambda *_: False
    ) -> None:
        self.registry, self.executor = registry, executor
        self._prepare, self._fits = prepare, fits
        self._known: dict[str, tuple[Any, ModuleInfo | None]] = {}
        # Hidden modules are listed on request from 0.21 on; `validate` looks at the ACL from 0.9 on.
        listing = inspect.signature(registry.list).parameters
        self._all = {"visibility": ["public", "hidden"]} if "visibility" in listing else {}
        self._validates_access = "context" in inspect.signature(executor.validate).parameters

    def __iter__(self) -> Iterator[ModuleInfo]:
        """Every module that can be called, by id."""
        return filter(None, map(self.find, self.registry.list(**self._all)))

    def find(self, module_id: str) -> ModuleInfo | None:
        source = self.registry.get(module_id) if module_id and not module_id.startswith(SYSTEM) else None
        if source is None:
            self._known.pop(module_id, None)
            return None
        known = self._known.get(module_id)
        if known is None or known[0] is not source:  # what is registered anew is another object
            known = self._known[module_id] = (source, self._take_in(module_id, source))
        return known[1]

    def _take_in(self, module_id: str, source: Any) -> ModuleInfo | None:
        try:
            self._prepare(source)
            return _describe(self.registry, module_id, source)
        except Exception:  # a schema that cannot be made, for one: this module's trouble, not the others'
            logger.exception("module cannot be described, so it is left out", extra={"module_id": module_id})
            return None

    def watch(self, changed: Callable[[], object]) -> None:
        """Have `changed` called after each registration and removal, on the thread that made it."""

        def forget(module_id: str, _: Any) -> None:
            self._known.pop(module_id, None)
            changed()

        for event in ("register", "unregister"):
            self.registry.on(event, forget)

    def denies(self, module_id: str, make_context: Callable[[], Any]) -> bool:
        """Whether the ACL refuses a call, be the module known or not."""
        acl: Any = getattr(self.executor, "_acl", None)
        if acl is None:
            return False
        context = make_context().child(module_id)
        if hasattr(acl, "check_access"):  # tells "ask a human" from "no"
            return bool(acl.check_access(context.caller_id, module_id, context).access != "allow")
        return not acl.check(context.caller_id, module_id, context)

    async def preflight(self, module: ModuleInfo, inputs: Any, make_context: Callable[[], Any]) -> dict[str, Any]:
        """The checks of apcore before a call, without blocking the loop: the failed ones, and what each says."""
        if not self._validates_access:
            if self.denies(module.id, make_context):
                return {"acl": {}}
            errors = self.executor.validate(module.id, inputs).errors
            return {"schema": {"errors": errors}} if errors else {}
        if not hasattr(self.executor, "_validate_async"):
            result = self.executor.validate(module.id, inputs, make_context())
        elif self._fits(self.executor, module, inputs) and not self.denies(module.id, make_context):
            return {}
        else:  # here `validate` would start a thread and wait for it; only what the module brings along may block
            checking = self.executor._validate_async(module.id, inputs, make_context())
            result = await (asyncio.to_thread(asyncio.run, checking) if module.previews else checking)
        return {check.check: check.error or {} for check in result.checks if not check.passed}


def _describe(registry: Any, module_id: str, source: Any) -> ModuleInfo:
    try:
        described = registry.get_definition(module_id)
    except AttributeError:  # 0.6.0 cannot describe a module whose schemas are dicts
        described = source

    def read(name: str, default: Any) -> Any:
        return getattr(described, name, None) or getattr(source, name, None) or default

    annotations = read("annotations", None)
    flags = annotations if isinstance(annotations, Mapping) else getattr(annotations, "__dict__", {})
    if not (description := read("description", "")):
        logger.warning("module has no description, so it is no skill", extra={"module_id": module_id})
    return ModuleInfo(
        id=module_id,
        description=description,
        tags=tuple(read("tags", ())),
        version=read("version", ""),
        annotations=msgspec.convert(annotations, Annotations | None, strict=False, from_attributes=True),
        examples=msgspec.convert(read("examples", ()), tuple[Example, ...], from_attributes=True),
        input_schema=inline(read("input_schema", {})),
        output_schema=inline(read("output_schema", {})),
        display=read("metadata", {}).get("display") or getattr(source, "display", None) or {},
        streams=inspect.isasyncgenfunction(getattr(source, "stream", None)),
        previews=hasattr(source, "preflight") or hasattr(source, "preview"),
        hidden=flags.get("discoverable") is False,
        source=source,
    )
