"""The options of `serve` that are settings of the agent. Rule: an option has the name and the default of its setting.

Whom the agent lets in is in authentication.py; what is an option of the command alone, in serve.py.
"""

from collections.abc import Callable
from typing import Any, Final, get_args

import click

from apcore_a2a.cli.options import Function, combine
from apcore_a2a.http.tls import ClientCertificates
from apcore_a2a.settings import Settings

# A default is written once, in Settings: `serve(...)` and `apcore-a2a serve` do the same unless told otherwise.
DEFAULTS: Final = Settings()
TLS_SETTINGS: Final = frozenset(
    {"ssl_certfile", "ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs", "ssl_client_certs"}
)


def _setting(
    name: str, help_text: str, *, kind: Any = None, variable: str = "", metavar: str | None = None
) -> Callable[[Function], Function]:
    """The option `--some-setting`, the variable A2A_SOME_SETTING unless it has another name, and the default.

    Args:
        name: That of the setting.
        help_text: With the default, where None stands for something.
        kind: What click makes of the text; None leaves it a text, or makes it a flag if the setting is one.
        variable: For those whose name the requirements have without A2A_.
        metavar: What the value is called in the help.
    """
    default: Any = getattr(DEFAULTS, name)  # Any: settings have all kinds of values
    is_flag = isinstance(default, bool)
    return click.option(
        "--" + name.replace("_", "-"),
        envvar=variable or f"A2A_{name.upper()}",
        type=kind,
        is_flag=is_flag,
        default=default,
        show_default=default not in (None, "") and not is_flag,
        metavar=metavar,
        help=help_text,
    )


agent_options: Final = combine(
    _setting("host", "Address to bind.", variable="HOST"),
    _setting("port", "Port to bind; 0 picks a free one.", kind=click.IntRange(0, 65535), variable="PORT"),
    _setting("name", "Name on the agent card.", variable="AGENT_NAME"),
    _setting("description", "Description on the agent card.", variable="AGENT_DESCRIPTION"),
    click.option("--version-str", "--version", "version", envvar="AGENT_VERSION", help="Version on the agent card."),
    _setting("url", "Address clients reach this agent at, for the card."),
    _setting("default_skill", "Skill for messages that name none."),
    _setting("store", "Where tasks are kept: sqlite:///tasks.db survives a crash. Default: memory.", metavar="URL"),
    _setting(
        "task_store_ttl",
        "Seconds a finished task is kept.  [default: 3600 in memory, a week in SQLite]",
        kind=float,
        variable="TASK_STORE_TTL",
    ),
    _setting(
        "task_store_max",
        "Most tasks kept.  [default: 10,000 in memory, a million in SQLite]",
        kind=int,
        variable="TASK_STORE_MAX",
    ),
)
tls_options: Final = combine(
    _setting(
        "ssl_certfile",
        "Serve https with this certificate (PEM, those between it and its authority after it).",
        metavar="FILE",
    ),
    _setting("ssl_keyfile", "The key of the certificate.  [default: in the same file]", metavar="FILE"),
    _setting(
        "ssl_keyfile_password",
        "Passphrase of the key. Others can see arguments: prefer A2A_SSL_KEYFILE_PASSWORD.",
    ),
    _setting("ssl_ca_certs", "Ask callers for certificates of these authorities (PEM).", metavar="FILE"),
    _setting(
        "ssl_client_certs",
        "Whether a caller without one is refused by TLS, or only where authentication is asked for.",
        kind=click.Choice(get_args(ClientCertificates)),
    ),
    click.option(
        "--card-signing-key",
        envvar="A2A_CARD_SIGNING_KEY",
        metavar="FILE",
        help="Sign the card with this private key (PEM or JSON Web Key).",
    ),
)
running_options: Final = combine(
    click.option("--cors-origins", envvar="CORS_ORIGINS", help="Origins browsers may call from, separated by commas."),
    _setting("push_notifications", "Offer webhooks.", variable="PUSH_NOTIFICATIONS"),
    _setting(
        "allow_insecure_webhooks",
        "Let webhooks be plain HTTP, and point into this network: for development.",
        variable="ALLOW_INSECURE_WEBHOOKS",
    ),
    _setting(
        "webhook_secret",
        "Sign notifications with it: whsec_ and base64. Better set as a variable: flags are seen by others.",
        variable="WEBHOOK_SECRET",
    ),
    _setting("explorer", "Serve the Explorer page."),
    _setting("metrics", "Serve GET /metrics."),
    _setting("state_history", "Have tasks say which states they have passed through."),
    _setting("execution_timeout", "Seconds a task may run.", kind=float, variable="EXECUTION_TIMEOUT"),
    _setting(
        "shutdown_timeout",
        "Seconds running tasks get to finish at shutdown.",
        kind=float,
        variable="SHUTDOWN_TIMEOUT",
    ),
    click.option(
        "--workers",
        envvar="A2A_WORKERS",
        type=click.IntRange(1, 256),
        default=1,
        show_default=True,
        help="Processes that serve the port; more than one needs a PostgreSQL store.",
    ),
    _setting(
        "drain_delay",
        "Seconds after a signal in which the port stays open and answers 503, for balancers to notice.",
        kind=float,
    ),
    _setting(
        "keep_alive_interval",
        "Seconds after which a stream that has nothing to tell says that it is alive.",
        kind=float,
    ),
    _setting(
        "max_context_messages",
        "Most messages of a conversation that an agent is told.  [default: 100]",
        kind=int,
    ),
)
limit_options: Final = combine(
    _setting(
        "max_requests_per_second",
        "Most requests a second of one caller.  [default: no limit]",
        kind=float,
    ),
    _setting(
        "max_anonymous_requests_per_second",
        "The same for each address of callers without a name.  [default: as others; with authentication a tenth]",
        kind=float,
    ),
    _setting(
        "max_total_requests_per_second",
        "Most requests a second of all callers together.  [default: no limit]",
        kind=float,
    ),
    _setting(
        "request_burst",
        "Requests of one caller that may come at once before that.  [default: those of two seconds]",
        kind=int,
    ),
    _setting("max_active_tasks", "Most tasks running at once.", kind=int),
    _setting("max_active_tasks_per_caller", "Most tasks of one caller running at once.", kind=int),
    _setting("max_streams", "Most event streams open at once.", kind=int),
    _setting("max_streams_per_caller", "Most event streams of one caller open at once.", kind=int),
    _setting("max_stored_tasks_per_caller", "Most tasks kept of one caller.  [default: no limit]", kind=int),
    _setting(
        "max_stored_bytes_per_caller", "Most bytes of JSON in them.  [default: no limit; in memory 128 MiB]", kind=int
    ),
    _setting("max_stored_bytes", "The same of all callers together.  [default: no limit; in memory 256 MiB]", kind=int),
    _setting("max_connections", "Most connections open at once.", kind=int),
    _setting(
        "max_connections_per_address",
        "Most connections of one address; trusted proxies have no limit.  [default: half of all]",
        kind=int,
    ),
    _setting("max_body_bytes_in_flight", "Most bytes of request bodies that are not complete.", kind=int),
    _setting("max_answer_bytes_in_flight", "Most bytes of answers that clients have yet to read.", kind=int),
    _setting("max_request_bytes", "Most bytes of one request.", kind=int),
    _setting("max_json_values", "Most JSON values in one request.", kind=int),
    _setting("max_event_bytes", "Most bytes of one event that a task makes.", kind=int),
    _setting("max_output_bytes", "Most bytes of all events that one run of a task makes.", kind=int),
    click.option(
        "--trusted-proxies",
        envvar="A2A_TRUSTED_PROXIES",
        metavar="ADDRESSES",
        help="Addresses or networks of proxies whose X-Forwarded-* headers are believed, separated by commas.",
    ),
)
