"""The options of `serve`: `Settings`, `Limits` and `TLS`, and the table that describes each of them once.

A field carries its type, its default and an `Option`: documentation, bounds, flag and environment variable. `check`,
the command line and the tables of docs/operations.md are made from `TABLE`.

Invariant: only this module and `app/` know the settings. Other packages receive plain values.
"""

import math
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Annotated, Any, Final, Literal, get_args, get_origin
from urllib.parse import urlsplit

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from apcore_a2a.agent import ShowTools
from apcore_a2a.engine.context import EngineOptions
from apcore_a2a.hosts import PROFILES, HostProfile, HostProfileName
from apcore_a2a.http.server.tls import ClientCertificates
from apcore_a2a.http.traffic import MAX_BODY, MIB, TrustedProxies
from apcore_a2a.protocol.card import AgentExtension, CardInterfaces, CardMode
from apcore_a2a.protocol.decoding import MAX_VALUES
from apcore_a2a.protocol.lifecycle import StreamFinal
from apcore_a2a.telemetry.names import check_target
from apcore_a2a.web import hide_password, is_host_pattern, is_loopback
from apcore_a2a.webhooks.signatures import parse_secret

PREFIX: Final = "APCORE_A2A_"  # of the environment variables
LOG_LEVELS: Final = ("debug", "info", "warning", "error")

# ---- descriptions ---------------------------------------------------------------------------------------------------


class Bounds(Struct, frozen=True):
    """The numbers that an option accepts, both ends included, and the words for them in an error."""

    text: str
    lowest: float
    highest: float = math.inf

    def allow(self, value: float) -> bool:
        return self.lowest <= value <= self.highest  # NaN is outside of every range


ABOVE_ZERO: Final = math.ulp(0.0)
LARGEST: Final = sys.float_info.max
POSITIVE: Final = Bounds("positive", ABOVE_ZERO)
POSITIVE_AND_FINITE: Final = Bounds("positive and finite", ABOVE_ZERO, LARGEST)
ZERO_OR_MORE: Final = Bounds("finite, and 0 or more", 0, LARGEST)
PORT: Final = Bounds("between 0 and 65535", 0, 65535)


class Option(Struct, frozen=True):
    """The documentation of a setting, its bounds, and its names on the command line and in the environment."""

    help: str
    unset: str = ""
    """What applies if the setting is not given, for a default that is None or empty."""
    bounds: Bounds | None = None
    variable: str = ""
    """A second environment variable, beside APCORE_A2A_ and the name of the setting."""
    flags: tuple[str, ...] = ()
    """The flags. `--` and the name of the setting if empty."""
    metavar: str | None = None
    is_secret: bool = False
    in_python_only: bool = False
    """Whether the setting has neither a flag nor a variable."""


# ---- settings -------------------------------------------------------------------------------------------------------


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of a served agent: request rates, numbers of tasks, streams and connections, and sizes.

    Example:
        >>> from apcore_a2a import Limits, Settings
        >>> Settings(limits=Limits(max_streams=100)).check().limits.max_streams
        100
    """

    max_requests_per_second: Annotated[
        float | None,
        Option("Maximum requests per second of one caller.", unset="no limit", bounds=POSITIVE_AND_FINITE),
    ] = None
    max_anonymous_requests_per_second: Annotated[
        float | None,
        Option(
            "Maximum requests per second of one address, for callers that are not authenticated.",
            unset="as max_requests_per_second; with authentication a tenth of it",
            bounds=POSITIVE_AND_FINITE,
        ),
    ] = None
    max_total_requests_per_second: Annotated[
        float | None,
        Option("Maximum requests per second of all callers together.", unset="no limit", bounds=POSITIVE_AND_FINITE),
    ] = None
    request_burst: Annotated[
        int | None,
        Option(
            "Number of requests that one caller may send at once before the rates apply.",
            unset="the requests of two seconds",
            bounds=POSITIVE,
        ),
    ] = None
    max_active_tasks: Annotated[int, Option("Maximum number of running tasks.", bounds=POSITIVE)] = 10_000
    max_active_tasks_per_caller: Annotated[
        int, Option("Maximum number of running tasks of one caller.", bounds=POSITIVE)
    ] = 5_000
    max_streams: Annotated[int, Option("Maximum number of open event streams.", bounds=POSITIVE)] = 10_000
    max_streams_per_caller: Annotated[
        int, Option("Maximum number of open event streams of one caller.", bounds=POSITIVE)
    ] = 1_000
    max_stored_tasks_per_caller: Annotated[
        int | None, Option("Maximum number of stored tasks of one caller.", unset="no limit", bounds=POSITIVE)
    ] = None
    max_stored_bytes_per_caller: Annotated[
        int | None,
        Option(
            "Maximum size of the stored tasks of one caller, in bytes of JSON.",
            unset="no limit; in memory half of max_stored_bytes, 134217728 (128 MiB)",
            bounds=POSITIVE,
        ),
    ] = None
    max_stored_bytes: Annotated[
        int | None,
        Option(
            "Maximum size of the stored tasks of all callers together, in bytes of JSON.",
            unset="no limit; in memory 268435456 (256 MiB)",
            bounds=POSITIVE,
        ),
    ] = None
    max_connections: Annotated[int, Option("Maximum number of open connections.", bounds=POSITIVE)] = 10_000
    max_connections_per_address: Annotated[
        int | None,
        Option(
            "Maximum number of open connections of one address. Does not apply to trusted proxies.",
            unset="half of max_connections",
            bounds=POSITIVE,
        ),
    ] = None
    max_body_bytes_in_flight: Annotated[
        int, Option("Maximum bytes of all request bodies that are still being received.", bounds=POSITIVE)
    ] = 256 * MIB
    max_answer_bytes_in_flight: Annotated[
        int, Option("Maximum bytes of all responses that clients have not read yet.", bounds=POSITIVE)
    ] = 256 * MIB
    max_request_bytes: Annotated[
        int, Option("Maximum size of one request (a message with all its parts), in bytes.", bounds=POSITIVE)
    ] = MAX_BODY
    max_json_values: Annotated[int, Option("Maximum number of JSON values in one request.", bounds=POSITIVE)] = (
        MAX_VALUES
    )
    max_event_bytes: Annotated[
        int,
        Option(
            "Maximum size of one event of an agent (a status, or a chunk of an artifact), in bytes of JSON.",
            bounds=POSITIVE,
        ),
    ] = 64 * MIB
    max_output_bytes: Annotated[
        int, Option("Maximum size of all events of one run together, in bytes of JSON.", bounds=POSITIVE)
    ] = 256 * MIB
    max_context_messages: Annotated[
        int | None,
        Option(
            "Maximum number of history messages of a conversation that an agent receives.",
            unset="that of the store, else 100",
            bounds=POSITIVE,
        ),
    ] = None


class TLS(Struct, frozen=True, kw_only=True):
    """The certificate that the server presents, and the certificates that it requests from clients.

    Example:
        >>> from apcore_a2a import TLS, serve
        >>> async def echo(message: str) -> str:
        ...     return message
        >>> serve(echo, tls=TLS(certfile="server.pem", keyfile="server.key"))  # doctest: +SKIP
    """

    certfile: Annotated[
        str,
        Option(
            "Serve https with this certificate (PEM), followed by the intermediate certificates up to its authority.",
            unset="no TLS",
            metavar="FILE",
        ),
    ]
    keyfile: Annotated[
        str | None, Option("Private key of the certificate.", unset="in the same file", metavar="FILE")
    ] = None
    keyfile_password: Annotated[
        str | None,
        Option(
            "Passphrase of the private key. Other users can see arguments: prefer the environment variable.",
            unset="none",
            is_secret=True,
        ),
    ] = None
    ca_certs: Annotated[
        str | None,
        Option(
            "Request client certificates that were issued by these authorities (PEM).",
            unset="clients are not asked for certificates",
            metavar="FILE",
        ),
    ] = None
    client_certs: Annotated[
        ClientCertificates,
        Option(
            "Where clients without a certificate are rejected: in the TLS handshake (required), or only at requests "
            "that need authentication (optional)."
        ),
    ] = "required"


class Settings(Struct, frozen=True, kw_only=True):
    """How an agent is served. `serve(...)` takes each field as a keyword.

    Example:
        >>> from apcore_a2a import Settings
        >>> Settings(port=9000).check().port
        9000
    """

    # The requirements set 0.0.0.0. The banner warns if the agent then accepts requests without authentication.
    host: Annotated[str, Option("Address to bind.", variable="HOST")] = "0.0.0.0"
    port: Annotated[int, Option("Port to bind. 0 picks a free one.", bounds=PORT, variable="PORT")] = 8000
    name: Annotated[
        str | None,
        Option("Name on the agent card.", unset="apcore's `project.name`, else derived", variable="AGENT_NAME"),
    ] = None
    description: Annotated[
        str | None,
        Option(
            "Description on the agent card.",
            unset="apcore's `project.description`, else derived",
            variable="AGENT_DESCRIPTION",
        ),
    ] = None
    version: Annotated[
        str | None,
        Option(
            "Version on the agent card.",
            unset="that of the project, else of apcore-a2a",
            variable="AGENT_VERSION",
            flags=("--version-str", "--version"),
        ),
    ] = None
    url: Annotated[
        str | None, Option("Public address of the agent, for the card.", unset="the address of the request")
    ] = None
    allowed_hosts: Annotated[
        tuple[str, ...],
        Option(
            "Names by which clients call, such as agent.example or *.example. The card has no other name.",
            unset="any name, or the address of the socket if the card is signed",
            metavar="NAMES",
        ),
    ] = ()
    host_profile: Annotated[
        HostProfileName,
        Option("Platform that runs the agent. It sets the port, the paths and the health routes of its contract."),
    ] = "none"
    card_interfaces: Annotated[
        CardInterfaces,
        Option("Versions that the card lists: all, or one, if a gateway rewrites the addresses of one version only."),
    ] = "all"
    extensions: Annotated[
        tuple[AgentExtension, ...],
        Option("Extensions that the card declares, besides those of this server.", unset="none", in_python_only=True),
    ] = ()
    default_skill: Annotated[
        str, Option("Skill for messages that name none.", unset="none, unless there is only one skill")
    ] = ""
    approvals_by_caller: Annotated[
        bool, Option("Whether the caller of a module that requires approval may also approve it.", in_python_only=True)
    ] = True
    store: Annotated[
        str | None,
        Option("Task store, such as sqlite:///tasks.db, which survives a crash.", unset="memory", metavar="URL"),
    ] = None
    store_listen_url: Annotated[
        str | None,
        Option("PostgreSQL without its pooler, for LISTEN. off: poll.", unset="that of the store", metavar="URL"),
    ] = None
    task_store_ttl: Annotated[
        float | None,
        Option(
            "Seconds that a finished task is kept.",
            unset="3600 in memory, a week in SQLite and PostgreSQL",
            bounds=POSITIVE,
            variable="TASK_STORE_TTL",
        ),
    ] = None
    task_store_max: Annotated[
        int | None,
        Option(
            "Maximum number of tasks kept.",
            unset="10,000 in memory, a million in SQLite, no limit in PostgreSQL",
            bounds=POSITIVE,
            variable="TASK_STORE_MAX",
        ),
    ] = None
    skill_scopes: Annotated[
        dict[str, tuple[str, ...]],
        Option(
            "Scopes that a caller needs for the skills that match a pattern, such as 'pay.*=pay:write'.",
            unset="none",
            flags=("--skill-scope",),
            metavar="PATTERN=SCOPE[,SCOPE]",
        ),
    ] = {}
    admin_role: Annotated[
        str | None, Option("Role that may list and cancel the tasks of all owners.", unset="no administrators")
    ] = None
    audit_log: Annotated[
        str | None,
        Option(
            "File that records each request with its caller and result. - is the logger apcore_a2a.audit.",
            unset="no audit log",
            metavar="FILE",
        ),
    ] = None
    cors_origins: Annotated[
        tuple[str, ...],
        Option(
            "Origins that browsers may call from.", unset="only the agent's own pages may call", variable="CORS_ORIGINS"
        ),
    ] = ()
    push_notifications: Annotated[bool, Option("Offer webhooks.", variable="PUSH_NOTIFICATIONS")] = False
    allow_insecure_webhooks: Annotated[
        bool,
        Option(
            "Allow webhooks over plain HTTP and into private networks. For development.",
            variable="ALLOW_INSECURE_WEBHOOKS",
        ),
    ] = False
    webhook_secret: Annotated[
        str | None,
        Option(
            "Secret that signs notifications: whsec_ and base64. Two secrets, separated by a space, during a rotation. "
            "Other users can see arguments: prefer the environment variable.",
            unset="not signed",
            variable="WEBHOOK_SECRET",
            is_secret=True,
        ),
    ] = None
    explorer: Annotated[bool, Option("Serve the Explorer page.")] = False
    explorer_client_id: Annotated[
        str | None, Option("Public OAuth client that the Explorer offers for a sign-in.", "entered by the user")
    ] = None
    explorer_trace_url: Annotated[
        str | None, Option("Address of a trace, with {trace_id}, to which the Explorer links.", "no traces")
    ] = None
    explorer_prefix: Annotated[str, Option("Path of the Explorer page.", in_python_only=True)] = "/explorer"
    metrics: Annotated[bool, Option("Serve GET /metrics.")] = False
    otlp: Annotated[
        str | None,
        Option("OTLP receiver of traces and metrics. `console` prints the traces instead.", "off", metavar="URL"),
    ] = None
    record_content: Annotated[bool, Option("Record messages and answers in traces. For development.")] = False
    cancel_on_disconnect: Annotated[
        bool,
        Option(
            "Whether a task of A2A 0.3 is canceled when its last stream closes and it has no webhook.",
            in_python_only=True,
        ),
    ] = True
    same_message_same_task: Annotated[
        bool,
        Option("Whether a message id that was already used returns the task that it started.", in_python_only=True),
    ] = False
    state_history: Annotated[bool, Option("Record the states of a task in its metadata.")] = False
    stream_final: Annotated[
        StreamFinal,
        Option(
            "How a text sent in pieces ends: with the last piece (append), with an event that replaces it by the whole "
            "text (replace), or with the whole text in the last status as well (status)."
        ),
    ] = "append"
    data_as_text: Annotated[bool, Option("Add the data of answers as text, for clients that read only text.")] = False
    show_tools: Annotated[ShowTools, Option("What clients see of the tools of a framework's agent.")] = "names"
    allow_urls: Annotated[bool, Option("Pass files by URL on to a framework's agent, which fetches them.")] = False
    allow_tracing: Annotated[bool, Option("Let a framework's agent send traces to the framework's vendor.")] = False
    show_exceptions: Annotated[
        bool,
        Option(
            "Report the exception of a failed task to its caller, with the file and the line. For development, on a "
            "loopback address."
        ),
    ] = False
    execution_timeout: Annotated[
        float | None, Option("Seconds that a task may run.", bounds=POSITIVE, variable="EXECUTION_TIMEOUT")
    ] = 300
    shutdown_timeout: Annotated[
        float,
        Option(
            "Seconds that running tasks have to finish at shutdown.",
            bounds=POSITIVE_AND_FINITE,
            variable="SHUTDOWN_TIMEOUT",
        ),
    ] = 30
    drain_delay: Annotated[
        float,
        Option(
            "Seconds after a signal during which the port stays open and new requests get 503, so that load balancers "
            "notice.",
            bounds=ZERO_OR_MORE,
        ),
    ] = 0
    keep_alive_interval: Annotated[
        float, Option("Seconds without an event after which a stream sends a keep-alive comment.", bounds=POSITIVE)
    ] = 15
    trusted_proxies: Annotated[
        tuple[str, ...],
        Option(
            "Addresses or networks of proxies whose X-Forwarded-* and Client-Cert headers are trusted.",
            unset="none",
            metavar="ADDRESSES",
        ),
    ] = ()
    card_mode: Annotated[
        CardMode,
        Option("Form of the card: the one that fits the request (auto), or always the same.", in_python_only=True),
    ] = "auto"
    old_statuses: Annotated[
        bool, Option("Use the HTTP statuses of A2A 1.0.0 where 1.0.1 changed them.", in_python_only=True)
    ] = False
    grpc: Annotated[
        bool | None,
        Option(
            "Serve gRPC on the same port, and HTTP/2 for all bindings. Needs h2: pip install 'apcore-a2a[grpc]'.",
            unset="if h2 is installed",
            flags=("--grpc/--no-grpc",),
        ),
    ] = None
    log_level: Annotated[
        str | None,
        Option("Log level.", unset="`info`", variable="LOG_LEVEL"),
    ] = None
    limits: Limits = Limits()
    tls: TLS | None = None
    # Not an option: read from the environment, with `hosts.published_address`.
    platform_url: str | None = None

    def __repr__(self) -> str:
        """Return all settings. Secrets show only whether they are set."""
        shown: list[str] = []
        for setting in TABLE:
            value = setting.value_in(self)
            if setting.option.is_secret and value is not None:
                value = "***"
            if setting.name in ("store", "store_listen_url") and value is not None:
                value = hide_password(value)
            shown.append(f"{setting.label}={value!r}")
        return f"Settings({', '.join(shown)})"

    def check(self) -> "Settings":
        """Return this value if all settings are valid.

        Raises:
            ValueError: a setting is not valid. The text names it.

        Example:
            >>> from apcore_a2a import Settings
            >>> Settings(keep_alive_interval=0).check()
            Traceback (most recent call last):
            ValueError: keep_alive_interval must be positive, not 0
        """
        for setting in TABLE:
            setting.check(setting.value_in(self))
        if self.limits.request_burst is not None and not any(getattr(self.limits, name) for name in _RATES):
            raise ValueError(f"request_burst has no effect without {' or '.join(_RATES)}")
        for origin in self.cors_origins:
            if not _is_origin(origin):
                raise ValueError(f"cors_origins must be origins such as 'https://app.example' or '*', not {origin!r}")
        TrustedProxies(self.trusted_proxies)
        if self.url is not None and not _is_http(self.url):
            raise ValueError(f"url must be an http or https address, not {self.url!r}")
        self._check_card()
        if not self.explorer_prefix.startswith("/") or self.explorer_prefix.endswith("/"):
            raise ValueError(f"explorer_prefix must look like '/explorer', not {self.explorer_prefix!r}")
        if self.show_exceptions and not is_loopback(self.host):
            raise ValueError(f"show_exceptions reports code to callers: it needs host='127.0.0.1', not {self.host!r}")
        _check_secrets(self.webhook_secret or "")
        if self.grpc and find_spec("h2") is None:
            raise ValueError("grpc needs h2: pip install 'apcore-a2a[grpc]'")
        check_target(self.otlp)
        if self.log_level is not None and self.log_level.lower() not in LOG_LEVELS:
            raise ValueError(f"log_level must be one of {', '.join(LOG_LEVELS)}, not {self.log_level!r}")
        return self

    def _check_card(self) -> None:
        for name in self.allowed_hosts:
            if not is_host_pattern(name):
                raise ValueError(f"allowed_hosts must hold names such as 'agent.example' or '*.example', not {name!r}")
        if self.card_interfaces != "all" and self.card_mode not in ("auto", self.card_interfaces):
            raise ValueError(f"card_interfaces {self.card_interfaces!r} excludes card_mode {self.card_mode!r}")

    @property
    def profile(self) -> HostProfile:
        """The contract of the platform that runs the agent.

        Example:
            >>> Settings(host_profile="agentcore").profile.answers_ping
            True
        """
        return PROFILES[self.host_profile]

    @property
    def proxies(self) -> tuple[str, ...]:
        """The networks whose X-Forwarded-* headers are read: the trusted proxies, and the platform's own.

        Example:
            >>> Settings(trusted_proxies=("10.0.0.1",), host_profile="agentgateway").proxies
            ('10.0.0.1', '127.0.0.0/8', '::1')
        """
        return self.trusted_proxies + self.profile.forwarders

    def engine_options(self) -> EngineOptions:
        """Return the options of the engine.

        Example:
            >>> from apcore_a2a import Settings
            >>> Settings(execution_timeout=60).engine_options().execution_timeout
            60
        """
        limits = self.limits
        return EngineOptions(
            execution_timeout=self.execution_timeout,
            shutdown_timeout=self.shutdown_timeout,
            max_active_tasks=limits.max_active_tasks,
            max_active_tasks_per_caller=limits.max_active_tasks_per_caller,
            max_streams=limits.max_streams,
            max_streams_per_caller=limits.max_streams_per_caller,
            max_stored_tasks_per_caller=limits.max_stored_tasks_per_caller,
            max_stored_bytes_per_caller=limits.max_stored_bytes_per_caller,
            max_stored_bytes=limits.max_stored_bytes,
            max_event_bytes=limits.max_event_bytes,
            max_output_bytes=limits.max_output_bytes,
            cancel_on_disconnect=self.cancel_on_disconnect,
            same_message_same_task=self.same_message_same_task,
            keep_alive_interval=self.keep_alive_interval,
            state_history=self.state_history,
            stream_final=self.stream_final,
            data_as_text=self.data_as_text,
            show_exceptions=self.show_exceptions,
            admin_role=self.admin_role or None,
        )


_RATES: Final = ("max_requests_per_second", "max_anonymous_requests_per_second", "max_total_requests_per_second")

# ---- table ----------------------------------------------------------------------------------------------------------

Group = Literal["", "limits", "tls"]
_GROUPS: Final[Mapping[Group, type[Struct]]] = {"": Settings, "tls": TLS, "limits": Limits}
_PREFIXES: Final[Mapping[Group, str]] = {"": "", "limits": "", "tls": "ssl_"}


class Setting(Struct, frozen=True):
    """A row of the table of options: one field of `Settings`, `Limits` or `TLS`."""

    name: str
    group: Group
    kind: Any  # Any: a type, such as `int | None`
    default: Any  # Any: of that type; None if the field has no default
    option: Option

    @property
    def keyword(self) -> str:
        """The keyword argument of `serve`, such as `port` or `limits=Limits(max_streams=…)`."""
        if not self.group:
            return self.name
        return f"{self.group}={_GROUPS[self.group].__name__}({self.name}=…)"

    @property
    def parameter(self) -> str:
        """The name from which the flag and the variable are made, such as `ssl_certfile`."""
        return _PREFIXES[self.group] + self.name

    @property
    def label(self) -> str:
        """The name in errors."""
        return f"tls.{self.name}" if self.group == "tls" else self.name

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of the command line, or none."""
        if self.option.in_python_only:
            return ()
        return self.option.flags or ("--" + self.parameter.replace("_", "-"),)

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables, or none. The first one that is set counts."""
        if self.option.in_python_only:
            return ()
        names = (f"{PREFIX}{self.parameter.upper()}", self.option.variable)
        return tuple(name for name in names if name)

    @property
    def choices(self) -> tuple[str, ...]:
        """The possible values if they are fixed texts, else none."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    def value_in(self, settings: Settings) -> Any:  # Any: of `kind`
        """Return the value of this setting, or None if its group is not set."""
        owner = getattr(settings, self.group) if self.group else settings
        return getattr(owner, self.name, None)

    def check(self, value: Any) -> None:  # Any: of `kind`
        """Compare a value with the bounds and the choices.

        Raises:
            ValueError: the value is outside of the bounds, or is not one of the choices.
        """
        if value is None:
            return
        bounds = self.option.bounds
        if bounds is not None and not bounds.allow(value):
            raise ValueError(f"{self.label} must be {bounds.text}, not {value}")
        if self.choices and value not in self.choices:
            raise ValueError(f"{self.label} must be one of {', '.join(self.choices)}, not {value!r}")


def _settings_of(group: Group) -> Iterator[Setting]:
    for field in fields(_GROUPS[group]):
        if get_origin(field.type) is not Annotated:
            continue  # the fields `limits` and `tls` have no Option: their own fields are in the table
        kind, option = get_args(field.type)
        default = None if field.default is NODEFAULT else field.default
        if field.default_factory is not NODEFAULT:
            default = field.default_factory()
        yield Setting(field.name, group, kind, default, option)


TABLE: Final[tuple[Setting, ...]] = tuple(setting for group in _GROUPS for setting in _settings_of(group))


def new_keyword(name: str) -> str:
    """Return the present form of a former keyword of `serve`, such as `limits=Limits(max_streams=…)`, or "".

    Example:
        >>> new_keyword("ssl_certfile")
        'tls=TLS(certfile=…)'
    """
    for setting in TABLE:
        if setting.group and setting.parameter == name:
            return setting.keyword
    return ""


# ---- values ---------------------------------------------------------------------------------------------------------


def _check_secrets(given: str) -> None:
    for secret in given.split():
        try:
            parse_secret(secret)
        except ValueError as error:
            raise ValueError(f"webhook_secret is not valid: {error}") from error


def _is_http(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _is_origin(text: str) -> bool:
    """Return whether a browser can send this text as Origin: a scheme and a host, and nothing after them."""
    if text in ("*", "null"):
        return True
    scheme, separator, host = text.partition("://")
    return bool(scheme and separator and host) and "/" not in host
