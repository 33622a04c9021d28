"""`push`, or `task push-config`: the webhooks of a task."""

from typing import Any

import click
import msgspec

from apcore_a2a.cli import options, output, rendering
from apcore_a2a.cli.connection import run_with_client
from apcore_a2a.client import A2AClient
from apcore_a2a.client.bindings import WebhookStatus
from apcore_a2a.protocol.model import AuthenticationInfo, PushConfig, PushConfigPage, encode


@click.group("push-config")
def group() -> None:
    """Manage the webhooks of a task."""


@group.command(
    "create", epilog=options.example("apcore-a2a push create http://localhost:8000 TASK https://example.com/hook")
)
@click.option("--id", "config_id", default="", help="Id of the webhook. By default the agent chooses one.")
@options.env_option("--push-token", default="", help="Token that the agent sends with each delivery, for you to check.")
@options.env_option("--push-bearer", help="Bearer token with which the agent authenticates to the webhook.")
@options.common_options
@click.argument("words", nargs=-1, metavar="AGENT TASK WEBHOOK")
def create(config_id: str, push_token: str, push_bearer: str | None, **given: Any) -> int:
    """Send the events of a task to a webhook."""
    common, (task_id, url) = options.read_common(given, "TASK", "WEBHOOK")
    authentication = None
    if push_bearer:
        authentication = AuthenticationInfo(scheme="Bearer", credentials=push_bearer)
    config = PushConfig(url=url, id=config_id, token=push_token, authentication=authentication)

    async def work(client: A2AClient) -> None:
        stored = await client.set_push_config(task_id, config)
        output.print_result(common, encode(stored), rendering.push_lines(stored))

    return run_with_client(common, work)


@group.command("get", epilog=options.example("apcore-a2a push get http://localhost:8000 TASK CONFIG"))
@options.common_options
@click.argument("words", nargs=-1, metavar="AGENT TASK CONFIG")
def get(**given: Any) -> int:
    """Show one webhook of a task."""
    common, (task_id, config_id) = options.read_common(given, "TASK", "CONFIG")

    async def work(client: A2AClient) -> None:
        config = await client.get_push_config(task_id, config_id)
        output.print_result(common, encode(config), rendering.push_lines(config))

    return run_with_client(common, work)


@group.command("list", epilog=options.example("apcore-a2a push list http://localhost:8000 TASK"))
@options.common_options
@click.argument("words", nargs=-1, metavar="AGENT TASK")
def list_configs(**given: Any) -> int:
    """List the webhooks of a task."""
    common, (task_id,) = options.read_common(given, "TASK")

    async def work(client: A2AClient) -> None:
        configs = await client.list_push_configs(task_id)
        lines: list[str] = []
        for config in configs:
            lines += rendering.push_lines(config)
        lines.append(rendering.field("Configs", len(configs)))
        output.print_result(common, encode(PushConfigPage(configs=tuple(configs))), lines)

    return run_with_client(common, work)


@group.command("delete", epilog=options.example("apcore-a2a push delete http://localhost:8000 TASK CONFIG"))
@options.common_options
@click.argument("words", nargs=-1, metavar="AGENT TASK CONFIG")
def delete(**given: Any) -> int:
    """Delete a webhook of a task."""
    common, (task_id, config_id) = options.read_common(given, "TASK", "CONFIG")

    async def work(client: A2AClient) -> None:
        await client.delete_push_config(task_id, config_id)
        # The protocol's response is empty, but JSON output must be one document.
        output.print_result(common, msgspec.json.encode({}), [rendering.field("Deleted", config_id)])

    return run_with_client(common, work)


@group.command("dead", epilog=options.example("apcore-a2a push dead http://localhost:8000"))
@options.common_options
@click.argument("words", nargs=-1, metavar="AGENT [TASK]")
def dead(**given: Any) -> int:
    """List your dead letters: webhooks whose deliveries were given up.

    An extension to A2A that only agents served by apcore-a2a support.
    """
    common, words = options.read_common(given, "[TASK]")

    async def work(client: A2AClient) -> None:
        found = [webhook for webhook in await client.webhooks(*words) if webhook.state == "failed"]
        _print_states(common, found)

    return run_with_client(common, work)


@group.command("redeliver", epilog=options.example("apcore-a2a push redeliver http://localhost:8000 TASK CONFIG"))
@options.common_options
@click.argument("words", nargs=-1, metavar="AGENT TASK [CONFIG]")
def redeliver(**given: Any) -> int:
    """Deliver the dead letters of a webhook again. Without CONFIG: of all webhooks of the task.

    An extension to A2A that only agents served by apcore-a2a support.
    """
    common, words = options.read_common(given, "TASK", "[CONFIG]")

    async def work(client: A2AClient) -> None:
        _print_states(common, await client.redeliver(*words))

    return run_with_client(common, work)


def _print_states(common: options.CommonOptions, webhooks: list[WebhookStatus]) -> None:
    lines: list[str] = []
    for webhook in webhooks:
        lines += rendering.webhook_lines(webhook)
    lines.append(rendering.field("Webhooks", len(webhooks)))
    output.print_result(common, msgspec.json.encode({"webhooks": webhooks}), lines)


# 0.3 called the operation tasks/pushNotificationConfig/set.
group.add_command(create, "set")
