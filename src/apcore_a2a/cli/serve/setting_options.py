"""The options of `serve` and `dev` that are settings, made from the table in `apcore_a2a.settings`.

Invariant: a flag, its variable, its default and its text come from the table. A default is written once.
"""

from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin

import click

from apcore_a2a.cli.options import Function, combine
from apcore_a2a.settings import LOG_LEVELS, PREFIX, TABLE, TLS, Limits, Setting

DEFAULT_LOG_LEVEL: Final = "info"  # `serve(...)` does not set a level by default
# The key is `parameter`, which is unique. That of the TLS setting `certfile` is `ssl_certfile`.
SETTINGS: Final = {setting.parameter: setting for setting in TABLE if setting.flags}
TLS_SETTINGS: Final = frozenset(setting.parameter for setting in TABLE if setting.group == "tls")
AUTH_SETTINGS: Final = ("skill_scopes", "admin_role", "audit_log")  # authentication.py has their flags


class _Port(click.IntRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # Any: as in click
        # Kubernetes sets APCORE_A2A_PORT=tcp://10.0.0.1:8000 in the pods beside a Service that is named apcore-a2a.
        if str(value).startswith("tcp://"):
            value = SETTINGS["port"].default
        return int(super().convert(value, param, ctx))


def serve_option(*flags: str, variable: str = "", **attributes: Any) -> Callable[[Function], Function]:
    """Return an option of `serve` that is not a setting. `variable` is a second environment variable for it."""
    variables = [PREFIX + flags[0].strip("-").upper().replace("-", "_")]
    if variable:
        variables.append(variable)
    return click.option(*flags, envvar=variables, **attributes)


def setting_option(name: str) -> Callable[[Function], Function]:
    """Return the option of one setting."""
    setting = SETTINGS[name]
    kind = _without_none(setting.kind)
    default = setting.default
    if setting.name == "log_level":
        default = DEFAULT_LOG_LEVEL
    is_flag = kind is bool
    is_repeated = get_origin(kind) is dict
    if kind not in (bool, int, float, str) and not setting.choices:
        default = None  # a collection: on the command line it is one text, or the flag is repeated
    show_default: bool | str = default not in (None, "") and not is_flag
    if not show_default and setting.option.unset:
        show_default = setting.option.unset.replace("`", "")
    return click.option(
        *setting.flags,
        setting.parameter,
        envvar=list(setting.variables),
        type=_click_type(setting, kind),
        is_flag=is_flag,
        multiple=is_repeated,
        default=default,
        show_default=show_default,
        metavar=setting.option.metavar,
        help=_help_of(setting, is_repeated=is_repeated),
    )


def _without_none(kind: Any) -> Any:  # Any: a type
    """Return `int` for `int | None`."""
    if isinstance(kind, UnionType):
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    return kind


def _click_type(setting: Setting, kind: Any) -> Any:  # Any: what click makes a type of
    if setting.name == "log_level":
        return click.Choice(LOG_LEVELS, case_sensitive=False)
    if setting.choices:
        return click.Choice(setting.choices)
    if setting.name == "port":
        return _Port(0, 65535)  # so that the error names the flag. Settings check all other bounds
    return kind if kind in (int, float) else None


def _help_of(setting: Setting, *, is_repeated: bool) -> str:
    if is_repeated:
        return f"{setting.option.help} May be repeated."
    if get_origin(setting.kind) is tuple:
        return f"{setting.option.help} Separated by commas."
    return setting.option.help


def _options_of(*groups: str, without: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    names = [name for name, setting in SETTINGS.items() if setting.group in groups and name not in without]
    return combine(*map(setting_option, names))


agent_options: Final = _options_of("", without=AUTH_SETTINGS)
tls_options: Final = _options_of("tls")
limit_options: Final = _options_of("limits")


def read_given(given: dict[str, Any]) -> dict[str, Any]:  # Any: the values of the options
    """Return the keywords of `serve` that the options set, as `limits=` and `tls=` where they belong to those.

    Raises:
        click.ClickException: an option of TLS without a certificate.
    """
    options: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        if setting.group:
            continue
        value = given[name]
        if get_origin(setting.kind) is tuple:
            value = _split(value)
        if get_origin(setting.kind) is dict:
            value = _read_patterns(setting.flags[0], value)
        options[name] = value
    if not options["default_skill"]:
        del options["default_skill"]  # a target without skills rejects the option, even if it is empty
    options["limits"] = Limits(**_fields_of("limits", given))
    options["tls"] = read_tls(given)
    return options


def read_tls(given: dict[str, Any]) -> TLS | None:  # Any: the values of the options
    """Return the TLS files that the options name, or None without a certificate.

    Raises:
        click.ClickException: an option of TLS without a certificate.
    """
    chosen = _fields_of("tls", given)
    if chosen["certfile"] is not None:
        return TLS(**chosen)
    for name in ("keyfile", "keyfile_password", "ca_certs"):
        if chosen[name] is not None:
            raise click.ClickException(f"{SETTINGS[f'ssl_{name}'].flags[0]} has no effect without --ssl-certfile")
    return None


def _fields_of(group: str, given: dict[str, Any]) -> dict[str, Any]:
    return {setting.name: given[name] for name, setting in SETTINGS.items() if setting.group == group}


def _split(text: str | None) -> list[str]:
    """Return the words between commas. An empty text, as in an environment variable, has none."""
    words = (text or "").split(",")
    return [word.strip() for word in words if word.strip()]


def _read_patterns(flag: str, given: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the scopes by pattern of all given `PATTERN=SCOPE[,SCOPE]`."""
    scopes: dict[str, tuple[str, ...]] = {}
    for text in given:
        pattern, _, names = text.partition("=")
        if not pattern or not names:
            raise click.ClickException(f"{flag} must look like 'pay.*=pay:write', not {text!r}")
        scopes[pattern] = (*scopes.get(pattern, ()), *names.split(","))
    return scopes
