"""The executor of a registry that is served: apcore's own, made the way a server needs it.

Six things are different from a plain `apcore.Executor(registry)`, and all are said with public means:

- schemas are remembered, which makes a call several times as fast (see `registry_view`);
- there are no time limits that nobody chose: how long a task may take is the engine's to say;
- a module may return anything that JSON can say, not objects only (see `bare_output`);
- modules that block have threads of their own, and those that never return are counted (see `blocking`);
- what requires approval is asked of the caller. Without a handler apcore would run it, and write a warning;
- it tells its ACL and its approval handler, which apcore's does only from 0.32 on.
"""

from typing import Any, Final

import apcore

from apcore_a2a.agents.apcore.approvals import HAS_APPROVALS, AskCaller
from apcore_a2a.agents.apcore.bare_output import ExecuteAny, unwrap
from apcore_a2a.agents.apcore.registry_view import RegistryView
from apcore_a2a.agents.functions import make_threads

DEFAULT_TIMEOUT: Final = "executor.default_timeout"
GLOBAL_TIMEOUT: Final = "executor.global_timeout"
APCORES_LIMITS: Final = {DEFAULT_TIMEOUT: 30_000, GLOBAL_TIMEOUT: 60_000}  # its defaults, in ms

# 0 is no limit, and also lets a canceled run cancel its module, which apcore otherwise leaves running. Where that does
# not work, the limit is eleven days: before apcore had a pipeline, it logged a warning with every call without a limit.
NO_LIMIT: Final = 0
FOREVER: Final = 10**9
HAS_PIPELINE: Final = hasattr(apcore.Executor, "current_strategy")
HAS_EXECUTE_STEP: Final = hasattr(apcore, "BuiltinExecute")  # from 0.19 on


class ServedExecutor(apcore.Executor):  # type: ignore[misc]  # apcore is untyped
    """An `apcore.Executor` for serving; `serve(registry)` makes one of these.

    Args:
        registry: An apcore Registry.
        config: apcore's configuration. A registry does not tell its own, so it is given here.
        acl: Who may call what; else the ACL that the configuration names, if it names one.
        approval_handler: Who is asked before a module that requires approval is run; else whoever sent the message.
        options: All other arguments of `apcore.Executor`.

    Example:
        >>> executor = ServedExecutor(apcore.Registry(), acl=apcore.ACL(rules=[], default_effect="deny"))
        >>> executor.acl.check(None, "any.module")
        False
    """

    def __init__(
        self,
        registry: Any,  # Any: apcore is untyped
        *,
        config: Any = None,
        acl: Any = None,
        approval_handler: Any = None,
        **options: Any,
    ) -> None:
        if acl is None and config is not None and hasattr(apcore.ACL, "discover"):
            acl = apcore.ACL.discover(config)
        if HAS_APPROVALS:
            approval_handler = approval_handler or AskCaller()
            options["approval_handler"] = approval_handler
        limits = ConfigWithoutLimits(config)
        super().__init__(RegistryView(registry), config=limits, acl=acl, **options)
        self.config = config
        self.acl = acl
        self.threads = make_threads()
        self.approval_handler = approval_handler
        # A pipeline that somebody put together is left as it is: its steps are not ours to change.
        if HAS_EXECUTE_STEP and "strategy" not in options and not limits.get("pipeline"):
            self._replace_execute_step(limits)

    async def call_async(self, *args: Any, **options: Any) -> Any:
        return unwrap(await super().call_async(*args, **options))

    def set_acl(self, acl: Any) -> None:
        super().set_acl(acl)
        self.acl = acl

    def set_approval_handler(self, handler: Any) -> None:
        super().set_approval_handler(handler)
        self.approval_handler = handler

    def _replace_execute_step(self, limits: "ConfigWithoutLimits") -> None:
        """Have modules return what they like, and run without a limit, not with one that is far away: see NO_LIMIT.

        The configuration cannot say the latter. From the same number the executor takes how long its synchronous `call`
        waits in an event loop, and with 0 that would be one second.
        """
        config: Any = limits
        if limits.get(DEFAULT_TIMEOUT) == FOREVER:
            config = apcore.Config({"executor": {"default_timeout": 0}})
        self.current_strategy.replace("execute", ExecuteAny(config=config, threads=self.threads))


class ConfigWithoutLimits:
    """A configuration, but for the time limits that nobody chose. One that differs from apcore's default was chosen."""

    def __init__(self, config: Any) -> None:  # Any: apcore is untyped
        self._config = config

    def get(self, key: str, default: Any = None) -> Any:
        value = default
        if self._config is not None:
            value = self._config.get(key, default)
        if key in APCORES_LIMITS and value in (None, APCORES_LIMITS[key]):
            return NO_LIMIT if key == GLOBAL_TIMEOUT and HAS_PIPELINE else FOREVER
        return value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)
